/** Why one schedule is faster than another: their figures side by side, and one sentence. Pure. */

import type { Entry } from "./document";
import { digits, percent, plural, seconds, timesS } from "./words";

/** One of two sides: a schedule on a clock. */
export interface Side {
  name: string;
  entry: Entry;
  /** Whether its times are those of a recording. */
  measured: boolean;
  /** Seconds; steps where nothing was simulated. */
  duration: number;
  /** The share of the time of all ranks in which they are idle. */
  idle: number;
  /** When each step was done on all ranks; the first entry is the beginning. */
  doneAt: number[];
}

interface Fact {
  what: string;
  values: [string, string];
  /** Which of the two is better; null if neither is. */
  better: 0 | 1 | null;
}

const CLOSE = 1.01; // as `allfold plan` judges: within 1 % nobody is faster

const PARTS: Record<string, string> = {
  startup: "starting messages",
  transfer: "moving bytes",
  latency: "being on the way",
  waiting: "waiting for a rank that is busy",
  combining: "adding",
};

/** The seconds of a simulation's critical path, by what it spends them on; null where there is none. */
const partsOf = (side: Side): Record<string, number> | null =>
  side.measured ? null : (side.entry.timeline?.parts ?? null);

/** Of a recorded run, the steps are compared one by one, if there are not more than this. */
const MOST_STEPS = 16;

const timed = (side: Side): boolean => side.measured || side.entry.timeline !== undefined;

/** What is counted and timed of both, row by row. */
export function factsOf(one: Side, other: Side): Fact[] {
  const row = (
    what: string,
    values: [number | undefined, number | undefined],
    say: (value: number) => string,
  ): Fact[] => {
    const [a, b] = values;
    if (a === undefined || b === undefined) return [];
    const better = a < b * (1 - 1e-9) ? 0 : b < a * (1 - 1e-9) ? 1 : null;
    return [{ what, values: [say(a), say(b)], better }];
  };
  const [a, b] = [one.entry, other.entry];
  const counted = (of: (entry: Entry) => number): [number, number] => [of(a), of(b)];
  const parts = [partsOf(one), partsOf(other)];
  const bothTimed = timed(one) && timed(other);
  const times = bothTimed
    ? [...row("time", [one.duration, other.duration], seconds), ...row("ranks idle", [one.idle, other.idle], percent)]
    : [];
  // A recording has times and nothing else: what is counted would be that of the same schedule.
  if (one.measured !== other.measured)
    return [
      ...times,
      ...(a.counts.steps <= MOST_STEPS
        ? one.doneAt
            .slice(1)
            .flatMap((_, i) => row(`step ${i + 1} done`, [one.doneAt[i + 1], other.doneAt[i + 1]], seconds))
        : []),
    ];
  return [
    ...times,
    ...(parts[0] && parts[1]
      ? Object.entries(PARTS).flatMap(([name, words]) =>
          parts[0]![name] || parts[1]![name] ? row(`… ${words}`, [parts[0]![name], parts[1]![name]], seconds) : [],
        )
      : []),
    ...row("messages on the critical path", [a.timeline?.critical.length, b.timeline?.critical.length], String),
    ...row("time by the plan, in segments", [a.modelled?.seconds, b.modelled?.seconds], seconds),
    ...row(
      "steps",
      counted((entry) => entry.counts.steps),
      String,
    ),
    ...row(
      "rounds",
      counted((entry) => entry.counts.rounds),
      String,
    ),
    ...row(
      "messages",
      counted((entry) => entry.counts.messages),
      String,
    ),
    ...row(
      "bytes in all",
      counted((entry) => entry.counts.bytes),
      timesS,
    ),
    ...row(
      "busiest port",
      counted((entry) => entry.counts.busiest_port_bytes),
      timesS,
    ),
  ];
}

