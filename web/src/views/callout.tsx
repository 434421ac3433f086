/** At the start, one cell of the grid explained: what it holds, and what it must hold in the end. */

import type { JSX } from "preact";
import { amountIn, changeInWords, changesOf, resultOf, type Numbers } from "../amounts";
import { every } from "../numbers";
import { NOTHING, nameRanks, type Replay, type State } from "../replay";
import { sentence } from "../words";
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
export function explained(
  replay: Replay,
  state: State,
  { rank, chunk }: Cell,
  numbers: Numbers | null,
  brief = false,
): string {
  const cell = rank * replay.width + chunk;
  const [holds, wants] = [state.datum[cell], replay.ends[cell]];
  const now =
    holds === NOTHING
      ? "still holds nothing"
      : numbers
        ? `holds ${replay.reduces ? "its own number" : "the number"}, ${amountIn(numbers, replay, state, cell)}`
        : `holds ${replay.nameOf(holds)}`;
  const then =
    wants === NOTHING
      ? "what it holds in the end does not matter"
      : numbers && replay.reduces
        ? `in the end ${resultOf(numbers, replay, cell)} must be here: the ${numbers.op} of ${columnOf(replay, cell, brief)}`
        : `in the end ${replay.nameOf(wants)} must be here`;
  return brief ? `This cell ${now}; ${then}.` : `This cell is chunk ${chunk} on rank ${rank}. It ${now}; ${then}.`;
}

/** Whose numbers a cell wants: those of all ranks, or of some. */
function columnOf(replay: Replay, cell: number, brief: boolean): string {
  const wanted = replay.wanted(cell);
  if (wanted.length < replay.ranks)
    return `what ${nameRanks(wanted)} ${wanted.length === 1 ? "has" : "have"} in ${brief ? "its" : "this"} column`;
  return brief ? "its column" : "what all ranks have in this column";
}

/** What a step does, at one cell that it changes: in the first row, if there is one. `chunks`: only in these. */
export function changed(
  replay: Replay,
  step: number,
  numbers: Numbers | null,
  chunks?: number[],
): { cell: Cell; text: string } | null {
  const counts = (chunk: number): boolean => !chunks || chunks.includes(chunk);
  const upper = (text: string): string => `${text[0].toUpperCase()}${text.slice(1)}.`;
  if (numbers) {
    const change = changesOf(numbers, replay, step).find((one) => counts(one.chunk));
    return change ? { cell: change, text: upper(changeInWords(replay, change)) } : null;
  }
  const move = replay
    .moves(step - 1)
    .filter((one) => counts(one.into))
    .sort((one, other) => one.destination - other.destination || one.into - other.into)[0];
  return move ? { cell: { rank: move.destination, chunk: move.into }, text: upper(sentence(move)) } : null;
}

const LINE = 17;

/** Words in lines of at most this many letters. */
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

/** The words above the grid, in a box of a given height, and a line from them to the cell if it is in the first row. */
export function Callout(props: { grid: Grid; cell: Cell; text: string; width: number; height: number }): JSX.Element {
  const { grid, cell, text, width, height } = props;
  const high = height - 12;
  const lines = wrapped(text, lettersIn(width)).slice(0, Math.max(1, Math.floor((high - 14) / LINE)));
  // Beside the number of the column.
  const x = grid.x(cell.chunk) + grid.cellX * (grid.cellX > 44 ? 0.75 : 0.95);
  const wide = Math.min(width - 4, 620);
  const left = Math.max(2, Math.min(x - 60, width - wide - 2));
  const top = 4 - height;
  const first = top + (high - LINE * lines.length) / 2 + 12;
  return (
    <g class="callout">
      <Around grid={grid} at={cell} class="asked" />
      {cell.rank === 0 && <path class="leader" d={`M${x} ${grid.y(cell.rank) - 2}V${top + high}`} />}
      <rect x={left} y={top} width={wide} height={high} rx={8} />
      {lines.map((line, i) => (
        <text key={i} class="label" x={left + 12} y={first + i * LINE}>
          {line}
        </text>
      ))}
    </g>
  );
}
