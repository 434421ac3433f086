import { expect, test } from "vitest";
import { amountIn, EXAMPLE } from "../src/amounts";
import { Replay, type Replayable } from "../src/replay";
import { cellToExplain, changed, explained, wrapped } from "../src/views/callout";
import { fixture } from "./fixture";

const golden = fixture<Replayable>("golden.json");

test("the callout says what the cell really holds in the end", () => {
  for (const one of golden) {
    const replay = new Replay(one);
    if (replay.schedule.collective !== "all_reduce") continue;
    const cell = cellToExplain(replay);
    const amount = amountIn(EXAMPLE, replay, replay.at(replay.steps), cell.rank * replay.width + cell.chunk);
    expect(explained(replay, replay.at(0), cell, EXAMPLE)).toContain(`in the end ${amount} must be here`);
  }
});

test("who wants nothing is not explained as if it did", () => {
  const gather = new Replay(golden.find(({ schedule }) => schedule.collective === "gather" && schedule.ranks > 2)!);
  const rank = gather.schedule.root === 0 ? 1 : 0;
  const words = explained(gather, gather.at(0), { rank, chunk: 0 }, null);
  expect(words).toContain("what it holds in the end does not matter");
});

test("lines are as long as their place", () => {
  const lines = wrapped("one two three four five six", 9);
  expect(lines).toEqual(["one two", "three", "four five", "six"]);
});

test("of a followed tree, the callout explains a move of its chunks", () => {
  const ring = new Replay(golden.find(({ schedule }) => schedule.algorithm === "ring" && schedule.ranks > 2)!);
  for (const numbers of [null, EXAMPLE])
    for (let chunk = 0; chunk < ring.width; chunk++)
      expect(changed(ring, 1, numbers, [chunk])?.cell.chunk).toBe(
        ring.moves(0).some((move) => move.into === chunk) ? chunk : undefined,
      );
});
