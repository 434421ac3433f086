/** The part of space and time that is shown: a range of times and a range of ranks, to be zoomed and moved. Pure. */

import { clamp } from "../numbers";

export interface Window {
  from: number;
  to: number;
  /** Ranks from `first` up to, but not including, `last`; parts of ranks at the edges while it is moved. */
  first: number;
  last: number;
}

/** How far a window can go, and how small it can get. */
export interface Limits {
  duration: number;
  ranks: number;
  /** The shortest time and the fewest ranks. */
  shortest: number;
  fewest: number;
}

const READABLE = 14; // pixels per step at the opening, where all steps would have less than `NARROWEST`
const NARROWEST = 6;
const LINES = 1400; // that can be told apart

export function limitsOf(duration: number, ranks: number, steps: number, high: number): Limits {
  return {
    duration: duration || 1,
    ranks,
    shortest: (duration || 1) / Math.max(1, 2 * steps),
    fewest: Math.min(ranks, Math.max(1, high / 52)),
  };
}

export function whole({ duration, ranks }: Limits): Window {
  return { from: 0, to: duration, first: 0, last: ranks };
}

export const spanOf = (shown: Window): number => shown.to - shown.from;

export function isWhole(shown: Window, limits: Limits): boolean {
  return shown.to - shown.from >= limits.duration * 0.999 && shown.last - shown.first >= limits.ranks * 0.999;
}

/** All of it if its lines can be told apart; otherwise the first ranks and steps, as many as can be. */
export function opened(limits: Limits, steps: number, messages: number, wide: number): Window {
  const all = whole(limits);
  const span = wide / Math.max(1, steps) >= NARROWEST ? 1 : Math.min(1, wide / READABLE / steps);
  const factor = Math.max(1, Math.sqrt((messages * span) / LINES));
  const enough = factor < 1.6 ? 1 : factor;
  return {
    ...all,
    to: Math.max(limits.shortest, (limits.duration * span) / enough),
    last: Math.max(limits.fewest, limits.ranks / enough),
  };
}

/** Nearer by a factor, with one moment and one rank (a fraction of it, too) staying where they are. */
export function zoomed(shown: Window, factor: number, limits: Limits, at: { time: number; rank: number }): Window {
  const [time, ranks] = [shown.to - shown.from, shown.last - shown.first];
  const span = clamp(time / factor, limits.shortest, limits.duration);
  const rows = clamp(ranks / factor, limits.fewest, limits.ranks);
  const from = at.time - ((at.time - shown.from) / time) * span;
  const first = at.rank - ((at.rank - shown.first) / ranks) * rows;
  return inside({ from, to: from + span, first, last: first + rows }, limits);
}

/** A part, as far as it can be shown alone. */
export function reachable(part: Window, limits: Limits): Window {
  const grow = (from: number, to: number, least: number): [number, number] => {
    const more = Math.max(0, least - (to - from)) / 2;
    return [from - more, to + more];
  };
  const [from, to] = grow(part.from, part.to, limits.shortest);
  const [first, last] = grow(part.first, part.last, limits.fewest);
  return inside({ from, to, first, last }, limits);
}

export function moved(shown: Window, time: number, ranks: number, limits: Limits): Window {
  return inside(
    { from: shown.from + time, to: shown.to + time, first: shown.first + ranks, last: shown.last + ranks },
    limits,
  );
}

/** With a moment in its middle, as far as there is anything on both sides. */
export function centred(shown: Window, time: number, limits: Limits): Window {
  return moved(shown, time - (shown.from + shown.to) / 2, 0, limits);
}

/** So that a moment is in sight: unchanged if it is, otherwise with the moment near its left edge. */
export function reaching(shown: Window, time: number, limits: Limits): Window {
  if (time >= shown.from && time <= shown.to) return shown;
  return moved(shown, time - shown.from - 0.1 * (shown.to - shown.from), 0, limits);
}

function inside(wanted: Window, { duration, ranks }: Limits): Window {
  const [span, rows] = [wanted.to - wanted.from, wanted.last - wanted.first];
  const from = clamp(wanted.from, 0, Math.max(0, duration - span));
  const first = clamp(wanted.first, 0, Math.max(0, ranks - rows));
  return { from, to: from + span, first, last: first + rows };
}
