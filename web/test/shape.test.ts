import { describe, expect, test } from "vitest";
import { Replay, type Replayable } from "../src/replay";
import { bowOf, nameAt, neighboursOf, pairsOf, shapeOf } from "../src/views/shape";
import { fixture } from "./fixture";

const golden = fixture<Replayable>("golden.json");
const title = ({ schedule }: Replayable): string => `${schedule.collective} ${schedule.algorithm} ${schedule.ranks}`;
const named = (name: string): Replay => new Replay(golden.find((one) => title(one) === name)!);

test("a ring is a ring, a tree and a chain are trees, the rest stands in a circle", () => {
  expect(shapeOf(named("all_reduce ring 8"), 300).kind).toBe("ring");
  expect(shapeOf(named("broadcast tree 8"), 300).kind).toBe("tree");
  expect(shapeOf(named("reduce chain 8"), 300).kind).toBe("tree");
  expect(shapeOf(named("gather driver 5"), 300).kind).toBe("tree");
  expect(shapeOf(named("all_reduce naive 8"), 300).kind).toBe("circle");
});

test("hosts are boxes around their ranks, and boxes do not overlap", () => {
  const [two, four] = [
    [0, 0, 0, 0, 1, 1, 1, 1],
    [0, 0, 1, 1, 2, 2, 3, 3],
  ];
  for (const host of [two, four]) {
    for (const name of ["all_reduce ring 8", "all_reduce naive 8"]) {
      const { boxes, spots, kind } = shapeOf(named(name), 300, host);
      expect(kind).toBe(name.includes("ring") ? "ring" : "hosts");
      expect(boxes.map((box) => box.host)).toEqual([...new Set(host)]);
      spots.forEach(({ x, y }, rank) => {
        const around = boxes.filter((box) => x > box.x && x < box.x + box.width && y > box.y && y < box.y + box.height);
        expect(around.map((box) => box.host)).toEqual([host[rank]]);
      });
    }
  }
  expect(shapeOf(named("all_reduce naive 8"), 300, [0, 0, 0, 0, 0, 0, 0, 0]).boxes).toEqual([]);
});

test("in a ring, who follows whom stands next to it", () => {
  const { spots } = shapeOf(named("all_gather ring 8"), 300);
  const far = (a: number, b: number): number => Math.hypot(spots[a].x - spots[b].x, spots[a].y - spots[b].y);
  for (let rank = 0; rank < 8; rank++) expect(far(rank, (rank + 1) % 8)).toBeCloseTo(far(0, 1), 6);
});

describe("every rank has a place of its own inside the picture", () => {
  test.each(golden.map((one) => [title(one), one] as const))("%s", (_, one) => {
    const replay = new Replay(one);
    const { spots, height, radius } = shapeOf(replay, 280);
    expect(spots.length).toBe(replay.ranks);
    expect(new Set(spots.map(({ x, y }) => `${x.toFixed(2)} ${y.toFixed(2)}`)).size).toBe(replay.ranks);
    for (const { x, y } of spots) {
      expect(Math.min(x, 280 - x, y, height - y)).toBeGreaterThanOrEqual(radius - 1e-9);
    }
    const talking = neighboursOf(replay).reduce((sum, near) => sum + near.size, 0) / 2;
    expect(pairsOf(neighboursOf(replay)).length).toBe(talking);
  });
});

test("boxes of hosts lie inside the picture, and their names beside the ranks", () => {
  for (const name of ["broadcast tree 8", "reduce tree 8", "all_reduce ring 8", "all_reduce naive 8"]) {
    const { boxes, spots, height, radius, kind } = shapeOf(named(name), 300, [0, 0, 0, 0, 1, 1, 1, 1]);
    for (const box of boxes) {
      expect(Math.min(box.x, box.y), name).toBeGreaterThanOrEqual(0);
      expect(box.x + box.width, name).toBeLessThanOrEqual(300);
      expect(box.y + box.height, name).toBeLessThanOrEqual(height);
      if (kind === "hosts") continue;
      const at = nameAt(box, spots);
      const left = at.x - (at.anchor === "end" ? 38 : at.anchor === "middle" ? 19 : 0);
      for (const { x, y } of spots) {
        const [apartX, apartY] = [Math.max(left - x, x - left - 38, 0), y - at.y + 4];
        expect(Math.hypot(apartX, apartY), name).toBeGreaterThan(radius + 3);
      }
    }
  }
});

test("the ranks of a host stand in reading order", () => {
  const host = Array.from({ length: 16 }, (_, rank) => Math.floor(rank / 4));
  const naive = named("all_reduce naive 8");
  const { spots } = shapeOf(naive, 300, host.slice(0, 8));
  for (const first of [0, 4]) {
    expect(spots[first].y).toBeCloseTo(spots[first + 1].y);
    expect(spots[first].x).toBeLessThan(spots[first + 1].x);
    expect(spots[first].y).toBeLessThan(spots[first + 2].y);
  }
});

test("arrows go around the ranks in their way", () => {
  const spots = [0, 1, 2, 3].map((i) => ({ x: 20 + 60 * i, y: 50 }));
  expect(bowOf(spots, 0, 1, 12)).toBeLessThan(6);
  for (const [from, to] of [
    [0, 2],
    [2, 0],
    [0, 3],
  ])
    expect(Math.abs(bowOf(spots, from, to, 12)) / 2).toBeGreaterThan(14);
});
