import { describe, expect, test } from "vitest";
import type { Case } from "../src/document";
import { contendersOf, priceOf, reigns, winnerOf, type Figures } from "../src/model";
import { ratiosOf, standingsOf } from "../src/views/standings";
import { fixture } from "./fixture";

interface Priced {
  case: Case;
  prices: {
    figures: Figures;
    size: number;
    winner: string;
    costs: Record<string, [seconds: number, segments: number]>;
  }[];
}

const all = fixture<Priced>("flat.json");

describe("what if is what allfold plan says of that network", () => {
  test.each(all.map((one) => [`${one.case.collective} ${one.case.ranks}`, one] as const))("%s", (_, one) => {
    for (const { figures, size, winner, costs } of one.prices) {
      for (const { name, flat } of one.case.algorithms) {
        const { seconds, segments } = priceOf(flat, size, figures);
        expect([name, segments]).toEqual([name, costs[name][1]]);
        expect(seconds / costs[name][0]).toBeCloseTo(1, 7);
      }
      const won = winnerOf(contendersOf(one.case.algorithms, size, figures))!.name;
      // Of algorithms that are equal to the last digit, rounding decides.
      if (won !== winner) expect(costs[won][0] / costs[winner][0]).toBeCloseTo(1, 9);
    }
  });
});

test("who is within 1 % and starts fewer messages wins", () => {
  const contender = (name: string, seconds: number, starts: number) => ({ name, seconds, starts });
  const [slow, close, fast] = [contender("slow", 2, 1), contender("close", 1.005, 2), contender("fast", 1, 3)];
  expect(winnerOf([slow, close, fast])!.name).toBe("close");
  expect(winnerOf([])).toBeNull();
});

test("a reign ends where the next one begins", () => {
  expect(reigns(["a", "a", "b"], [1, 2, 4])).toEqual([
    { algorithm: "a", from: 1, to: 4 },
    { algorithm: "b", from: 4, to: 4 },
  ]);
});

test("planned standings are the document's own numbers", () => {
  const flat = { steps: [], ports: [], combined: 0, largest: 0 };
  const one: Case = {
    collective: "all_reduce",
    topology: "t",
    ranks: 4,
    sizes: [8, 16],
    winners: ["ring", "tree"],
    algorithms: [
      { name: "ring", times: [1, 4], flat },
      { name: "tree", times: [3, 2], flat },
      { name: "left out", times: [], flat },
    ],
  };
  const standings = standingsOf(one, null);
  expect(standings.winners).toEqual(["ring", "tree"]);
  expect(ratiosOf(standings, "ring")).toEqual([1, 2]);
  expect(ratiosOf(standings, "tree")).toEqual([3, 1]);
  expect(ratiosOf(standings, "left out")).toEqual([null, null]);
});
