/** What happened when, on one of three clocks: steps, modelled seconds, or seconds of a real run. Pure. */

import type { Clock, Entry, TraceEvent } from "../document";
import type { Move, Replay } from "../replay";

/** One message. Between `start` and `sent` its bytes leave, between `first` and `arrived` they come in. */
export interface Transfer {
  source: number;
  destination: number;
  step: number;
  /** The first chunk that it carries; −1 if that is unknown, as in a recording. */
  chunk: number;
  /** How many chunks it carries; of a recording, the part of a chunk. */
  moves: number;
  /** Its chunks at the source and at the destination, in simulations. */
  reads: number[];
  writes: number[];
  reduces: boolean;
  start: number;
  sent: number;
  first: number;
  arrived: number;
  /** From `landed` to `end` it is combined; the same where it is copied. */
  landed: number;
  end: number;
  critical: boolean;
}

export interface Interval {
  rank: number;
  start: number;
  end: number;
}

export interface Happening {
  clock: Clock;
  duration: number;
  transfers: Transfer[];
  /** Only of real runs: what a rank did itself. */
  work: (Interval & { step: number; reduces: boolean; what: string; peers: number[] })[];
  idle: Interval[];
  /** The time at which each step was done everywhere; the first entry is the beginning. */
  doneAt: number[];
}

/** The clocks that there is data for. */
export function clocksOf(entry: Entry): Clock[] {
  const clocks: Clock[] = ["steps"];
  if (entry.timeline) clocks.push("modelled");
  if (entry.recording?.events.length) clocks.push("measured");
  return clocks;
}

export function happening(entry: Entry, replay: Replay, wanted: Clock): Happening {
  const clock = clocksOf(entry).includes(wanted) ? wanted : "steps";
  if (clock === "measured") return measured(entry, replay);
  if (clock === "steps" && replay.size > MOST) return onlyIdle(replay);
  const transfers = clock === "modelled" ? modelled(entry, replay) : stepped(replay);
  const duration = clock === "modelled" ? entry.timeline!.duration : replay.steps;
  const doneAt =
    clock === "steps" ? Array.from({ length: replay.steps + 1 }, (_, i) => i) : ends(transfers, replay.steps);
  const busy = transfers.flatMap((one) => [
    { rank: one.source, start: one.start, end: clock === "steps" ? Math.floor(one.start) + 1 : one.sent },
    { rank: one.destination, start: clock === "steps" ? Math.floor(one.start) : one.first, end: one.arrived },
    { rank: one.destination, start: one.landed, end: clock === "steps" ? Math.ceil(one.end) : one.end },
  ]);
  return { clock, duration, transfers, work: [], idle: gaps(busy, replay.ranks, duration), doneAt };
}

/** With more moves than this, on the clock of steps, only idle times are computed at once: see `between`. */
const MOST = 200_000;

/** The messages that are under way between two times: all that are known, or those of the steps in question. */
export function between(what: Happening, replay: Replay, from: number, to: number): Transfer[] {
  if (what.clock !== "steps" || replay.size <= MOST) return what.transfers;
  return stepped(replay, Math.max(0, Math.floor(from)), Math.min(replay.steps, Math.ceil(to)));
}

function onlyIdle(replay: Replay): Happening {
  const idle: Interval[] = [];
  const since = new Int32Array(replay.ranks).fill(-1); // the step since which a rank is idle
  const close = (rank: number, end: number): void => {
    if (since[rank] >= 0) idle.push({ rank, start: since[rank], end });
    since[rank] = -1;
  };
  for (let step = 0; step < replay.steps; step++) {
    const busy = new Uint8Array(replay.ranks);
    for (const [, , source, destination] of replay.schedule.steps[step]) busy[source] = busy[destination] = 1;
    for (let rank = 0; rank < replay.ranks; rank++) {
      if (busy[rank]) close(rank, step);
      else if (since[rank] < 0) since[rank] = step;
    }
  }
  for (let rank = 0; rank < replay.ranks; rank++) close(rank, replay.steps);
  const doneAt = Array.from({ length: replay.steps + 1 }, (_, i) => i);
  return { clock: "steps", duration: replay.steps, transfers: [], work: [], idle, doneAt };
}

/** On the clock of steps, durations are unknown: every message has the same shape. */
function stepped(replay: Replay, from = 0, to = replay.steps): Transfer[] {
  const transfers: Transfer[] = [];
  for (let step = from; step < to; step++) {
    const messages = new Map<number, Transfer>();
    for (const move of replay.moves(step)) {
      const key = move.source * replay.ranks + move.destination;
      const known = messages.get(key);
      if (known) {
        known.moves++;
        known.reduces ||= move.reduces;
      } else {
        const times = { start: step + 0.06, sent: step + 0.36, first: step + 0.5, arrived: step + 0.8 };
        messages.set(key, { ...begin(move), ...times, landed: step + 0.8, end: step + 0.8, critical: false });
      }
    }
    for (const one of messages.values()) {
      if (one.reduces) one.end = step + 0.94;
      transfers.push(one);
    }
  }
  return transfers;
}

