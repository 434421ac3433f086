/** Two schedules beside each other: where they stand, what their messages wait for, and why one is faster. */

import { expect, test } from "vitest";
import type { Entry } from "../src/document";
import { placeAt } from "../src/views/pair";
import type { Happening, Transfer } from "../src/views/transfers";
import { waitInWords, waitsOf } from "../src/views/waits";
import { factsOf, whyFaster, type Side } from "../src/why";

/** A message of chunk 0 that takes `start` to `sent`, is there at `arrived`, and is added until `end`. */
function message(step: number, source: number, destination: number, times: number[]): Transfer {
  const [start, sent, arrived, end] = times;
  const kind = { chunk: 0, moves: 1, reads: [0], writes: [0], reduces: true, critical: false };
  return { step, source, destination, ...kind, start, sent, first: start, arrived, landed: arrived, end };
}

const happening = (transfers: Transfer[]): Happening => ({
  clock: "modelled",
  duration: Math.max(...transfers.map((one) => one.end)),
  transfers,
  work: [],
  idle: [],
  doneAt: [0, 4, 10],
});

test("a message waits for its data, or for its port; those on the longest chain have no slack", () => {
  const transfers = [
    message(0, 0, 1, [1, 3, 4, 5]), // its data: what the next one carries
    message(0, 0, 3, [3, 4, 5, 6]), // waits for the port of rank 0
    message(1, 1, 2, [6, 8, 9, 10]), // waits for the first one's data
  ];
  const waits = waitsOf(happening(transfers), 1);
  expect(waits[0]).toMatchObject({ before: null, slack: 0, after: 2 });
  expect(waits[1]).toMatchObject({ before: { of: 0, reason: "port" }, slack: 4, after: null, port: 3 });
  expect(waits[2]).toMatchObject({ before: { of: 0, reason: "data" }, slack: 0, data: 5, port: 0 });
  expect(waitInWords(waits[2], transfers)).toBe(
    "It waited for the data that rank 0 sent in step 1. It has no slack: if it ends later, everything does.",
  );
});

test("a message that is delayed by its slack delays nothing", () => {
  const transfers = [
    message(0, 0, 1, [0, 1, 2, 3]),
    message(0, 2, 3, [0, 1, 2, 3]),
    message(1, 3, 1, [5, 6, 7, 8]), // could have left at 3: two seconds of its own startup
    message(1, 1, 0, [3, 9, 10, 12]),
  ];
  const waits = waitsOf(happening(transfers), 1);
  expect(waits[1].slack).toBe(waits[2].slack);
  expect(waits[2].slack).toBe(4);
});

test("where a schedule stands: its steps that are done, and how far the next one is", () => {
  const what = happening([message(0, 0, 1, [0, 1, 2, 10])]);
  expect(placeAt(what, 0)).toEqual({ done: 0, part: 0 });
  expect(placeAt(what, 2)).toEqual({ done: 0, part: 0.5 });
  expect(placeAt(what, 4)).toEqual({ done: 1, part: 0 });
  expect(placeAt(what, 99)).toEqual({ done: 2, part: 0 });
});

function side(name: string, seconds: number, parts: Record<string, number>, path: number, port: number): Side {
  const counts = {
    steps: path,
    rounds: path,
    messages: 8,
    bytes: 6,
    busiest_port_bytes: port,
    busiest_port_messages: 3,
  };
  const timeline = { critical: new Array<number>(path).fill(0), parts, duration: seconds };
  const entry = { counts, timeline, proof: { ok: true, message: "", facts: [] } } as unknown as Entry;
  return { name, entry, measured: false, duration: seconds, idle: 0.25, doneAt: [0, seconds] };
}

test("the sentence names what the faster one saves, and what it pays", () => {
  const ring = side("ring", 188e-6, { startup: 60e-6, transfer: 128e-6 }, 6, 1.5);
  const tree = side("tree", 266e-6, { startup: 20e-6, transfer: 246e-6 }, 4, 3);
  const said =
    "ring is 1.41 times as fast as tree, 188 µs instead of 266 µs, because it spends 118 µs less on moving bytes (its busiest port carries 1.5 S, not 3 S); it spends 40 µs more on starting messages (6 messages one after the other, not 4).";
  expect(whyFaster(ring, tree)).toBe(said);
  expect(whyFaster(tree, ring)).toBe(said);
});

test("within 1 % neither is faster, and a wrong one is not timed", () => {
  const one = side("ring", 100e-6, { transfer: 100e-6 }, 6, 1.5);
  const other = side("swing", 100.5e-6, { transfer: 100.5e-6 }, 6, 1.5);
  expect(whyFaster(one, other)).toBe("ring and swing take the same time, 100 µs, within 1 %.");
  other.entry.proof.ok = false;
  expect(whyFaster(one, other)).toBe("swing is wrong, so it is not timed; ring is proved.");
});

test("facts say which of the two is better", () => {
  const ring = side("ring", 188e-6, { transfer: 188e-6 }, 6, 1.5);
  const tree = side("tree", 266e-6, { transfer: 266e-6 }, 4, 3);
  const facts = factsOf(ring, tree);
  expect(facts.find((one) => one.what === "time")).toEqual({ what: "time", values: ["188 µs", "266 µs"], better: 0 });
  expect(facts.find((one) => one.what === "steps")).toEqual({ what: "steps", values: ["6", "4"], better: 1 });
  expect(facts.find((one) => one.what === "messages")?.better).toBeNull();
});

test("a recorded run beside its simulation: which is faster, how long ranks wait, and step by step", () => {
  const model = {
    ...side("ring", 200e-6, { transfer: 200e-6 }, 2, 1.5),
    name: "simulated",
    doneAt: [0, 80e-6, 200e-6],
  };
  const run = { ...model, name: "measured", measured: true, duration: 500e-6, idle: 0.75, doneAt: [0, 450e-6, 500e-6] };
  expect(whyFaster(model, run)).toBe(
    "The recorded run took 2.5 times as long as the simulation, 500 µs instead of 200 µs: its ranks were idle for 75 % of the time, not 25 %.",
  );
  expect(whyFaster(model, { ...run, duration: 100e-6 })).toContain("was 2 times as fast as the simulation");
  expect(whyFaster(model, { ...run, duration: 201e-6 })).toContain("take the same time, 201 µs, within 1 %");
  // What is counted would be that of the schedule, in both columns.
  expect(factsOf(model, run)).toEqual([
    { what: "time", values: ["200 µs", "500 µs"], better: 0 },
    { what: "ranks idle", values: ["25 %", "75 %"], better: 0 },
    { what: "step 1 done", values: ["80 µs", "450 µs"], better: 0 },
    { what: "step 2 done", values: ["200 µs", "500 µs"], better: 0 },
  ]);
});
