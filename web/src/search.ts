/** Words such as “rank 7 chunk 3”, “step 4”, “> 50 µs”: what is looked for. Pure. */

import type { Entry } from "./document";

interface Wanted {
  rank?: number;
  chunk?: number;
  step?: number;
  /** Messages that take longer than this, in seconds. */
  longer?: number;
}

const UNITS: Record<string, number> = { ns: 1e-9, us: 1e-6, µs: 1e-6, ms: 1e-3, s: 1 };

/** What the words ask for; an error says what is wrong with them. */
export function wantedIn(words: string, entry: Entry): Wanted {
  const { ranks, chunks, scratch, steps } = entry.schedule;
  const wanted: Wanted = {};
  let rest = words.trim().toLowerCase();
  const take = (pattern: RegExp): string[] | null => {
    const found = rest.match(pattern);
    if (found) rest = rest.replace(pattern, " ");
    return found;
  };
  const longer = take(/>\s*(\d+\.?\d*)\s*(ns|us|µs|ms|s)\b/);
  if (longer) wanted.longer = Number(longer[1]) * UNITS[longer[2]];
  const limits: [key: "rank" | "chunk" | "step", many: number, from: number][] = [
    ["rank", ranks, 0],
    ["chunk", chunks + scratch, 0],
    ["step", steps.length, 1],
  ];
  for (const [key, many, from] of limits) {
    const found = take(new RegExp(`\\b${key}s?\\s*(\\d+)`));
    if (!found) continue;
    const value = Number(found[1]);
    if (value < from || value >= many + from)
      throw new Error(
        many ? `There are ${key}s ${from} to ${many - 1 + from}, no ${key} ${value}.` : `There is no ${key}.`,
      );
    wanted[key] = value;
  }
  if (rest.replace(/[\s,;]/g, "") || !Object.keys(wanted).length)
    throw new Error(`Not understood: “${words.trim()}”. Try rank 7 chunk 3, step 4, or > 50 µs.`);
  return wanted;
}
