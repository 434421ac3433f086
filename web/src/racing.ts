/** What a counter of the race shows at a moment: how far an algorithm is, and what it has moved. Pure. */

import type { Entry } from "./document";
import type { Replay } from "./replay";
import { remembered } from "./remembered";
import { routesOf } from "./source";
import type { Happening, Transfer } from "./views/transfers";

export interface Runner {
  /** How the race calls it. */
  name: string;
  entry: Entry;
  replay: Replay;
  what: Happening;
  /** Time, and the share of promised data that has arrived, at the end of each sampled step. */
  curve: { time: number; share: number }[];
  /** On the clock of steps: chunks through the busiest port after each step, and the share of ports in use in each. */
  ports: { through: number[]; used: number[] } | null;
}

const LOOKED_AT = 128; // steps that are sampled; if there are more, evenly spaced ones

export function runner(entry: Entry, replay: Replay, what: Happening): Runner {
  const name = what.clock === "measured" ? "the recording" : replay.schedule.algorithm;
  const every = Math.max(
    1,
    Math.ceil(replay.steps / LOOKED_AT),
    Math.ceil((replay.steps * replay.ranks * replay.width) / 40_000_000),
  );
  const curve: Runner["curve"] = [];
  for (let step = 0; step <= replay.steps; step++) {
    if (step % every && step !== replay.steps) continue;
    curve.push({ time: what.doneAt[step], share: replay.arrived(replay.at(step)) });
  }
  return { name, entry, replay, what, curve, ports: what.clock === "steps" ? portsOf(replay) : null };
}

function portsOf(replay: Replay): { through: number[]; used: number[] } {
  const chunks = new Float64Array(2 * replay.ranks); // sending ports, then receiving ones
  const [through, used] = [[0], [] as number[]];
  let most = 0;
  for (const step of replay.schedule.steps) {
    const busy = new Set<number>();
    for (const [, , source, destination] of step) {
      if (source === destination) continue;
      for (const port of [source, replay.ranks + destination]) {
        busy.add(port);
        most = Math.max(most, ++chunks[port]);
      }
    }
    through.push(most);
    used.push(busy.size / (2 * replay.ranks));
  }
  return { through, used };
}

export interface Placed {
  place: number;
  name: string;
  seconds: number;
  /** Whether others share the place. */
  tied: boolean;
}

const CLOSE = 1.01; // as `allfold plan` judges: within 1 % nobody is faster

/** Who comes in where, of those that are right; who is as fast as the first of a place shares it. */
export function placesOf(runners: { name: string; seconds: number; ok: boolean }[]): Placed[] {
  const sorted = runners.filter((one) => one.ok).sort((a, b) => a.seconds - b.seconds);
  const placed: Placed[] = [];
  let first = 0;
  sorted.forEach(({ name, seconds }, i) => {
    if (seconds > sorted[first].seconds * CLOSE) first = i;
    placed.push({ place: first + 1, name, seconds, tied: false });
  });
  for (const one of placed) one.tied = placed.filter((other) => other.place === one.place).length > 1;
  return placed;
}

/** Moments at which is known what has gone through every port, and what is under way until the next. */
interface Times {
  length: number;
  through: Float64Array[];
  under: Transfer[][];
}

const MOMENTS = 256;

const timesOf = remembered((what: Happening, ranks: number): Times => {
  const length = what.duration / MOMENTS || 1;
  const under: Transfer[][] = Array.from({ length: MOMENTS }, () => []);
  const place = (time: number): number => Math.max(0, Math.min(MOMENTS - 1, Math.floor(time / length)));
  for (const one of what.transfers) {
    if (one.source === one.destination) continue;
    for (let i = place(one.start); i <= place(one.arrived); i++) under[i].push(one);
  }
  const through: Float64Array[] = [];
  let here = new Float64Array(2 * ranks);
  under.forEach((some, i) => {
    through.push(here);
    here = here.slice();
    for (const one of some) carry(here, ranks, one, i * length, (i + 1) * length);
  });
  return { length, through, under };
});

/** Add the moves that go through the ports of a message between two times. */
function carry(ports: Float64Array, ranks: number, one: Transfer, from: number, to: number): void {
  ports[one.source] += one.moves * (part(to, one.start, one.sent) - part(from, one.start, one.sent));
  ports[ranks + one.destination] += one.moves * (part(to, one.first, one.arrived) - part(from, one.first, one.arrived));
}

const momentAt = (times: Times, now: number): number =>
  Math.max(0, Math.min(MOMENTS - 1, Math.floor(now / times.length)));

/** Bytes that have gone through the busiest port, as a multiple of S. */
export function busiestPort(one: Runner, now: number): number {
  if (!one.replay.promise.carries_data) return 0; // signals carry no bytes
  if (one.ports) return one.ports.through[Math.floor(now * (1 + 1e-9))] / one.replay.schedule.chunks;
  const times = timesOf(one.what, one.replay.ranks);
  const i = momentAt(times, now);
  const ports = times.through[i].slice();
  for (const transfer of times.under[i]) carry(ports, one.replay.ranks, transfer, i * times.length, now);
  return Math.max(0, ...ports) / one.replay.schedule.chunks;
}

/** When links begin and cease to carry something, and how many do from each such moment on. */
const usageOf = remembered((one: Runner): { times: number[]; busy: number[] } => {
  const { ranks } = one.replay;
  const routes = one.entry.links ? routesOf(one.entry) : null;
  const changes: [time: number, link: number, by: number][] = [];
  for (const { source, destination, start, arrived } of one.what.transfers) {
    if (source === destination || arrived <= start) continue;
    for (const link of routes?.(source, destination) ?? [source, ranks + destination])
      changes.push([start, link, 1], [arrived, link, -1]);
  }
  changes.sort((a, b) => a[0] - b[0]);
  const carries = new Map<number, number>();
  const usage = { times: [-Infinity], busy: [0] };
  let busy = 0;
  for (const [time, link, by] of changes) {
    const before = carries.get(link) ?? 0;
    carries.set(link, before + by);
    busy += Number(before + by > 0) - Number(before > 0);
    const last = usage.times.length - 1;
    if (usage.times[last] === time) usage.busy[last] = busy;
    else {
      usage.times.push(time);
      usage.busy.push(busy);
    }
  }
  return usage;
});

/** The share of links that carry something now; of ports, if routes or times are unknown. */
export function linksInUse(one: Runner, now: number): number {
  if (one.ports) return one.ports.used[Math.floor(now)] ?? 0;
  const { times, busy } = usageOf(one);
  let [low, high] = [0, times.length];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (times[middle] <= now) low = middle;
    else high = middle;
  }
  const { links } = one.entry;
  return busy[low] / (links && routesOf(one.entry) ? links.length : 2 * one.replay.ranks);
}

/** The share of promised data that has arrived, interpolated between the ends of steps. */
export function shareAt(one: Runner, now: number): number {
  const { curve } = one;
  for (let i = 1; i < curve.length; i++) {
    if (curve[i].time <= now) continue;
    const [before, after] = [curve[i - 1], curve[i]];
    return before.share + (after.share - before.share) * part(now, before.time, after.time);
  }
  return curve[curve.length - 1].share;
}

function part(now: number, from: number, to: number): number {
  if (now >= to) return 1;
  return now <= from ? 0 : (now - from) / (to - from);
}
