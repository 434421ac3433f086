/** The grid with more ranks than colours: its cells are not elements but parts of a few paths. */

import type { JSX } from "preact";
import type { Layer } from "../layers";
import { clamp } from "../numbers";
import { NOTHING, type Replay, type State } from "../replay";
import { asked, askFor, focus } from "../state";
import { WAYS } from "../stops";
import type { Grid } from "./grid";

/** Cells, and marks in ink, neighbours drawn together, on a canvas. */
export function denseLayers(replay: Replay, state: State, grid: Grid): Layer[] {
  const [waiting, right, ink, whole]: number[][] = [[], [], [], []];
  const { marks, cellX, cellY } = grid;
  // Complete, or nothing to combine: one block.
  const [insetX, insetY] = replay.reduces ? [marks.left, marks.top] : [0.14 * cellX, 0.14 * cellY];
  for (let cell = 0; cell < state.datum.length; cell++) {
    const { rank, chunk } = replay.place(cell);
    const [x, y] = [grid.x(chunk), grid.y(rank)];
    const middle = y + cellY / 2;
    (replay.asPromised(state, cell) ? right : waiting).push(x, middle, x + cellX, middle);
    if (state.datum[cell] === NOTHING) continue;
    if (!replay.reduces || replay.count(state, cell) === replay.ranks) {
      whole.push(x + insetX, middle, x + cellX - insetX, middle);
      continue;
    }
    const there = replay.contributors(state, cell);
    for (let i = 0; i < there.length; ) {
      let last = i;
      const row = Math.floor(there[i] / marks.across);
      while (
        last + 1 < there.length &&
        there[last + 1] === there[last] + 1 &&
        Math.floor(there[last + 1] / marks.across) === row
      )
        last++;
      const left = x + marks.left + (there[i] % marks.across) * marks.pitch;
      const at = y + marks.top + (row + 0.5) * marks.pitch;
      ink.push(left, at, left + (last - i + 1) * marks.pitch, at);
      i = last + 1;
    }
  }
  return [
    { lines: waiting, colour: "--cell", width: cellY, opacity: 1 },
    { lines: right, colour: "--good-soft", width: cellY, opacity: 1 },
    { lines: whole, colour: "--accent", width: cellY - 2 * insetY, opacity: 1 },
    { lines: ink, colour: "--accent", width: marks.pitch, opacity: 1 },
  ];
}

/** What lies over the canvas: the cells that have changed, and where the pointer is. */
export function DenseCells(props: { replay: Replay; grid: Grid; changed: Set<number> }): JSX.Element {
  const { replay, grid, changed } = props;
  const frames = [...changed].map((cell) => {
    const { rank, chunk } = replay.place(cell);
    return box(grid.x(chunk), grid.y(rank), grid.cellX, grid.cellY);
  });
  const onMove = (event: PointerEvent): { rank: number; chunk: number } | null => {
    const svg = (event.currentTarget as SVGElement).ownerSVGElement!.getBoundingClientRect();
    const chunk = Math.floor((event.clientX - svg.left - grid.left) / grid.pitchX);
    const rank = Math.floor((event.clientY - svg.top - grid.top) / grid.pitchY);
    return chunk >= 0 && chunk < replay.width && rank >= 0 && rank < replay.ranks ? { rank, chunk } : null;
  };
  return (
    <g>
      <path class="cell changed" d={frames.join("")} />
      <rect
        x={grid.left}
        y={grid.top}
        width={grid.pitchX * replay.width}
        height={grid.pitchY * replay.ranks}
        fill="transparent"
        tabindex={0}
        role="button"
        aria-label="Cells: arrow keys choose one, whose parts are then told"
        onKeyDown={(event) => {
          const [down, right] = WAYS[event.key] ?? [0, 0];
          if (!down && !right) return;
          const { rank, chunk } = asked.value ?? { rank: -down, chunk: -right };
          asked.value = {
            rank: clamp(rank + down, 0, replay.ranks - 1),
            chunk: clamp(chunk + right, 0, replay.width - 1),
          };
          event.preventDefault();
          event.stopPropagation();
        }}
        onClick={(event) => {
          const place = onMove(event as unknown as PointerEvent);
          if (place) askFor(place.rank, place.chunk);
        }}
      />
    </g>
  );
}

function box(x: number, y: number, width: number, height: number): string {
  return `M${round(x)} ${round(y)}h${round(width)}v${round(height)}h${round(-width)}z`;
}

const round = (value: number): number => Math.round(value * 100) / 100;

/** The rows and the column of the focus. */
export function Cross(props: { replay: Replay; grid: Grid }): JSX.Element | null {
  const { replay, grid } = props;
  const here = focus.value;
  if (!here) return null;
  return (
    <g class="cross">
      {here.ranks
        ?.filter((rank) => rank < replay.ranks)
        .map((rank) => (
          <rect key={rank} x={grid.left} y={grid.y(rank) - 1} width={grid.pitchX * replay.width} height={grid.pitchY} />
        ))}
      {here.chunk !== undefined && here.chunk < replay.width && (
        <rect x={grid.x(here.chunk) - 1} y={grid.top} width={grid.pitchX} height={grid.pitchY * replay.ranks} />
      )}
    </g>
  );
}
