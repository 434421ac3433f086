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

/** `high`: rows are lower if they would not fit into it, but never so low that a number does not. */
export function layOut(replay: Replay, room: number, coloured: number, high = Infinity): Grid {
  const { ranks, width: columns } = replay;
  const narrow = room < 560;
  const dense = ranks > coloured;
  const edge = narrow ? 30 : 76;
  const top = 34;
  const space = Math.max(1, room - edge - (narrow ? 14 : 28));
  const lone = columns === 1;
  const across = !replay.reduces ? 1 : columns === 1 ? Math.min(ranks, 16) : marksAcross(ranks, columns);
  const down = Math.ceil(replay.reduces ? ranks / across : 1);
  const pitchX = Math.max(dense ? 9 : 20, Math.min(columns <= 3 ? 320 : replay.reduces ? 150 : 120, space / columns));
  const gap = dense ? Math.min(3, pitchX * 0.2) : Math.max(6, Math.min(56, pitchX * 0.3));
  const cellX = lone ? Math.min(space * 0.55, 44 + across * (!replay.reduces ? 60 : dense ? 10 : 24)) : pitchX - gap;
  const pad = dense ? Math.min(1.5, cellX * 0.08) : Math.max(3, Math.min(9, cellX * 0.1));
  const pitch = Math.min(dense ? 10 : lone ? 24 : 17, (cellX - 2 * pad) / across);
  const size = dense ? pitch : Math.max(2, pitch - Math.max(1, pitch * 0.18));
  const tall = replay.reduces ? down * pitch + 2 * pad : Math.min(44, cellX * 0.62);
  const cellY = Math.min(Math.max(dense ? 6 : 16, tall), Math.max(26, (high / ranks) * 0.8));
  const pitchY = cellY + (dense ? gap : Math.max(5, Math.min(14, cellY * 0.28)));
  const wide = Math.max(room, lone ? 0 : edge + columns * pitchX + 8);
  // A grid that does not fill the width is centred; a single column with room for its arcs.
  const filled = lone ? cellX + Math.min(space - cellX, 40 + ranks * pitchY * 0.4) : columns * pitchX - gap;
  const left = Math.max(edge, edge + (space - filled) / 2);
  const used = across * pitch - (dense ? 0 : pitch - size);
  return {
    width: wide,
    height: top + ranks * pitchY + 14,
    left,
    top,
    pitchX,
    pitchY,
    cellX,
    cellY,
    gap,
    narrow,
    lone,
    marks: {
      across,
      size,
      pitch,
      left: (cellX - used) / 2,
      top: (cellY - (down * pitch - (dense ? 0 : pitch - size))) / 2,
    },
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