type Begin = Pick<Transfer, "source" | "destination" | "step" | "chunk" | "moves" | "reads" | "writes" | "reduces">;

function begin(move: Move): Begin {
  const { source, destination, step, chunk, reduces } = move;
  return { source, destination, step, chunk, moves: 1, reads: NONE, writes: NONE, reduces };
}

const NONE: number[] = [];

/** The moves that a message carries: from its first one on, those between the same ranks. */
function carried(replay: Replay, first: Move, many: number): Pick<Transfer, "reads" | "writes"> {
  const reads: number[] = [];
  const writes: number[] = [];
  const rows = replay.schedule.steps[first.step];
  for (let i = replay.placeIn(first); i < rows.length && reads.length < many; i++) {
    const [, chunk, source, destination, into] = rows[i];
    if (source !== first.source || destination !== first.destination) continue;
    reads.push(chunk);
    writes.push(into);
  }
  return { reads, writes };
}

function modelled(entry: Entry, replay: Replay): Transfer[] {
  const line = entry.timeline!;
  const critical = new Set(line.critical);
  return line.move.map((number, i) => ({
    ...begin(replay.move(number)),
    ...carried(replay, replay.move(number), line.moves[i]),
    moves: line.moves[i],
    start: line.start[i],
    sent: line.sent[i],
    first: line.arrived[i] - (line.sent[i] - line.start[i]),
    arrived: line.arrived[i],
    landed: line.landed[i],
    end: line.end[i],
    critical: critical.has(i),
  }));
}

/** A real run: the last of several calls, when everything was warm. */
function measured(entry: Entry, replay: Replay): Happening {
  const all = entry.recording!.events;
  const last = Math.max(...all.map((event) => event.call ?? 0));
  const events = all.filter((event) => (event.call ?? 0) === last);
  const zero = Math.min(...events.map((event) => event.start));
  const work = events.map((event) => ({
    rank: event.rank,
    start: (event.start + event.waited - zero) * 1e-9,
    end: (event.start + event.waited + event.worked - zero) * 1e-9,
    step: event.step,
    reduces: event.what.startsWith("reduce"),
    what: event.what,
    peers: event.peers,
  }));
  const duration = Math.max(...work.map((one) => one.end));
  const doneAt = [0];
  for (let step = 0; step < replay.steps; step++) {
    const ended = work.filter((one) => one.step === step).map((one) => one.end);
    doneAt.push(Math.max(doneAt[step], ...ended));
  }
  // A chunk is pulled segment by segment: each is a part of a move.
  const whole = new Map<string, number>();
  const instruction = (event: TraceEvent): string => `${event.rank} ${event.instruction}`;
  for (const event of events) whole.set(instruction(event), (whole.get(instruction(event)) ?? 0) + event.bytes);
  const pulls = work.flatMap((one, i) =>
    one.peers.map((peer) => {
      const { rank, step, reduces, start, end } = one;
      const times = { start, sent: start, first: end, arrived: end, landed: end, end };
      return {
        source: peer,
        destination: rank,
        step,
        chunk: -1,
        moves: events[i].bytes / whole.get(instruction(events[i]))! || 1,
        reads: NONE,
        writes: NONE,
        reduces,
        ...times,
        critical: false,
      };
    }),
  );
  return { clock: "measured", duration, transfers: pulls, work, idle: gaps(work, replay.ranks, duration), doneAt };
}

function ends(transfers: Transfer[], steps: number): number[] {
  const done = new Array<number>(steps + 1).fill(0);
  for (const one of transfers) done[one.step + 1] = Math.max(done[one.step + 1], one.end);
  for (let step = 1; step <= steps; step++) done[step] = Math.max(done[step], done[step - 1]);
  return done;
}

/** When each rank is idle: the gaps between its busy intervals. */
export function gaps(busy: Interval[], ranks: number, duration: number): Interval[] {
  const found: Interval[] = [];
  const mine: Interval[][] = Array.from({ length: ranks }, () => []);
  for (const one of busy) mine[one.rank].push(one);
  const least = duration * 1e-6;
  mine.forEach((intervals, rank) => {
    let reached = 0;
    for (const one of intervals.sort((a, b) => a.start - b.start)) {
      if (one.start - reached > least) found.push({ rank, start: reached, end: one.start });
      reached = Math.max(reached, one.end);
    }
    if (duration - reached > least) found.push({ rank, start: reached, end: duration });
  });
  return found;
}
