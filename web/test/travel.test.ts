/** How a number travels within its step. */

import { expect, test } from "vitest";
import { flightAt } from "../src/views/travel";

test("a tile lifts, travels, merges and rests", () => {
  expect(flightAt(0)).toMatchObject({ lift: 0, way: 0, phase: "flying" });
  expect(flightAt(0.05).lift).toBeGreaterThan(0);
  expect(flightAt(0.05).way).toBe(0);
  expect(flightAt(0.4)).toMatchObject({ lift: 1, phase: "flying" });
  expect(flightAt(0.4).way).toBeCloseTo(0.5);
  expect(flightAt(0.75)).toMatchObject({ lift: 0, way: 1, phase: "merging", size: 1 });
  expect(flightAt(0.9).phase).toBe("resting");
  expect(flightAt(0.92).size).toBeGreaterThan(1);
  expect(flightAt(1).size).toBeCloseTo(1);
});

test("a tile never goes back on its way", () => {
  const ways = Array.from({ length: 101 }, (_, i) => flightAt(i / 100).way);
  for (let i = 1; i < ways.length; i++) expect(ways[i]).toBeGreaterThanOrEqual(ways[i - 1]);
});
