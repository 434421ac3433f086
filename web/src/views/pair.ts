/** Two schedules on one clock. */

import type { Clock, Entry } from "../document";
import type { Opponent } from "../source";
import type { Side } from "../why";
import { idleShare } from "./lanes";
import { clocksOf, type Happening } from "./transfers";

export interface Runs extends Side {
  what: Happening;
}

export interface Pair {
  key: string;
  sides: [Runs, Runs];
  /** Whether the clock is that of steps, which are no times. */
  inSteps: boolean;
  longest: number;
  /** The moments at which a step of either is done, as parts of the longest time. */
  stops: number[];
}

/** In simulated time if both are simulated, otherwise in steps; a recording beside the simulation. */
export function pairOf(
  entry: Entry,
  other: Opponent,
  happeningOf: (entry: Entry, clock: Clock) => Happening,
): Pair | null {
  if (!other.entry) return null;
  const pick = (one: Entry): Clock => (clocksOf(one).includes("modelled") ? "modelled" : "steps");
  const inSteps = !other.measured && [entry, other.entry].some((one) => pick(one) === "steps");
  const side = (one: Entry, name: string, measured: boolean): Runs => {
    const what = happeningOf(one, measured ? "measured" : inSteps ? "steps" : pick(one));
    const { duration, doneAt } = what;
    return { name, entry: one, measured, duration, doneAt, idle: idleShare(what, one.schedule.ranks), what };
  };
  const own = other.measured ? "simulated" : entry.schedule.algorithm;
  const sides: [Runs, Runs] = [
    side(entry, own === other.name ? `${own} here` : own, false),
    side(other.entry, other.name, other.measured),
  ];
  const longest = Math.max(...sides.map((one) => one.duration), 1e-12);
  const moments = sides.flatMap((one) => one.what.doneAt.map((at) => at / longest));
  const stops = [...new Set(moments)].sort((a, b) => a - b);
  return { key: `${entry.key} ${other.name} ${other.entry.key}`, sides, inSteps, longest, stops };
}

/** Where a side stands at a moment: the steps that are done, and how far the next one is. */
export function placeAt({ doneAt }: Happening, now: number): { done: number; part: number } {
  let done = 0;
  while (done + 1 < doneAt.length && doneAt[done + 1] <= now * (1 + 1e-9)) done++;
  if (done + 1 >= doneAt.length) return { done, part: 0 };
  const span = doneAt[done + 1] - doneAt[done];
  return { done, part: span > 0 ? Math.max(0, (now - doneAt[done]) / span) : 0 };
}
