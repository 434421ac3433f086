import { expect, test } from "vitest";
import type { MoveRow, Proof } from "../src/document";
import { Replay, type Replayable } from "../src/replay";
import { storyOf } from "../src/story";
import { fixture } from "./fixture";

const golden = fixture<Replayable>("golden.json");
const { promise } = golden.find((one) => one.schedule.collective === "all_reduce")!;
const COPY = 0;
const REDUCE = 1;
const move = (reduces: number, source: number, destination: number): MoveRow => [reduces, 0, source, destination, 0, 0];

/** Two ranks, one chunk, all_reduce. */
function replayOf(...steps: MoveRow[][]): Replay {
  const schedule = {
    collective: "all_reduce",
    algorithm: "mine",
    ranks: 2,
    root: null,
    chunks: 1,
    scratch: 0,
    sites: [""],
  };
  return new Replay({ schedule: { ...schedule, steps }, promise, starts: [[0], [0]], ends: [[0], [0]] });
}
const proof = (rank: number, step: number): Proof => ({ ok: false, message: "", rank, chunk: 0, step, facts: [] });

test("what was right and then overwritten says when and by whom", () => {
  const replay = replayOf([move(REDUCE, 1, 0)], [move(COPY, 1, 0)], [move(COPY, 0, 1)]);
  expect(storyOf(replay, proof(0, 2))).toBe("It was right until step 1, then overwritten by rank 1 in step 2.");
});

test("what came twice says who added last", () => {
  const replay = replayOf([move(REDUCE, 1, 0)], [move(REDUCE, 1, 0)]);
  expect(storyOf(replay, proof(0, 1))).toBe("It was right until step 1, then added to by rank 1 in step 2.");
});

test("what never came says so, and a right schedule has no such story", () => {
  const replay = replayOf([move(REDUCE, 1, 0)]);
  expect(storyOf(replay, proof(1, 0))).toBe("No move ever writes to it.");
  expect(storyOf(replay, { ok: true, message: "", facts: [] })).toBe("");
});

test("what was never right says what came last", () => {
  const replay = replayOf([move(COPY, 1, 0)]);
  expect(storyOf(replay, proof(0, 0))).toBe("It was last overwritten by rank 1 in step 1.");
});
