/** Real numbers for the grid: what every rank brings, and what a cell holds once contributions are added up. Pure. */

import { NOTHING, type Replay, type State } from "./replay";

/** Up to this many ranks numbers are short enough to be read in a cell. */
export const MOST_RANKS = 16;

/** What a rank brings for a datum: one digit, different for neighbours. */
export function given(rank: number, datum: number): number {
  return 1 + ((rank * 4 + datum * 5) % 9);
}

/** The number in a cell; null where it holds nothing. */
export function amountIn(replay: Replay, state: State, cell: number): number | null {
  const datum = state.datum[cell];
  if (datum === NOTHING) return null;
  const doubled = replay.doubled(state, cell);
  return replay.contributors(state, cell).reduce((sum, rank) => sum + given(rank, datum) * (doubled.get(rank) ?? 1), 0);
}

/** `2 + 5 + 8`: the parts of the number in a cell, by rank; a part that came twice stands twice. */
export function sumIn(replay: Replay, state: State, cell: number): string {
  const doubled = replay.doubled(state, cell);
  return replay
    .contributors(state, cell)
    .flatMap((rank) => Array.from({ length: doubled.get(rank) ?? 1 }, () => given(rank, state.datum[cell])))
    .join(" + ");
}
