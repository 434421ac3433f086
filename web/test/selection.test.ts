/** A part of space and time that is measured. */

import { expect, test } from "vitest";
import type { Happening, Transfer } from "../src/views/transfers";
import { between, grown, measure, measureInWords } from "../src/views/selection";
import { reachable } from "../src/views/window";

const limits = { duration: 10e-6, ranks: 4, shortest: 1e-7, fewest: 1 };
const message = (source: number, start: number, end: number): Transfer => ({
  source,
  destination: source + 1,
  step: 0,
  chunk: 0,
  moves: 2,
  reads: [],
  writes: [],
  reduces: false,
  start: start * 1e-6,
  sent: end * 1e-6,
  first: start * 1e-6,
  arrived: end * 1e-6,
  landed: end * 1e-6,
  end: end * 1e-6,
  critical: false,
});
const what: Happening = {
  clock: "modelled",
  duration: 10e-6,
  transfers: [message(0, 1, 3), message(1, 2, 6), message(2, 7, 9), message(0, 0, 2)],
  work: [],
  idle: [
    { rank: 0, start: 3e-6, end: 10e-6 },
    { rank: 1, start: 6e-6, end: 10e-6 },
    { rank: 3, start: 0, end: 7e-6 },
  ],
  doneAt: [0, 10e-6],
};

test("a part lies between two corners, whichever came first, and inside of what there is", () => {
  const corners = [
    { time: 4e-6, rank: 2.2 },
    { time: -1, rank: 0.9 },
  ];
  const part = { from: 0, to: 4e-6, first: 0, last: 3 };
  expect(between(corners[0], corners[1], limits)).toEqual(part);
  expect(between(corners[1], corners[0], limits)).toEqual(part);
  expect(between(corners[0], corners[0], limits)).toMatchObject({ first: 2, last: 3 });
  expect(grown(part, 1, 1, limits)).toEqual({ from: 0, to: 10e-6, first: 0, last: 4 });
  expect(grown(part, -1, -9, limits)).toEqual({ from: 0, to: 0, first: 0, last: 1 });
});

test("messages of a part are those of its ranks in its time", () => {
  const found = measure(what, what.transfers, { from: 1e-6, to: 4e-6, first: 0, last: 2 });
  // 0→1 from 1 to 3, of which all is in it; 1→2 and the first 0→1, of which parts are.
  expect(found).toMatchObject({ messages: 3, whole: 1, moves: 6 });
  expect(found.longest?.end).toBeCloseTo(3e-6);
  expect(found.idle).toBeCloseTo(1 / 6);
  expect(measure(what, what.transfers, { from: 7e-6, to: 9e-6, first: 0, last: 2 })).toMatchObject({
    messages: 0,
    idle: 1,
  });
});

test("it is said in words", () => {
  const part = { from: 1e-6, to: 4e-6, first: 0, last: 2 };
  expect(measureInWords(what, measure(what, what.transfers, part), part, 1024)).toBe(
    "3 µs, from 1 µs to 4 µs, ranks 0 to 1: 3 messages with 6 KiB, 1 of them from beginning to end; idle for 17 % of it. The longest takes 2 µs (0→1).",
  );
});

test("a small part is shown as near as possible, with it in the middle", () => {
  const near = reachable({ from: 5e-6, to: 5e-6, first: 1, last: 2 }, { ...limits, fewest: 3 });
  expect(near).toMatchObject({ first: 0, last: 3 });
  expect(near.from).toBeCloseTo(4.95e-6, 12);
  expect(near.to).toBeCloseTo(5.05e-6, 12);
});
