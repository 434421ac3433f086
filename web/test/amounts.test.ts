import { readFileSync } from "node:fs";
import { describe, expect, test } from "vitest";
import { amountIn, given, sumIn } from "../src/amounts";
import { NOTHING, Replay, type Replayable } from "../src/replay";

const golden: Replayable[] = JSON.parse(readFileSync(new URL("../fixtures/golden.json", import.meta.url), "utf8"));
const adding = golden.filter(({ schedule }) =>
  ["all_reduce", "reduce", "reduce_scatter"].includes(schedule.collective),
);

describe("the numbers add up", () => {
  test.each(
    adding.map((one) => [`${one.schedule.collective} ${one.schedule.algorithm} ${one.schedule.ranks}`, one] as const),
  )("%s", (_, one) => {
    const replay = new Replay(one);
    const end = replay.at(replay.steps);
    for (let cell = 0; cell < end.datum.length; cell++) {
      if (replay.ends[cell] === NOTHING) continue;
      let all = 0;
      for (let rank = 0; rank < replay.ranks; rank++) all += given(rank, replay.ends[cell]);
      expect(amountIn(replay, end, cell)).toBe(all);
      const parts = sumIn(replay, end, cell).split(" + ").map(Number);
      expect(parts.length).toBe(replay.ranks);
      expect(parts.reduce((sum, part) => sum + part, 0)).toBe(all);
    }
  });
});

test("what comes twice counts twice, and nothing is no number", () => {
  const schedule = {
    collective: "all_reduce",
    algorithm: "a",
    ranks: 2,
    root: null,
    chunks: 1,
    scratch: 1,
    sites: [""],
  };
  const add: [number, number, number, number, number, number] = [1, 0, 1, 0, 0, 0];
  const replay = new Replay({
    schedule: { ...schedule, steps: [[add], [add]] },
    starts: [
      [0, -1],
      [0, -1],
    ],
    ends: [
      [0, -1],
      [0, -1],
    ],
  });
  const end = replay.at(2);
  expect(amountIn(replay, end, 0)).toBe(given(0, 0) + 2 * given(1, 0));
  expect(sumIn(replay, end, 0)).toBe(`${given(0, 0)} + ${given(1, 0)} + ${given(1, 0)}`);
  expect(amountIn(replay, end, 1)).toBeNull();
});
