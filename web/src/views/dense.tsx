/** The grid with more ranks than colours: its cells are not elements but parts of a few paths. */

import type { JSX } from "preact";
import { clamp } from "../numbers";
import { NOTHING, type Replay, type State } from "../replay";
import { asked, askFor, focus } from "../state";
import { WAYS } from "../stops";
import type { Grid } from "./grid";

/** Marks in ink, neighbours drawn together. */
export function DenseMarks(props: { replay: Replay; state: State; grid: Grid; changed: Set<number> }): JSX.Element {
  const { replay, state, grid, changed } = props;
  const frames = ["", "", ""]; // waiting, right, changed
  let ink = "";
  const { marks } = grid;
  for (let cell = 0; cell < state.datum.length; cell++) {
    const { rank, chunk } = replay.place(cell);
    const [x, y] = [grid.x(chunk), grid.y(rank)];
    const kind = changed.has(cell) ? 2 : replay.asPromised(state, cell) ? 1 : 0;
    frames[kind] += box(x, y, grid.cellX, grid.cellY);
    if (state.datum[cell] === NOTHING) continue;
    if (!replay.reduces || replay.count(state, cell) === replay.ranks) {
      // Complete, or nothing to combine: one block.
      const inset = replay.reduces ? [marks.left, marks.top] : [0.14 * grid.cellX, 0.14 * grid.cellY];
      ink += box(x + inset[0], y + inset[1], grid.cellX - 2 * inset[0], grid.cellY - 2 * inset[1]);
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
      const many = last - i + 1;
      ink += box(
        x + marks.left + (there[i] % marks.across) * marks.pitch,
        y + marks.top + row * marks.pitch,
        many * marks.pitch,
        marks.pitch,
      );
      i = last + 1;
    }
  }
  const onMove = (event: PointerEvent): { rank: number; chunk: number } | null => {
    const svg = (event.currentTarget as SVGElement).ownerSVGElement!.getBoundingClientRect();
    const chunk = Math.floor((event.clientX - svg.left - grid.left) / grid.pitchX);
    const rank = Math.floor((event.clientY - svg.top - grid.top) / grid.pitchY);
    return chunk >= 0 && chunk < replay.width && rank >= 0 && rank < replay.ranks ? { rank, chunk } : null;
  };
  return (
    <g>
      <path class="cell" d={frames[0]} />
      <path class="cell right" d={frames[1]} />
      <path class="cell changed" d={frames[2]} />
      <path class="ink" d={ink} />
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
