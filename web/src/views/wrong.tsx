/** What is wrong with a schedule, shown at the cell itself. */

import type { JSX } from "preact";
import type { Entry } from "../document";
import type { Fault, Replay, State } from "../replay";
import { Around, type Grid } from "./grid";

/** The cells that are wrong so far; the one that the proof names shows what is wrong with it. */
export function Wrong(props: { entry: Entry; replay: Replay; state: State; grid: Grid }): JSX.Element | null {
  const { entry, replay, state, grid } = props;
  if (entry.proof.ok) return null;
  const faults = replay.faults().filter((fault) => fault.step < state.done);
  const blamed = blame(entry);
  const cells = new Map<number, Fault>(); // by cell, what went wrong first
  for (const fault of faults) {
    const cell = fault.rank * replay.width + fault.chunk;
    if (!cells.has(cell)) cells.set(cell, fault);
  }
  const named = blamed && state.done > (entry.proof.step ?? 0) ? blamed : null;
  if (!cells.size && !named) return null;
  const at = named ?? { rank: faults[0].rank, chunk: faults[0].chunk };
  const cell = at.rank * replay.width + at.chunk;
  // As the proof says it: of the moment at which it went wrong, not of the step that is shown.
  const says = cells.get(cell)?.sentence ?? replay.complaint(state, cell);
  const [x, y] = [grid.x(at.chunk), grid.y(at.rank)];
  // The label goes below its cell, or above it in the last row, and stays inside the picture.
  const below = at.rank < replay.ranks - 1 || grid.height - y - grid.cellY > 24;
  const middle = Math.max(grid.left + 4, Math.min(grid.width - 8 - says.length * 7.8, x));
  const base = below ? y + grid.cellY + 17 : y - 9;
  return (
    <g class="wrong" data-blamed={`${at.rank} ${at.chunk}`}>
      {[...cells.keys()].map((one) => {
        const place = replay.place(one);
        return (
          <rect
            key={one}
            class="others"
            x={grid.x(place.chunk)}
            y={grid.y(place.rank)}
            width={grid.cellX}
            height={grid.cellY}
            rx={4}
          />
        );
      })}
      <Around grid={grid} at={at} class="blamed" />
      {says && (
        <>
          <rect class="says-ground" x={middle - 3} y={base - 13} width={says.length * 7.8 + 6} height={18} rx={4} />
          <text class="says" x={middle} y={base}>
            {says}
          </text>
        </>
      )}
    </g>
  );
}

function blame(entry: Entry): { rank: number; chunk: number } | null {
  const { rank, chunk } = entry.proof;
  return rank != null && chunk != null ? { rank, chunk } : null;
}

export function wrongLines(replay: Replay, entry: Entry, done: number): string[] {
  if (entry.proof.ok) return [];
  const wrong = replay.faults().filter((fault) => fault.step < done);
  const lines = wrong.slice(0, 8).map((fault) => `Wrong: rank ${fault.rank} chunk ${fault.chunk} ${fault.sentence}.`);
  return wrong.length > 8 ? [...lines, `${wrong.length - 8} more cells are wrong.`] : lines;
}
