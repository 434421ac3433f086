import { expect, test } from "vitest";
import type { Case } from "../src/document";
import { placesOf } from "../src/racing";
import { rivalsOf } from "../src/rivals";

const times: Record<string, number[]> = {
  ring: [9, 4, 2],
  naive: [2, 8, 90],
  doubling: [1, 3, 7],
  tree: [1.5, 5, 8],
};
const flat = { steps: [], ports: [], combined: 0, largest: 1 };
const one: Case = {
  collective: "all_reduce",
  topology: "hosts",
  ranks: 8,
  sizes: [8, 1024, 1 << 20],
  winners: ["doubling", "doubling", "ring"],
  algorithms: Object.entries(times).map(([name, times]) => ({ name, times, flat })),
};

test("rivals are chosen by what they take", () => {
  expect(rivalsOf("ring", ["naive", "doubling", "tree"], one, 1 << 20)).toEqual([
    { name: "doubling", why: "second for this size" },
    { name: "naive", why: "the slowest for this size" },
  ]);
  expect(rivalsOf("tree", ["ring", "naive", "doubling"], one, 900)).toEqual([
    { name: "doubling", why: "the fastest for this size" },
    { name: "naive", why: "the slowest for this size" },
    { name: "ring", why: "the fastest for large buffers" },
  ]);
});

test("only those that are there race; without planned times, the first ones", () => {
  expect(rivalsOf("ring", ["tree"], one, 8).map(({ name }) => name)).toEqual(["tree"]);
  expect(rivalsOf("ring", ["naive", "doubling", "tree"], null, 8).map(({ name }) => name)).toEqual([
    "naive",
    "doubling",
  ]);
  expect(rivalsOf("ring", [], one, 8)).toEqual([]);
});

test("who is equally fast shares a place, and who is wrong has none", () => {
  const runners = [
    { name: "ring", seconds: 2, ok: true },
    { name: "swing", seconds: 2.01, ok: true },
    { name: "naive", seconds: 9, ok: true },
    { name: "broken", seconds: 1, ok: false },
  ];
  expect(placesOf(runners)).toEqual([
    { place: 1, name: "ring", seconds: 2, tied: true },
    { place: 1, name: "swing", seconds: 2.01, tied: true },
    { place: 3, name: "naive", seconds: 9, tied: false },
  ]);
});
