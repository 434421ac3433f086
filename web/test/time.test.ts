import { describe, expect, test } from "vitest";
import type { Entry, TraceEvent } from "../src/document";
import { busiestPort, linksInUse, runner, shareAt } from "../src/racing";
import { Replay, type Replayable } from "../src/replay";
import { placeAt } from "../src/views/pair";
import { clocksOf, gaps, happening } from "../src/views/transfers";
import { fixture } from "./fixture";

type Golden = Replayable;

const all = fixture<Golden>("golden.json");
const golden = all.find(
  ({ schedule }) => schedule.collective === "all_reduce" && schedule.algorithm === "ring" && schedule.ranks === 6,
)!;
const entry = { ...golden } as unknown as Entry;
const replay = new Replay(golden);

describe("on the clock of steps", () => {
  const what = happening(entry, replay, "modelled"); // not simulated, so steps it is

  test("every message is within its step", () => {
    expect(what.clock).toBe("steps");
    expect(what.duration).toBe(10);
    expect(what.transfers).toHaveLength(60);
    for (const one of what.transfers) {
      expect(one.start).toBeGreaterThanOrEqual(one.step);
      expect(one.end).toBeLessThan(one.step + 1);
      expect(one.sent - one.start).toBeCloseTo(one.arrived - one.first, 12);
    }
  });

  test("a ring has no idle rank", () => expect(what.idle).toEqual([]));

  test("the race counts what the schedule sends", () => {
    const one = runner(entry, replay, what);
    expect(placeAt(one.what, 0).done).toBe(0);
    expect(placeAt(one.what, 4.5).done).toBe(4);
    expect(busiestPort(one, 10)).toBeCloseTo(10 / 6, 12);
    expect(busiestPort(one, 0)).toBe(0);
    expect(linksInUse(one, 0.3)).toBe(1);
    expect(linksInUse(one, 10)).toBe(0);
    expect(shareAt(one, 0)).toBeCloseTo(1 / 6, 12);
    expect(shareAt(one, 10)).toBe(1);
    expect(shareAt(one, 9.5)).toBeLessThan(1);
  });
});

test("what has gone through the busiest port is the sum over all messages, at every moment", () => {
  for (const { schedule, ...rest } of all.filter((one) => one.schedule.ranks === 6)) {
    const given = { schedule, ...rest };
    const replay = new Replay(given);
    if (!replay.promise.carries_data || !replay.steps) continue;
    // Times without a rhythm: messages of unequal lengths, which overlap.
    const what = happening(given as unknown as Entry, replay, "steps");
    what.clock = "modelled";
    what.transfers.forEach((one, i) => {
      one.start += 0.37 * (i % 3);
      one.sent = one.start + 0.2 + 0.13 * (i % 5);
      one.first = one.start + 0.3;
      one.arrived = one.first + 0.2 + 0.13 * (i % 5);
      one.end = one.landed = one.arrived;
    });
    what.duration = Math.max(...what.transfers.map((one) => one.end));
    const one = { ...runner(given as unknown as Entry, replay, what), ports: null };
    for (const now of [0, 0.1, 0.9, 1.7, what.duration / 2, what.duration]) {
      const ports = new Map<string, number>();
      const busy = new Set<string>();
      for (const { source, destination, moves, start, sent, first, arrived } of what.transfers) {
        if (source === destination) continue;
        const part = (from: number, to: number): number => Math.max(0, Math.min(1, (now - from) / (to - from)));
        ports.set(`out ${source}`, (ports.get(`out ${source}`) ?? 0) + moves * part(start, sent));
        ports.set(`in ${destination}`, (ports.get(`in ${destination}`) ?? 0) + moves * part(first, arrived));
        if (now >= start && now < arrived) busy.add(`out ${source}`).add(`in ${destination}`);
      }
      const most = Math.max(0, ...ports.values()) / schedule.chunks;
      expect(busiestPort(one, now), `${schedule.collective} ${schedule.algorithm} at ${now}`).toBeCloseTo(most, 9);
      expect(linksInUse(one, now)).toBeCloseTo(busy.size / (2 * replay.ranks), 9);
    }
  }
});

test("a modelled clock takes its times from the simulation", () => {
  const timeline = {
    duration: 2,
    move: [0, 6],
    moves: [1, 1],
    segment: [0, 0],
    ready: [0, 1],
    start: [0, 1],
    sent: [0.4, 1.4],
    arrived: [0.6, 1.6],
    landed: [0.6, 1.7],
    end: [0.9, 2],
    critical: [1],
    idle: [],
  };
  const what = happening({ ...entry, timeline }, replay, "modelled");
  expect(clocksOf({ ...entry, timeline })).toEqual(["steps", "modelled"]);
  expect(what.transfers.map((one) => [one.step, one.critical])).toEqual([
    [0, false],
    [1, true],
  ]);
  expect(what.transfers[0].first).toBeCloseTo(0.2, 12);
  expect(what.doneAt.slice(0, 4)).toEqual([0, 0.9, 2, 2]);
});

test("a measured clock shows the last call, in seconds from its beginning", () => {
  const event = (call: number, rank: number, step: number, start: number): TraceEvent => ({
    call,
    rank,
    step,
    segment: 0,
    instruction: 1,
    what: "reduce 2, chunk 0",
    peers: [1],
    bytes: 8,
    start,
    waited: 100,
    worked: 300,
  });
  const recording = { events: [event(0, 0, 0, 1e6), event(1, 0, 0, 5e6), event(1, 1, 1, 5e6 + 1000)] };
  const what = happening({ ...entry, recording }, replay, "measured");
  expect(what.work).toHaveLength(2);
  expect(what.work[0].start).toBeCloseTo(100e-9, 15);
  expect(what.duration).toBeCloseTo(1400e-9, 15);
  expect(what.doneAt[1]).toBeCloseTo(400e-9, 15);
});

test("a chunk that is pulled in segments is one move", () => {
  const event = { call: 0, rank: 0, step: 0, what: "copy, chunk 0", peers: [1], waited: 0, worked: 5, instruction: 2 };
  const events = [
    { ...event, segment: 0, bytes: 96, start: 0 },
    { ...event, segment: 1, bytes: 32, start: 10 },
  ];
  const what = happening({ ...entry, recording: { events } }, replay, "measured");
  expect(what.transfers.map((one) => one.moves)).toEqual([0.75, 0.25]);
});

test("idle is what busy intervals leave over", () => {
  const busy = [
    { rank: 0, start: 2, end: 3 },
    { rank: 0, start: 0, end: 1 },
    { rank: 0, start: 0.5, end: 1.5 },
  ];
  expect(gaps(busy, 2, 4)).toEqual([
    { rank: 0, start: 1.5, end: 2 },
    { rank: 0, start: 3, end: 4 },
    { rank: 1, start: 0, end: 4 },
  ]);
});
