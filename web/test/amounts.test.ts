import { describe, expect, test } from "vitest";
import { amountIn, changeInWords, changesOf, EXAMPLE, readNumbers, sumIn } from "../src/amounts";
import { NOTHING, Replay, type Replayable } from "../src/replay";
import { numbersFor } from "../src/source";
import { fixture } from "./fixture";

const golden = fixture<Replayable>("golden.json");
const adding = golden.filter(({ promise }) => promise.reduces && promise.carries_data);

describe("the numbers add up", () => {
  test.each(
    adding.map((one) => [`${one.schedule.collective} ${one.schedule.algorithm} ${one.schedule.ranks}`, one] as const),
  )("%s", (_, one) => {
    const replay = new Replay(one);
    const end = replay.at(replay.steps);
    for (let cell = 0; cell < end.datum.length; cell++) {
      if (replay.ends[cell] === NOTHING) continue;
      let all = 0;
      const [first, last] = one.promise.contributors?.[Math.floor(cell / replay.width)] ?? [0, replay.ranks];
      for (let rank = first; rank < last; rank++) all += Number(EXAMPLE.given(rank, replay.ends[cell])[0]);
      expect(amountIn(EXAMPLE, replay, end, cell)).toBe(String(all));
      const [left, right] = sumIn(EXAMPLE, replay, end, cell).split(" = ");
      const parts = left.split(" + ").map(Number);
      expect(Number(right)).toBe(all);
      expect(parts.length).toBe(last - first);
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
    promise: adding.find((one) => one.schedule.collective === "all_reduce")!.promise,
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
  const [first, second] = [0, 1].map((rank) => Number(EXAMPLE.given(rank, 0)[0]));
  expect(amountIn(EXAMPLE, replay, end, 0)).toBe(String(first + 2 * second));
  expect(sumIn(EXAMPLE, replay, end, 0)).toBe(`${first} + ${second} + ${second} = ${first + 2 * second}`);
  expect(amountIn(EXAMPLE, replay, end, 1)).toBeNull();
});

interface Typed extends Replayable {
  values: string;
  op: string;
  says: string[][];
  cells: string[][];
}

const typed = fixture<Typed>("numbers.json");
const nameOf = ({ schedule, values, op }: Typed): string =>
  `${schedule.collective} ${schedule.algorithm} ${schedule.ranks} ${op} ${values}`;

describe("typed numbers move and make what allfold show --values says", () => {
  test.each(typed.map((one) => [nameOf(one), one] as const))("%s", (_, one) => {
    const replay = new Replay(one);
    const numbers = readNumbers(one.values, one.op, replay);
    one.cells.forEach((cells, done) => {
      const state = replay.at(done);
      expect(cells.map((_, cell) => amountIn(numbers, replay, state, cell) ?? "·")).toEqual(cells);
      if (!done) return;
      const says = changesOf(numbers, replay, done).map((change) => changeInWords(replay, change));
      expect(says.sort()).toEqual(one.says[done - 1]);
    });
  });
});

test("numbers that cannot be are refused in a sentence", () => {
  const ring = typed.find(({ schedule }) => schedule.collective === "all_reduce" && schedule.ranks === 3)!;
  const says = (values: string, op = "sum"): string => {
    try {
      readNumbers(values, op, new Replay(ring));
    } catch (error) {
      return (error as Error).message;
    }
    return "";
  };
  expect(says("1 2; 3 x; 5 6")).toContain("“x” is not a number");
  expect(says("1 2; 3 4")).toContain("expected 3 rows of equally many numbers");
  expect(says("1 2; 3; 5 6")).toContain("got rows of 2, 1, 2");
  expect(says("")).toContain("got rows of 0");
  expect(says("1; 2; 3.5", "bor")).toContain("whole numbers only");
  expect(says("1; 2; 3", "mean")).toContain("unknown operation");
  expect(says("1,2;3,4;5,6")).toBe("");
});

test("a schedule with its own numbers shows them", () => {
  const ring = adding.find(({ schedule }) => schedule.algorithm === "ring" && schedule.ranks === 3)!;
  const shown = (values?: string): string | null => {
    const replay = new Replay({ ...ring, values });
    return amountIn(numbersFor(replay).numbers, replay, replay.at(0), replay.width);
  };
  expect(shown("1 2 3; 4 5 6; 7 8 9")).toBe("4");
  expect(shown()).toBe(String(EXAMPLE.given(1, 0)[0]));
});
