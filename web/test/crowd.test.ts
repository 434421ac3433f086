/** Squares that stand for many cells. */

import { expect, test, vi } from "vitest";
import { Replay, type Replayable } from "../src/replay";
import { blocksOf } from "../src/views/crowd";
import { fixture } from "./fixture";

const MOST = 4; // rows and columns: cells of all larger schedules are grouped

test("blocks counted step by step are the same as counted from the start", () => {
  for (const golden of fixture<Replayable>("golden.json")) {
    const [forwards, backwards] = [new Replay(golden), new Replay(golden)];
    const name = `${golden.schedule.collective} ${golden.schedule.algorithm} ${golden.schedule.ranks}`;
    const sharesAt = (replay: Replay, step: number): number[] => blocksOf(replay, replay.at(step), MOST).shares;
    // Going back, every cell is counted.
    const whole = new Map<number, number[]>();
    for (let step = backwards.steps; step >= 0; step--) whole.set(step, sharesAt(backwards, step));
    const counted = new Map([...whole.keys()].reverse().map((step) => [step, sharesAt(forwards, step)]));
    expect(counted, name).toEqual(whole);
    expect([...whole.values()].flat().filter((share) => share < 0 || share > 1)).toEqual([]);
  }
});

test("while it plays, only the cells that a step has written are counted again", () => {
  const golden = fixture<Replayable>("golden.json").find(
    ({ schedule }) => schedule.algorithm === "ring" && schedule.collective === "all_reduce" && schedule.ranks === 8,
  )!;
  const replay = new Replay(golden);
  expect(blocksOf(replay, replay.at(0), MOST).shares).toEqual(Array(16).fill(1 / 8));
  const counts = vi.spyOn(replay, "count");
  for (let step = 1; step <= replay.steps; step++) blocksOf(replay, replay.at(step), MOST);
  expect(counts).toHaveBeenCalledTimes(replay.size);
  expect(blocksOf(replay, replay.at(replay.steps), MOST).shares).toEqual(Array(16).fill(1));
});
