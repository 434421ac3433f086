/** What a cell of the grid shows: a number that adds up, a mark per contribution, or the piece that it holds. */

import type { ComponentChildren, JSX } from "preact";
import { amountIn, carriesNumbers, MOST_RANKS, sumIn, type Numbers } from "../amounts";
import { clamp } from "../numbers";
import { colourOf, inkOn } from "../palette";
import { lights } from "../picture";
import { NOTHING, type Replay, type State } from "../replay";
import { askFor, showNumbers, state as page } from "../state";
import type { Grid } from "./grid";
import { Quilt } from "./quilt";
import { numberSize } from "./travel";

export function Marks(props: {
  replay: Replay;
  state: State;
  grid: Grid;
  changed: Set<number>;
  /** Null if marks, or the names of pieces, are shown. */
  numbers: Numbers | null;
}): JSX.Element {
  const { replay, state, grid, changed, numbers } = props;
  const cells: ComponentChildren[] = [];
  for (let cell = 0; cell < state.datum.length; cell++) {
    const { rank, chunk } = replay.place(cell);
    const [x, y] = [grid.x(chunk), grid.y(rank)];
    const right = replay.asPromised(state, cell);
    const kind = `cell${right ? " right" : ""}${changed.has(cell) ? " changed" : ""}`;
    cells.push(
      <g
        key={cell}
        class="hot"
        {...lights({ ranks: [rank], chunk }, () => askFor(rank, chunk))}
        data-cell={`${rank} ${chunk}`}
        data-right={replay.ends[cell] === NOTHING ? undefined : String(right)}
      >
        <rect class={kind} x={x} y={y} width={grid.cellX} height={grid.cellY} rx={Math.min(6, grid.cellX / 6)} />
        {!replay.reduces
          ? piece(replay, state, grid, cell, x, y, numbers)
          : numbers
            ? number(replay, state, grid, cell, x, y, numbers)
            : contributions(replay, state, grid, cell, x, y)}
      </g>,
    );
  }
  return <g>{cells}</g>;
}

/** Numbers that add up, while cells have room for them; the marks of contributions if the reader prefers those. */
export const asNumbers = (replay: Replay, grid: Grid): boolean =>
  showNumbers.value && canBeNumbers(replay) && grid.cellX >= 20;

/** Few enough ranks; and where nothing is combined, numbers of the reader: without them, pieces have their names. */
export const canBeNumbers = (replay: Replay): boolean =>
  carriesNumbers(replay) && replay.ranks <= MOST_RANKS && (replay.reduces || page.value.values !== null);

/** The size in which numbers fit into a cell, and as much of them as fits. */
function fitted(amount: string, wide: number, size: number): { text: string; size: number } {
  const letters = (size: number): number => Math.floor((wide - 4) / (0.62 * size));
  const small = clamp((wide - 4) / (0.62 * amount.length), 8, size);
  const text = amount.length <= letters(small) ? amount : `${amount.slice(0, Math.max(1, letters(small) - 1))}…`;
  return { text, size: small };
}

/** The sum of what is there so far, on the colours of the ranks whose part is in it. */
function number(
  replay: Replay,
  state: State,
  grid: Grid,
  cell: number,
  x: number,
  y: number,
  numbers: Numbers,
): ComponentChildren {
  const amount = amountIn(numbers, replay, state, cell);
  if (amount === null) return null;
  const { text, size } = fitted(amount, grid.cellX, numberSize(grid));
  return (
    <>
      <title>{sumIn(numbers, replay, state, cell)}</title>
      <Quilt
        ranks={replay.contributors(state, cell)}
        many={replay.ranks}
        x={x + 1}
        y={y + 1}
        width={grid.cellX - 2}
        height={grid.cellY - 2}
      />
      <text class="amount" x={x + grid.cellX / 2} y={y + grid.cellY / 2 - 1} font-size={size}>
        {text}
      </text>
      {replay.doubled(state, cell).size > 0 && (
        <text class="times" x={x + grid.cellX - 6} y={y + 8} font-size={9}>
          2×
        </text>
      )}
    </>
  );
}

/** One mark per rank, in its own place: filled when that rank's contribution is there. */
function contributions(
  replay: Replay,
  state: State,
  grid: Grid,
  cell: number,
  x: number,
  y: number,
): ComponentChildren {
  const { marks } = grid;
  const doubled = replay.doubled(state, cell);
  const empty = state.datum[cell] === NOTHING;
  const all: ComponentChildren[] = [];
  for (let rank = 0; rank < replay.ranks; rank++) {
    const here = !empty && replay.has(state, cell, rank);
    const left = x + marks.left + (rank % marks.across) * marks.pitch;
    const top = y + marks.top + Math.floor(rank / marks.across) * marks.pitch;
    all.push(
      <rect
        key={rank}
        class={here ? "mark" : "mark empty"}
        x={left}
        y={top}
        width={marks.size}
        height={marks.size}
        rx={marks.size / 4}
        fill={here ? colourOf(rank, replay.ranks) : undefined}
      />,
    );
    const times = doubled.get(rank);
    if (times) {
      all.push(
        <text
          key={`t${rank}`}
          class="times"
          x={left + marks.size / 2}
          y={top + marks.size / 2}
          font-size={Math.max(7, marks.size * 0.75)}
        >
          {times}
        </text>,
      );
    }
  }
  const datum = state.datum[cell];
  if (!empty && datum !== cell % replay.width && grid.cellX > 40) {
    all.push(
      <text key="d" class="tiny" x={x + grid.cellX - 4} y={y + grid.cellY - 4} text-anchor="end">
        {`of ${datum}`}
      </text>,
    );
  }
  return all;
}

/** If nothing is combined: one block in the colour of the rank where the data started, with its name. */
function piece(
  replay: Replay,
  state: State,
  grid: Grid,
  cell: number,
  x: number,
  y: number,
  numbers: Numbers | null,
): ComponentChildren {
  const datum = state.datum[cell];
  if (datum === NOTHING) return null;
  const inset = Math.min(5, grid.cellX / 7);
  const from = replay.contributors(state, cell)[0];
  const name = (numbers && amountIn(numbers, replay, state, cell)) ?? shortName(replay, datum);
  const { text, size } = fitted(name, grid.cellX - 2 * inset, Math.min(13, grid.cellX / 2.6));
  return (
    <>
      <rect
        class="mark"
        x={x + inset}
        y={y + inset}
        width={grid.cellX - 2 * inset}
        height={grid.cellY - 2 * inset}
        rx={Math.min(4, inset)}
        fill={colourOf(from, replay.ranks)}
      />
      {grid.cellX >= 18 && (
        <text
          class="inside"
          style={{ fill: inkOn(colourOf(from, replay.ranks)) }}
          x={x + grid.cellX / 2}
          y={y + grid.cellY / 2}
          font-size={size}
        >
          {text}
        </text>
      )}
    </>
  );
}

function shortName(replay: Replay, datum: number): string {
  const { chunks } = replay.schedule;
  if (!replay.promise.exchanges) return String(datum);
  const part = Math.max(1, Math.floor(chunks / replay.ranks));
  return `${Math.floor(datum / chunks)}→${Math.floor((datum % chunks) / part)}`;
}
