import { describe, expect, test } from "vitest";
import type { Entry, ScheduleJson } from "../src/document";
import { Replay, type Replayable } from "../src/replay";
import { layOutTree, onlyChunks, ridesOf, treesOf } from "../src/trees";
import { fixture } from "./fixture";

type Golden = Replayable;

const golden = fixture<Golden>("golden.json");
const title = ({ collective, algorithm, ranks }: ScheduleJson): string => `${collective} ${algorithm} ${ranks}`;
const named = (name: string): Golden => golden.find((one) => title(one.schedule) === name)!;

describe("all trees together are the schedule", () => {
  const moving = golden.filter(({ schedule }) => !["barrier", "all_to_all"].includes(schedule.collective));
  test.each(moving.map((one) => [title(one.schedule), one] as const))("%s", (_, one) => {
    const replay = new Replay(one);
    const trees = treesOf(replay);
    const between = new Set<string>();
    for (const step of one.schedule.steps)
      for (const [reduces, , source, destination] of step)
        if (source !== destination) between.add(`${reduces} ${source} ${destination}`);
    const branches = trees.flatMap((tree) =>
      tree.branches.map((branch) => `${Number(branch.reduces)} ${branch.source} ${branch.destination}`),
    );
    expect(new Set(branches)).toEqual(between);
    // Every message carries chunks of a tree.
    const rides = new Set(trees.flatMap((tree) => [...ridesOf(replay, tree.chunks)]));
    const messages = one.schedule.steps.flatMap((step, at) =>
      step.filter(([, , source, destination]) => source !== destination).map((row) => `${at} ${row[2]} ${row[3]}`),
    );
    for (const message of messages) expect(rides.has(message)).toBe(true);
    for (const tree of trees) {
      if (tree.root === null) continue;
      for (const reduces of [true, false]) {
        const half = tree.branches.filter((branch) => branch.reduces === reduces);
        if (!half.length) continue;
        const { ranks, leaves } = layOutTree(tree, reduces);
        expect(ranks.length).toBe(half.length + 1);
        expect(new Set(ranks.map((place) => `${place.depth} ${place.across}`)).size).toBe(ranks.length);
        expect(ranks.filter((place) => Number.isInteger(place.across)).length).toBeGreaterThanOrEqual(leaves);
      }
    }
  });
});

test("a ring gathers along one path per rank, a tree broadcasts from its root", () => {
  const ring = treesOf(new Replay(named("all_gather ring 5")));
  expect(ring.map((tree) => [tree.root, tree.carries])).toEqual([0, 1, 2, 3, 4].map((root) => [root, 1]));
  expect(layOutTree(ring[2], false)).toMatchObject({ leaves: 1, depth: 4 });
  expect(ring[2].branches.map((branch) => branch.step)).toEqual([0, 1, 2, 3]);
  const tree = treesOf(new Replay(named("broadcast tree 8")));
  expect(tree.length).toBe(1);
  expect(tree[0].root).toBe(7);
  expect(layOutTree(tree[0], false).depth).toBe(3);
});

test("an all_reduce by a ring collects every chunk at one rank and spreads it from there", () => {
  const trees = treesOf(new Replay(named("all_reduce ring 6")));
  expect(trees.length).toBe(6);
  for (const tree of trees) {
    expect(tree.root).not.toBeNull();
    expect(tree.branches.filter((branch) => branch.reduces).length).toBe(5);
    expect(tree.branches.filter((branch) => !branch.reduces).length).toBe(5);
  }
});

test("ways on which ranks meet twice are no trees", () => {
  expect(treesOf(new Replay(named("all_reduce recursive_doubling 8"))).every((tree) => tree.root === null)).toBe(true);
});

test("some columns alone hold what they hold among all", () => {
  const one = named("all_reduce ring 6");
  const all = new Replay(one);
  const part = new Replay(onlyChunks(one as unknown as Entry, [1, 4]));
  for (let done = 0; done <= all.steps; done++) {
    const [here, there] = [all.at(done), part.at(done)];
    for (let rank = 0; rank < 6; rank++)
      [1, 4].forEach((chunk, i) =>
        expect(part.contributors(there, rank * 2 + i)).toEqual(all.contributors(here, rank * 6 + chunk)),
      );
  }
  expect(part.faults()).toEqual([]);
});
