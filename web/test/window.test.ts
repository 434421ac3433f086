import { expect, test } from "vitest";
import { cutTo, frameOf, nearest } from "../src/views/lanes";
import type { Transfer } from "../src/views/transfers";
import { isWhole, limitsOf, moved, opened, reaching, whole, zoomed } from "../src/views/window";

const limits = limitsOf(100, 64, 50, 416); // 100 s, 64 ranks, 50 steps, 416 pixels

test("what can be told apart is shown whole, of more the beginning", () => {
  expect(opened(limits, 50, 500, 900)).toEqual(whole(limits));
  const many = opened(limitsOf(510, 256, 510, 480), 510, 130_560, 900);
  expect([many.from, many.first]).toEqual([0, 0]);
  expect((many.to * many.last) / 1).toBeLessThan(1500); // messages of a ring: one per rank and step
  expect(many.last).toBeLessThan(256);
});

test("zooming keeps the place of the pointer and stays within the limits", () => {
  const near = zoomed(whole(limits), 2, limits, { time: 25, rank: 16 });
  expect(near).toEqual({ from: 12.5, to: 62.5, first: 8, last: 40 });
  const nearest = zoomed(near, 1e9, limits, { time: 25, rank: 16 });
  expect(nearest.to - nearest.from).toBeCloseTo(1); // half a step
  expect(nearest.last - nearest.first).toBeCloseTo(8); // 52 pixels per rank
  expect(isWhole(zoomed(nearest, 1e-9, limits, { time: 25, rank: 16 }), limits)).toBe(true);
});

test("it cannot be moved beyond its edges, and follows the player", () => {
  const near = zoomed(whole(limits), 4, limits, { time: 0, rank: 0 });
  expect(near).toEqual({ from: 0, to: 25, first: 0, last: 16 });
  expect(moved(near, -10, 1000, limits)).toEqual({ from: 0, to: 25, first: 48, last: 64 });
  expect(reaching(near, 20, limits)).toBe(near);
  expect(reaching(near, 50, limits)).toEqual({ from: 47.5, to: 72.5, first: 0, last: 16 });
  expect(reaching(near, 100, limits).to).toBe(100);
});

const message = (source: number, destination: number, start: number): Transfer => {
  const times = { start, sent: start + 1, first: start + 1, arrived: start + 2, landed: start + 2, end: start + 2 };
  return {
    source,
    destination,
    step: 0,
    reads: [],
    writes: [],
    chunk: 0,
    moves: 1,
    reduces: false,
    critical: false,
    ...times,
  };
};

test("the line under the pointer is found, and lines end at the edges of the picture", () => {
  const frame = frameOf({ from: 0, to: 10, first: 0, last: 4 }, 1000, 400);
  const lines = [message(0, 1, 0), message(0, 3, 0), message(2, 3, 5)];
  expect(nearest(lines, frame, frame.x(1), (frame.y(0) + frame.y(3)) / 2, 10)).toBe(lines[1]);
  expect(nearest(lines, frame, frame.x(6), (frame.y(2) + frame.y(3)) / 2, 10)).toBe(lines[2]);
  expect(nearest(lines, frame, frame.x(9), frame.y(0), 10)).toBe(null);
  expect(cutTo(frame, frame.left - 100, 50, frame.left + 100, 50)).toEqual([frame.left, 50, frame.left + 100, 50]);
  expect(cutTo(frame, frame.left - 100, 50, frame.left - 10, 90)).toBe(null);
});
