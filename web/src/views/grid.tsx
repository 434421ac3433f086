/** Where the cells of the grid lie, and the marks inside them. */

import type { JSX } from "preact";
import type { Replay } from "../replay";

export interface Grid {
  width: number;
  height: number;
  left: number;
  top: number;
  pitchX: number;
  pitchY: number;
  cellX: number;
  cellY: number;
  /** The space between two columns, in which arcs run. */
  gap: number;
  narrow: boolean;
  /** A single column, with all the room to its right for arcs. */
  lone: boolean;
  marks: { across: number; size: number; pitch: number; left: number; top: number };
  x(chunk: number): number;
  y(rank: number): number;
}

/** Where a grid is too narrow for what the cells of a wide one show. */
export const isNarrow = (room: number): boolean => room < 560;

const edges = (room: number): { left: number; right: number } =>
  isNarrow(room) ? { left: 30, right: 14 } : { left: 76, right: 28 };

/** The width of the grid itself, without the names of the ranks. */
export function spaceIn(room: number): number {
  const { left, right } = edges(room);
  return Math.max(1, room - left - right);
}

/** `high`: rows are lower if they would not fit into it, but never so low that a number does not. */
export function layOut(replay: Replay, room: number, high = Infinity): Grid {
  const { ranks, width: columns } = replay;
  const narrow = isNarrow(room);
  const space = spaceIn(room);
  const lone = columns === 1;
  const across = !replay.reduces ? 1 : lone ? Math.min(ranks, 16) : marksAcross(ranks, columns);
  const down = Math.ceil(replay.reduces ? ranks / across : 1);
  const pitchX = Math.max(20, Math.min(columns <= 3 ? 320 : replay.reduces ? 150 : 120, space / columns));
  const gap = Math.max(6, Math.min(56, pitchX * 0.3));
  const cellX = lone ? Math.min(space * 0.55, 44 + across * (replay.reduces ? 24 : 60)) : pitchX - gap;
  const pad = Math.max(3, Math.min(9, cellX * 0.1));
  const pitch = Math.min(lone ? 24 : 17, (cellX - 2 * pad) / across);
  const size = Math.max(2, pitch - Math.max(1, pitch * 0.18));
  const tall = replay.reduces ? down * pitch + 2 * pad : Math.min(44, cellX * 0.62);
  // On a phone there is room below, and a finger needs it.
  const cellY = Math.max(narrow ? 30 : 16, Math.min(tall, Math.max(26, (high / ranks) * 0.8)));
  const pitchY = cellY + Math.max(5, Math.min(14, cellY * 0.28));
  // A grid that does not fill the width is centred; a single column with room for its arcs.
  const filled = lone ? cellX + Math.min(space - cellX, 40 + ranks * pitchY * 0.4) : columns * pitchX - gap;
  const used = across * pitch - (pitch - size);
  const marks = {
    across,
    size,
    pitch,
    left: (cellX - used) / 2,
    top: (cellY - (down * pitch - (pitch - size))) / 2,
  };
  return placed(replay, room, filled, { pitchX, pitchY, cellX, cellY, gap, marks });
}

/** The most pixels that a row and a column of shaded cells are given. */
const [HIGHEST, WIDEST] = [24, 160];

/** Cells that are only shaded: as low as it takes to have all ranks in sight. */
export function layOutShaded(replay: Replay, room: number, high: number): Grid {
  const { ranks, width: columns } = replay;
  const space = spaceIn(room);
  const pitchX = Math.min(WIDEST, space / columns);
  const pitchY = Math.max(4, Math.min(HIGHEST, Math.floor(high / ranks)));
  // Few columns leave room for arcs between them.
  const gap = pitchX > 40 ? Math.min(56, pitchX * 0.35) : Math.min(1, pitchX * 0.1);
  const cellX = pitchX - gap;
  const filled = columns === 1 ? cellX + Math.min(space - cellX, 40 + ranks * pitchY * 0.4) : columns * pitchX - gap;
  const marks = { across: 1, size: 0, pitch: 0, left: 0, top: 0 };
  return placed(replay, room, filled, { pitchX, pitchY, cellX, cellY: pitchY - 0.5, gap, marks });
}

/** The narrowest column that can still be seen. */
export const NARROWEST = 3;

type Sizes = Pick<Grid, "pitchX" | "pitchY" | "cellX" | "cellY" | "gap" | "marks">;

function placed(replay: Replay, room: number, filled: number, sizes: Sizes): Grid {
  const { pitchX, pitchY } = sizes;
  const edge = edges(room).left;
  const lone = replay.width === 1;
  const top = 34;
  const left = Math.max(edge, edge + (spaceIn(room) - filled) / 2);
  return {
    ...sizes,
    width: Math.max(room, lone ? 0 : edge + replay.width * pitchX - sizes.gap + 4),
    height: top + replay.ranks * pitchY + 14,
    left,
    top,
    narrow: isNarrow(room),
    lone,
    x: (chunk) => left + chunk * pitchX,
    y: (rank) => top + rank * pitchY,
  };
}

/** Marks form a block about twice as wide as high, so that rows stay low; with few columns they fit on one line. */
function marksAcross(ranks: number, columns: number): number {
  if (columns <= 3 && ranks <= 16) return ranks;
  if (ranks <= 3) return ranks;
  if (ranks <= 16) return 4;
  return Math.ceil(Math.sqrt(ranks));
}

/** A frame around a cell. */
export function Around(props: { grid: Grid; at: { rank: number; chunk: number }; class: string }): JSX.Element {
  const { grid, at } = props;
  const [x, y] = [grid.x(at.chunk) - 2, grid.y(at.rank) - 2];
  return <rect class={props.class} x={x} y={y} width={grid.cellX + 4} height={grid.cellY + 4} rx={6} />;
}
