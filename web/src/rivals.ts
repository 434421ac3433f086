/** Against whom an algorithm races: chosen by what all of them take, and why. Pure. */

import type { Case } from "./document";

export const MOST_RIVALS = 3;

export interface Rival {
  name: string;
  why: string;
}

/** The algorithms of a case for the buffer size nearest to this one, fastest first; empty without planned times. */
function fastest(one: Case, size: number, among: string[]): string[] {
  const near = one.sizes.reduce((best, other, i) => {
    const far = (value: number): number => Math.abs(Math.log2((value || 1) / (size || 1)));
    return far(other) < far(one.sizes[best]) ? i : best;
  }, 0);
  return one.algorithms
    .filter(({ name, times }) => among.includes(name) && times[near] !== undefined)
    .sort((a, b) => a.times[near] - b.times[near])
    .map(({ name }) => name);
}

/**
 * The best for this size, the best for small and for large buffers, and the slowest; each once, at most three.
 *
 * Without planned times: the others in the order in which they are listed.
 */
export function rivalsOf(algorithm: string, others: string[], one: Case | null, size: number): Rival[] {
  const known = one && one.winners.length ? one : null;
  if (!known) return others.slice(0, MOST_RIVALS - 1).map((name) => ({ name, why: "" }));
  const here = fastest(known, size, [algorithm, ...others]);
  const best = here.find((name) => name !== algorithm);
  const ends = [known.sizes[0], known.sizes[known.sizes.length - 1]].map((end) => fastest(known, end, others)[0]);
  const wanted: [string | undefined, string][] = [
    [best, here[0] === algorithm ? "second for this size" : "the fastest for this size"],
    [here[here.length - 1], "the slowest for this size"],
    [ends[0], "the fastest for small buffers"],
    [ends[1], "the fastest for large buffers"],
  ];
  const chosen: Rival[] = [];
  for (const [name, why] of wanted)
    if (name && name !== algorithm && !chosen.some((rival) => rival.name === name)) chosen.push({ name, why });
  return chosen.slice(0, MOST_RIVALS);
}
