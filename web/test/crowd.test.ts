/** Squares that stand for many cells. */

import { expect, test, vi } from "vitest";
import { Replay, type Replayable } from "../src/replay";
import { blocksOf } from "../src/views/crowd";
import { fixture } from "./fixture";

const MOST = 4; // rows and columns: cells of all larger schedules are grouped

test("blocks are counted on from the last step as anew", () => {
  for (const golden of fixture<Replayable>("golden.json")) {
    const replay = new Replay(golden);
    const name = `${golden.schedule.collective} ${golden.schedule.algorithm} ${golden.schedule.ranks}`;
    for (const step of [...Array(replay.steps + 1).keys(), 0, replay.steps]) {
      const fresh = new Replay(golden);
      const shares = blocksOf(fresh, fresh.at(step), MOST).shares;
      expect(blocksOf(replay, replay.at(step), MOST).shares, `${name}, step ${step}`).toEqual(shares);
      expect(Math.min(...shares)).toBeGreaterThanOrEqual(0);
      expect(Math.max(...shares)).toBeLessThanOrEqual(1);
    }
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
