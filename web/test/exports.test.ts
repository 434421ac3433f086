/** What the page writes for other programs, and what a search understands. */

import { expect, test } from "vitest";
import type { Entry } from "../src/document";
import { asCsv, asJson, asTrace } from "../src/exports";
import { wantedIn } from "../src/search";
import type { Happening } from "../src/views/transfers";

const transfer = { step: 1, source: 0, destination: 1, chunk: 2, moves: 1, reads: [2], writes: [2], reduces: true };
const what: Happening = {
  clock: "modelled",
  duration: 5e-6,
  transfers: [
    { ...transfer, start: 1e-6, sent: 2e-6, first: 2e-6, arrived: 3e-6, landed: 3e-6, end: 5e-6, critical: true },
  ],
  work: [],
  idle: [],
  doneAt: [0, 5e-6],
};
const steps = [[[1, 0, 0, 1, 0, 0]], [[0, 0, 1, 0, 0, 0]]];
const entry = { schedule: { ranks: 4, chunks: 3, scratch: 1, steps } } as unknown as Entry;

test("messages are lines of a table", () => {
  const [head, row, end] = asCsv(what).split("\n");
  expect(head.split(",")).toHaveLength(row.split(",").length);
  expect(row).toBe("2,0,1,2,1,1,0.000001,0.000002,0.000003,0.000003,0.000005,1");
  expect(end).toBe("");
});

test("a trace has what each rank does, in microseconds", () => {
  const { traceEvents } = JSON.parse(asTrace(what)) as { traceEvents: Record<string, unknown>[] };
  const spans = traceEvents.filter((one) => one.ph === "X");
  expect(spans.map(({ pid, tid }) => [pid, tid])).toEqual([
    [0, "sending"],
    [1, "receiving"],
    [1, "combining"],
  ]);
  expect(spans[2].ts).toBeCloseTo(3);
  expect(spans[2].dur).toBeCloseTo(2);
});

test("the schedule is saved as it came", () => {
  expect(JSON.parse(asJson(entry))).toEqual(entry.schedule);
});

test("a search names a rank, a chunk, a step or a time, in any order", () => {
  expect(wantedIn("rank 3 chunk 2", entry)).toEqual({ rank: 3, chunk: 2 });
  expect(wantedIn("Chunk 3, Rank 0", entry)).toEqual({ rank: 0, chunk: 3 });
  expect(wantedIn("step 2", entry)).toEqual({ step: 2 });
  expect(wantedIn("> 50 µs", entry).longer).toBeCloseTo(50e-6, 12);
  expect(wantedIn(">1.5ms rank 1", entry)).toEqual({ rank: 1, longer: 0.0015 });
});

test("a search says what there is", () => {
  expect(() => wantedIn("rank 4", entry)).toThrow("There are ranks 0 to 3, no rank 4.");
  expect(() => wantedIn("step 0", entry)).toThrow("There are steps 1 to 2, no step 0.");
  expect(() => wantedIn("where", entry)).toThrow("Not understood: “where”");
  expect(() => wantedIn("rank 1 and more", entry)).toThrow("Not understood");
});
