/** Who holds what among more ranks than can be drawn one by one: squares that stand for many cells. */

import type { Layer } from "../layers";
import { clamp, every } from "../numbers";
import { deeper, fullness } from "../palette";
import type { Drawn } from "../picture";
import { remembered } from "../remembered";
import { NOTHING, type Replay, type State } from "../replay";
import { plural } from "../words";

export const MOST_ROWS = 64;

interface Blocks {
  rows: number;
  columns: number;
  /** Row by row, the share of promised data that has arrived. */
  shares: number[];
}

/** What is in blocks after some steps: playing goes on from there. */
interface Filled {
  rows: number;
  columns: number;
  done: number;
  /** Parts that each cell holds, and those of each block together; and how many a full block holds. */
  parts: Int32Array;
  sums: Float64Array;
  full: Float64Array;
}

const filledOf = remembered((replay: Replay, most: number): Filled => {
  const rows = Math.min(most, replay.ranks);
  const columns = Math.min(most, replay.width);
  const filled = {
    rows,
    columns,
    done: -1,
    parts: new Int32Array(replay.ranks * replay.width),
    sums: new Float64Array(rows * columns),
    full: new Float64Array(rows * columns),
  };
  for (let cell = 0; cell < filled.parts.length; cell++)
    filled.full[blockOf(replay, filled, cell)] += mostParts(replay);
  return filled;
});

const mostParts = (replay: Replay): number => (replay.reduces ? replay.ranks : 1);

function blockOf(replay: Replay, { rows, columns }: Filled, cell: number): number {
  const rank = Math.floor(cell / replay.width);
  const chunk = cell - rank * replay.width;
  return Math.floor((rank * rows) / replay.ranks) * columns + Math.floor((chunk * columns) / replay.width);
}

/** Ranks by chunks, in a limited number of rows and columns; neighbours are grouped. */
export function blocksOf(replay: Replay, state: State, most: number): Blocks {
  const filled = filledOf(replay, most);
  const { rows, columns, parts, sums, full } = filled;
  const look = (cell: number): void => {
    const now = state.datum[cell] === NOTHING ? 0 : Math.min(mostParts(replay), replay.count(state, cell));
    if (now === parts[cell]) return;
    sums[blockOf(replay, filled, cell)] += now - parts[cell];
    parts[cell] = now;
  };
  if (filled.done >= 0 && filled.done === state.done - 1) {
    // Playing: only what the step has written can have changed.
    for (const [, , , rank, into] of replay.schedule.steps[filled.done]) look(rank * replay.width + into);
  } else if (filled.done !== state.done) {
    for (let cell = 0; cell < parts.length; cell++) look(cell);
  }
  filled.done = state.done;
  return { rows, columns, shares: Array.from(sums, (sum, block) => (full[block] ? sum / full[block] : 0)) };
}

/** The share of contributions that has arrived, block by block. */
export function drawBlocks(replay: Replay, state: State, width: number, tall: number): Drawn {
  const left = width < 560 ? 40 : 76; // room for the numbers of ranks
  const top = 34;
  const { rows, columns, shares } = blocksOf(replay, state, MOST_ROWS);
  const size = clamp(Math.floor((width - left - 8) / columns), 3, 14);
  const high = Math.max(4, Math.min(14, Math.floor(tall / rows)));
  const wide = size;
  const firstOf = (row: number): number => Math.ceil((row * replay.ranks) / rows);
  const step = Math.max(1, Math.ceil(16 / high));
  const content = (
    <>
      <text class="axis" x={width < 560 ? 4 : left} y={top - 14}>
        {width < 560
          ? `${plural(replay.width, "chunk")} across; ${deeper()}, the more is there`
          : `${plural(replay.width, "chunk")} across, ${plural(Math.ceil(replay.ranks / rows), "rank")} a row; ${deeper()}, the more has arrived`}
      </text>
      {every(rows, step).map((row) => (
        <text key={row} class="label" x={left - 10} y={top + row * high + high / 2 + 4} text-anchor="end">
          {width < 560 ? firstOf(row) : `rank ${firstOf(row)}`}
        </text>
      ))}
    </>
  );
  const lies = { left, top, pitchX: wide, pitchY: high, cellX: wide - 0.5, cellY: high - 0.5 };
  const layers = blockLayers({ rows, columns, shares }, lies);
  return { width: Math.max(width, left + columns * wide + 8), height: top + rows * high + 12, content, layers };
}

const SHADES = 32;

/** Where blocks lie. */
type Lies = Record<"left" | "top" | "pitchX" | "pitchY" | "cellX" | "cellY", number>;

/** How a share looks, from 0 to 1. */
type Look = (share: number) => Pick<Layer, "colour" | "opacity">;
const shaded: Look = (share) => ({ colour: fullness(share), opacity: 1 });

/** Blocks as lines as thick as a row, neighbours of the same shade together: thousands of elements would be slow. */
export function blockLayers({ columns, shares }: Blocks, lies: Lies, look = shaded): Layer[] {
  const { left, top, pitchX, pitchY, cellX, cellY } = lies;
  const lines = new Map<number, number[]>();
  const shadeOf = (block: number): number => Math.round(shares[block] * SHADES);
  for (let block = 0; block < shares.length; block++) {
    const [row, first, shade] = [Math.floor(block / columns), block % columns, shadeOf(block)];
    // What has room between its columns is drawn cell by cell.
    while (pitchX - cellX <= 1 && (block + 1) % columns && shadeOf(block + 1) === shade) block++;
    if (!lines.has(shade)) lines.set(shade, []);
    const y = top + row * pitchY + cellY / 2;
    lines.get(shade)!.push(left + first * pitchX, y, left + (block % columns) * pitchX + cellX, y);
  }
  return [...lines].map(([shade, lines]) => ({ lines, width: cellY, ...look(shade / SHADES) }));
}

/** One chunk on very many ranks: a square of ranks, row by row. */
export function drawSquare(replay: Replay, state: State, width: number): Drawn {
  const across = 2 ** Math.ceil(Math.log2(replay.ranks) / 2);
  const rows = Math.ceil(replay.ranks / across);
  const side = clamp(Math.floor((width - 96) / across), 6, 20);
  const left = Math.max(64, (width - across * side) / 2);
  const changed = new Set(replay.moves(state.done - 1).map((move) => move.destination));
  const per = replay.reduces ? replay.ranks : 1;
  const content = (
    <>
      <text class="axis" x={left} y={18}>
        {`a square is a rank, ${across} a row; ${deeper()}, the more has arrived`}
      </text>
      {every(rows, 4).map((row) => (
        <text key={row} class="label" x={left - 10} y={34 + row * side + side / 2 + 4} text-anchor="end">
          {row * across}
        </text>
      ))}
      {every(replay.ranks).map((rank) => (
        <rect
          key={rank}
          class={changed.has(rank) ? "pair fresh" : "pair"}
          data-r={rank}
          x={left + (rank % across) * side}
          y={34 + Math.floor(rank / across) * side}
          width={side - 2}
          height={side - 2}
          rx={2}
          fill={fullness(state.datum[rank] === NOTHING ? 0 : replay.count(state, rank) / per)}
        >
          <title>{`rank ${rank}: ${replay.count(state, rank)} of ${per}`}</title>
        </rect>
      ))}
    </>
  );
  return { width: Math.max(width, left + across * side), height: 34 + rows * side + 10, content };
}
