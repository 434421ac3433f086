/** A part of space and time that the reader measures: what it takes, what moves in it, how idle its ranks are. Pure. */

import { clamp } from "../numbers";
import { bytes, percent, plural, seconds } from "../words";
import type { Happening, Transfer } from "./transfers";
import type { Limits, Window } from "./window";

export interface Measured {
  ranks: { first: number; last: number };
  /** Messages of which a part is in it, from or to one of its ranks; and those that begin and end in it. */
  messages: number;
  whole: number;
  /** Chunks that the messages carry. */
  moves: number;
  longest: Transfer | null;
  idle: number;
}

/** The window between two corners, whichever way it was dragged. */
export function between(
  one: { time: number; rank: number },
  other: { time: number; rank: number },
  limits: Limits,
): Window {
  const times = [one.time, other.time].map((time) => clamp(time, 0, limits.duration)).sort((a, b) => a - b);
  const ranks = [one.rank, other.rank].map((rank) => clamp(rank, 0, limits.ranks)).sort((a, b) => a - b);
  return {
    from: times[0],
    to: times[1],
    first: Math.floor(ranks[0]),
    last: Math.max(Math.floor(ranks[0]) + 1, Math.ceil(ranks[1])),
  };
}

/** One edge moved: the end in time, or the last rank. */
export function grown(shown: Window, time: number, ranks: number, limits: Limits): Window {
  return {
    ...shown,
    to: clamp(shown.to + time, shown.from, limits.duration),
    last: clamp(shown.last + ranks, shown.first + 1, limits.ranks),
  };
}

export function measure(what: Happening, transfers: Transfer[], part: Window): Measured {
  const inside = (rank: number): boolean => rank >= part.first && rank < part.last;
  const touched = transfers.filter(
    (one) => one.start < part.to && one.end > part.from && (inside(one.source) || inside(one.destination)),
  );
  const within = touched.filter((one) => one.start >= part.from && one.end <= part.to);
  const lasts = (one: Transfer): number => one.end - one.start;
  let idle = 0;
  for (const one of what.idle)
    if (inside(one.rank)) idle += Math.max(0, Math.min(one.end, part.to) - Math.max(one.start, part.from));
  return {
    ranks: { first: part.first, last: part.last - 1 },
    messages: touched.length,
    whole: within.length,
    moves: touched.reduce((sum, one) => sum + one.moves, 0),
    longest: within.reduce<Transfer | null>((best, one) => (best && lasts(best) >= lasts(one) ? best : one), null),
    idle: idle / ((part.to - part.from) * (part.last - part.first) || 1),
  };
}

/** `12.4 µs, from 31 µs to 43.4 µs, ranks 2 to 5: 14 messages with 896 KiB, …`; `chunk` is the bytes of one, if they are known. */
export function measureInWords(what: Happening, found: Measured, part: Window, chunk: number): string {
  const steps = what.clock === "steps";
  const say = (time: number): string => (steps ? time.toFixed(1) : seconds(time));
  const { first, last } = found.ranks;
  const length = steps ? `${say(part.to - part.from)} steps` : say(part.to - part.from);
  const who = first === last ? `rank ${first}` : `ranks ${first} to ${last}`;
  const load = chunk > 0 ? ` with ${bytes(found.moves * chunk)}` : "";
  const longest =
    found.longest && !steps
      ? ` The longest takes ${seconds(found.longest.end - found.longest.start)} (${found.longest.source}→${found.longest.destination}).`
      : "";
  return `${length}, from ${say(part.from)} to ${say(part.to)}, ${who}: ${plural(found.messages, "message")}${load}, ${found.whole} of them from beginning to end; idle for ${percent(found.idle)} of it.${longest}`;
}
