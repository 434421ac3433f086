/** At the start, one cell of the grid explained: what it holds, and what it must hold in the end. */

import type { JSX } from "preact";
import { amountIn, given } from "../amounts";
import { every, sum } from "../numbers";
import { NOTHING, type Replay, type State } from "../replay";
import { canBeNumbers } from "./cells";
import { Around, type Grid } from "./grid";

interface Cell {
  rank: number;
  chunk: number;
}

/** In the first row, where the words above it are near: a cell of which something is wanted, if there is one. */
export function cellToExplain(replay: Replay): Cell {
  const rank = 0;
  const wanted = every(replay.width).filter((chunk) => replay.ends[rank * replay.width + chunk] !== NOTHING);
  return { rank, chunk: wanted[1] ?? wanted[0] ?? 0 };
}

/** `Rank 3 has the number 5 in chunk 1. In the end …`. */
export function explained(replay: Replay, state: State, { rank, chunk }: Cell): string {
  const cell = rank * replay.width + chunk;
  const [holds, wants] = [state.datum[cell], replay.ends[cell]];
  const numbers = canBeNumbers(replay);
  const now =
    holds === NOTHING
      ? "still holds nothing"
      : numbers
        ? `holds its own number, ${amountIn(replay, state, cell)}`
        : `holds ${replay.nameOf(holds)}`;
  const then =
    wants === NOTHING
      ? "what is here in the end does not matter"
      : numbers
        ? `in the end ${sum(every(replay.ranks).map((one) => given(one, wants)))} must be here: the sum of what all ranks have in this column`
        : `in the end ${replay.nameOf(wants)} must be here`;
  return `This cell is chunk ${chunk} on rank ${rank}. It ${now}; ${then}.`;
}

const LINE = 17;

/** Words in lines of at most so many letters. */
export function wrapped(text: string, letters: number): string[] {
  const lines = [""];
  for (const word of text.split(" ")) {
    const last = lines[lines.length - 1];
    if (last && last.length + 1 + word.length > letters) lines.push(word);
    else lines[lines.length - 1] = last ? `${last} ${word}` : word;
  }
  return lines;
}

export function calloutHeight(text: string, width: number): number {
  return 26 + LINE * wrapped(text, lettersIn(width)).length;
}

const lettersIn = (width: number): number => Math.floor((Math.min(width, 620) - 40) / 6.9);

/** The words above the grid, and a line from them to the cell. */
export function Callout(props: { grid: Grid; cell: Cell; text: string; width: number }): JSX.Element {
  const { grid, cell, text, width } = props;
  const lines = wrapped(text, lettersIn(width));
  // Beside the number of the column.
  const x = grid.x(cell.chunk) + grid.cellX * (grid.cellX > 44 ? 0.75 : 0.95);
  const high = LINE * lines.length + 14;
  const wide = Math.min(width - 4, 620);
  const left = Math.max(2, Math.min(x - 60, width - wide - 2));
  const top = 4 - calloutHeight(text, width);
  return (
    <g class="callout">
      <Around grid={grid} at={cell} class="asked" />
      <path class="leader" d={`M${x} ${grid.y(cell.rank) - 2}V${top + high}`} />
      <rect x={left} y={top} width={wide} height={high} rx={8} />
      {lines.map((line, i) => (
        <text key={i} class="label" x={left + 12} y={top + 19 + i * LINE}>
          {line}
        </text>
      ))}
    </g>
  );
}