/** `ring is 1.4 times as fast as tree, 188 µs instead of 266 µs, because …` */
export function whyFaster(one: Side, other: Side): string {
  for (const [side, rest] of [
    [one, other],
    [other, one],
  ])
    if (!side.entry.proof.ok)
      return rest.entry.proof.ok
        ? `${side.name} is wrong, so it is not timed; ${rest.name} is proved.`
        : "Both are wrong, so neither is timed.";
  if (one.measured !== other.measured) return modelAndRun(one, other);
  if (!timed(one) || !timed(other)) return inSteps(one, other);
  const [fast, slow] = one.duration <= other.duration ? [one, other] : [other, one];
  const ratio = slow.duration / fast.duration;
  if (!(ratio > CLOSE))
    return `${one.name} and ${other.name} take the same time, ${seconds(fast.duration)}, within 1 %${becauseOf(fast, slow, true)}.`;
  return `${fast.name} is ${digits(ratio)} times as fast as ${slow.name}, ${seconds(fast.duration)} instead of ${seconds(slow.duration)}${becauseOf(fast, slow)}.`;
}

/** What the critical path of the fast one saves most, and what it loses. */
function becauseOf(fast: Side, slow: Side, same = false): string {
  const [mine, theirs] = [partsOf(fast), partsOf(slow)];
  if (!mine || !theirs) return "";
  const saved = Object.keys(PARTS)
    .map((name) => ({ name, by: (theirs[name] ?? 0) - (mine[name] ?? 0) }))
    .sort((a, b) => b.by - a.by);
  const worth = 0.02 * slow.duration;
  const [most, least] = [saved[0], saved[saved.length - 1]];
  const gains = most.by > worth ? reason(most.name, fast, slow, most.by, "less") : "";
  const loses = -least.by > worth ? reason(least.name, fast, slow, -least.by, "more") : "";
  if (same) return gains && loses ? `: ${fast.name} spends ${gains}, and ${loses}` : "";
  if (!gains) return "";
  return `, because it spends ${gains}${loses ? `; it spends ${loses}` : ""}`;
}

/** `31 µs less on starting messages: 4 one after the other instead of 6`. */
function reason(name: string, fast: Side, slow: Side, by: number, how: "less" | "more"): string {
  const [a, b] = [fast.entry, slow.entry];
  const starts = name === "startup" || name === "latency";
  const path = [a.timeline!.critical.length, b.timeline!.critical.length];
  const port = [a.counts.busiest_port_bytes, b.counts.busiest_port_bytes];
  const differ = (pair: number[]): boolean => (how === "less" ? pair[0] < pair[1] * 0.999 : pair[0] > pair[1] * 1.001);
  const facts =
    starts && differ(path)
      ? ` (${plural(path[0], "message")} one after the other, not ${path[1]})`
      : name === "transfer" && differ(port)
        ? ` (its busiest port carries ${timesS(port[0])}, not ${timesS(port[1])})`
        : "";
  return `${seconds(by)} ${how} on ${PARTS[name]}${facts}`;
}

function inSteps(one: Side, other: Side): string {
  const [a, b] = [one.entry.counts.steps, other.entry.counts.steps];
  if (a === b) return `Both take ${plural(a, "step")}; neither was simulated.`;
  const [few, many] = a < b ? [one, other] : [other, one];
  return `${few.name} takes ${plural(few.entry.counts.steps, "step")}, ${many.name} ${many.entry.counts.steps}; they were not simulated.`;
}

/** A simulation beside a recorded run: which is faster, and how long ranks wait in each. */
function modelAndRun(one: Side, other: Side): string {
  const [run, model] = one.measured ? [one, other] : [other, one];
  if (!timed(model)) return `The recorded run took ${seconds(run.duration)}; nothing was simulated to compare it with.`;
  const simulation = `the simulation${run.entry.topology ? ` on ${run.entry.topology.name}` : ""}`;
  const ratio = run.duration / model.duration;
  if (ratio < CLOSE && ratio * CLOSE > 1)
    return `The recorded run and ${simulation} take the same time, ${seconds(run.duration)}, within 1 %.`;
  const times = ratio > 1 ? `took ${digits(ratio)} times as long as` : `was ${digits(1 / ratio)} times as fast as`;
  const idle = [run, model].map((side) => `${Math.round(100 * side.idle)} %`);
  return `The recorded run ${times} ${simulation}, ${seconds(run.duration)} instead of ${seconds(model.duration)}: its ranks were idle for ${idle[0]} of the time, not ${idle[1]}.`;
}
