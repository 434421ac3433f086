/**
 * "What if": the time of an algorithm on a flat network, for any latency, bandwidth and combining speed. Pure.
 *
 * It is what Python's `price` computes for that network, from the same figures (`flat` in the document); a test holds
 * both equal.
 */

import type { Flat } from "./document";

export interface Figures {
  /** Seconds that a port takes to start a message (α). */
  latency: number;
  /** Bytes per second through a port (1/β) and through a rank's arithmetic (1/γ). */
  bandwidth: number;
  reduction: number;
}

interface Price {
  seconds: number;
  segments: number;
}

const SMALLEST_SEGMENT = 4096; // as in Python's `load`
const MOST_SEGMENTS = 65_536;
const CLOSE = 1.01;

/** The time with the fewest segments that are within 1 % of the best. */
export function priceOf(flat: Flat, size: number, figures: Figures): Price {
  const time = (segments: number): number => inSegments(flat, size, segments, figures);
  let low = 1;
  let high = Math.floor(Math.min(MOST_SEGMENTS, Math.max(1, (flat.largest * size) / SMALLEST_SEGMENT)));
  while (low < high) {
    const middle = Math.floor((low + high) / 2);
    if (time(middle) <= time(middle + 1)) high = middle;
    else low = middle + 1;
  }
  const enough = CLOSE * time(low);
  let least = 1;
  let most = low;
  while (least < most) {
    const middle = Math.floor((least + most) / 2);
    if (time(middle) <= enough) most = middle;
    else least = middle + 1;
  }
  return { seconds: time(least), segments: least };
}

/** The time without segments: what a lesson derives by hand. */
export const timeOf = (flat: Flat, size: number, figures: Figures): number => inSegments(flat, size, 1, figures);

/** One segment takes the sum of all steps; the others follow at the interval of the busiest port or rank. */
function inSegments(flat: Flat, size: number, segments: number, { latency, bandwidth, reduction }: Figures): number {
  const part = size / segments;
  let seconds = 0;
  for (const [times, starts, bytes, combined, locally] of flat.steps) {
    const path = starts * latency + (bytes * part) / bandwidth + (combined * part) / reduction;
    seconds += times * (path + Math.max(0, (locally * part) / reduction - path));
  }
  let interval = (flat.combined * part) / reduction;
  for (const [starts, bytes] of flat.ports)
    interval = Math.max(interval, starts * latency + (bytes * part) / bandwidth);
  return seconds + (segments - 1) * interval;
}

interface Contender {
  name: string;
  seconds: number;
  /** Steps times segments: of algorithms that are as good as each other, the one with the fewest starts wins. */
  starts: number;
}

/** As `allfold plan` chooses: the fastest, or of those within 1 % of it the one with the fewest starts. */
export function winnerOf(contenders: Contender[]): Contender | null {
  const sorted = [...contenders].sort((a, b) => a.seconds - b.seconds);
  const close = sorted.filter((one) => one.seconds <= CLOSE * sorted[0].seconds);
  return close.sort((a, b) => a.starts - b.starts)[0] ?? null;
}

/** Every algorithm of a case on the flat network. */
export function contendersOf(algorithms: { name: string; flat: Flat }[], size: number, figures: Figures): Contender[] {
  return algorithms.map(({ name, flat }) => {
    const { seconds, segments } = priceOf(flat, size, figures);
    return { name, seconds, starts: segments * flat.steps.reduce((sum, [times]) => sum + times, 0) };
  });
}

interface Reign {
  algorithm: string;
  from: number;
  to: number;
}

/** Who wins from which size to which, along sizes in ascending order. */
export function reigns(winners: string[], sizes: number[]): Reign[] {
  const found: Reign[] = [];
  winners.forEach((algorithm, i) => {
    const last = found[found.length - 1];
    if (last) last.to = sizes[i];
    if (last?.algorithm !== algorithm) found.push({ algorithm, from: sizes[i], to: sizes[i] });
  });
  return found;
}
