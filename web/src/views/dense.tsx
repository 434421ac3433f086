/** The grid with more ranks than colours: its cells are shaded, on a canvas. */

import type { JSX } from "preact";
import type { Layer } from "../layers";
import { clamp } from "../numbers";
import { NOTHING, type Replay, type State } from "../replay";
import { asked, askFor, focus, hovered } from "../state";
import { WAYS } from "../stops";
import { listed } from "../words";
import { blockLayers } from "./crowd";
import type { Grid } from "./grid";

/** The more contributions a cell has, the deeper its shade. */
export function denseLayers(replay: Replay, state: State, grid: Grid): Layer[] {
  const per = replay.reduces ? replay.ranks : 1;
  const shares = Array.from(state.datum, (datum, cell) =>
    datum === NOTHING ? 0 : Math.min(per, replay.count(state, cell)) / per,
  );
  return blockLayers({ rows: replay.ranks, columns: replay.width, shares }, grid);
}

/** What lies over the canvas: the cells that have changed, and where the pointer is. */
export function DenseCells(props: { replay: Replay; grid: Grid; changed: Set<number> }): JSX.Element {
  const { replay, grid, changed } = props;
  const frames = [...changed].map((cell) => {
    const { rank, chunk } = replay.place(cell);
    return box(grid.x(chunk), grid.y(rank), grid.cellX, grid.cellY);
  });
  const placeOf = (event: MouseEvent): { rank: number; chunk: number } | null => {
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
        onPointerMove={(event) => {
          const place = placeOf(event);
          hovered.value = place && { ranks: [place.rank], chunk: place.chunk };
          event.stopPropagation();
        }}
        onPointerLeave={() => (hovered.value = null)}
        onClick={(event) => {
          const place = placeOf(event);
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

/** The row and the column of the focus; of a single cell, whose parts are in it. */
export function Cross(props: { replay: Replay; state: State; grid: Grid }): JSX.Element | null {
  const { replay, state, grid } = props;
  const here = focus.value;
  if (!here) return null;
  const ranks = here.ranks?.filter((rank) => rank < replay.ranks) ?? [];
  const chunk = here.chunk !== undefined && here.chunk < replay.width ? here.chunk : null;
  return (
    <g class="cross">
      {ranks.map((rank) => (
        <rect key={rank} x={grid.left} y={grid.y(rank) - 1} width={grid.pitchX * replay.width} height={grid.pitchY} />
      ))}
      {chunk !== null && (
        <rect x={grid.x(chunk) - 1} y={grid.top} width={grid.pitchX} height={grid.pitchY * replay.ranks} />
      )}
      {ranks.length === 1 && chunk !== null && (
        <text class="axis" x={4} y={12}>
          {partsOf(replay, state, ranks[0], chunk)}
        </text>
      )}
    </g>
  );
}

/** `rank 3, chunk 1: the parts of ranks 0–3`. */
function partsOf(replay: Replay, state: State, rank: number, chunk: number): string {
  const cell = rank * replay.width + chunk;
  const where = `rank ${rank}, chunk ${chunk}:`;
  if (state.datum[cell] === NOTHING) return `${where} nothing yet`;
  if (!replay.reduces) return `${where} ${replay.nameOf(state.datum[cell])}`;
  const there = replay.contributors(state, cell);
  return there.length === replay.ranks
    ? `${where} the parts of all ranks`
    : `${where} the ${there.length === 1 ? "part of rank" : "parts of ranks"} ${listed(there)}`;
}
