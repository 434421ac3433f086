import { describe, expect, test, vi } from "vitest";
import type { ScheduleJson } from "../src/document";
import { Replay, word, type Replayable } from "../src/replay";
import { fixture } from "./fixture";

interface Golden extends Replayable {
  states: { datum: number[]; members: number[] }[];
}

interface Wrong extends Replayable {
  blamed: { message: string; rank: number; chunk: number; step: number };
}

const title = ({ collective, algorithm, ranks }: ScheduleJson): string => `${collective} ${algorithm} ${ranks}`;
const mask = (ranks: number[]): number => ranks.reduce((sum, rank) => sum + 2 ** rank, 0);

const ringOf8 = (): Golden =>
  fixture<Golden>("golden.json").find((one) => title(one.schedule) === "all_reduce ring 8")!;

describe("after every step, every cell holds what Python says", () => {
  test.each(fixture<Golden>("golden.json").map((one) => [title(one.schedule), one] as const))("%s", (_, golden) => {
    const replay = new Replay(golden);
    expect(replay.steps).toBe(golden.states.length - 1);
    golden.states.forEach((state, done) => {
      const here = replay.at(done);
      expect([...here.datum]).toEqual(state.datum);
      expect(state.members.map((_, cell) => mask(replay.contributors(here, cell)))).toEqual(state.members);
    });
    expect(replay.faults()).toEqual([]);
    const { right, all } = replay.progress(replay.at(replay.steps));
    expect(right).toBe(all);
    expect(replay.arrived(replay.at(replay.steps))).toBe(1);
  });

  test("progress is counted on from the last step as anew", () => {
    for (const golden of fixture<Golden>("golden.json")) {
      const replay = new Replay(golden);
      const done = [...Array(replay.steps + 1).keys(), 0, replay.steps];
      for (const step of done) {
        const fresh = new Replay(golden);
        expect(replay.progress(replay.at(step)), `${title(golden.schedule)}, ${step}`).toEqual(
          fresh.progress(fresh.at(step)),
        );
      }
    }
  });

  test("while it plays, progress looks only at cells that the step has written", () => {
    const golden = ringOf8();
    const replay = new Replay(golden);
    replay.progress(replay.at(0));
    const looks = vi.spyOn(replay, "asPromised");
    // The page asks for the step that moves and for the one before it in turns.
    for (let step = 1; step <= replay.steps; step++)
      for (const done of [step, step - 1, step]) replay.progress(replay.at(done));
    expect(looks).toHaveBeenCalledTimes(replay.size);
  });

  test("in any order of asking", () => {
    const golden = ringOf8();
    const replay = new Replay(golden);
    for (const done of [14, 3, 9, 0, 13]) expect([...replay.at(done).datum]).toEqual(golden.states[done].datum);
  });
});

describe("a wrong schedule is blamed where Python blames it", () => {
  test.each(fixture<Wrong>("wrong.json").map((one) => [one.schedule.algorithm, one] as const))("%s", (_, wrong) => {
    const replay = new Replay(wrong);
    const { message, rank, chunk, step } = wrong.blamed;
    const first = replay.faults().filter((fault) => fault.step === step);
    const same = first.find((fault) => fault.rank === rank && fault.chunk === chunk);
    expect(same, JSON.stringify(first)).toBeDefined();
    const sentence = same!.kind === "unordered" ? "two unordered writes" : same!.sentence;
    expect(message).toContain(same!.kind === "twice" ? `chunk ${chunk} ${sentence} (` : sentence);
  });
});

test("provenance follows every contribution back to where it began", () => {
  const golden = fixture<Golden>("golden.json").find((one) => title(one.schedule) === "all_reduce ring 6")!;
  const replay = new Replay(golden);
  const paths = replay.provenance(replay.steps, 2, 4);
  expect(paths.map((one) => one.rank)).toEqual([0, 1, 2, 3, 4, 5]);
  for (const { rank, path } of paths) {
    path.forEach((move, i) => expect(move.source).toBe(i === 0 ? rank : path[i - 1].destination));
    expect(path.at(-1)!.destination).toBe(2);
  }
});

test("a thousand ranks are affordable", () => {
  const ranks = 1024;
  const steps: [number, number, number, number, number, number][][] = [];
  for (let distance = 1; distance < ranks; distance *= 2) {
    steps.push(Array.from({ length: ranks }, (_, r) => [1, 0, r, r ^ distance, 0, 0]));
  }
  const row = Array.from({ length: ranks }, () => [0]);
  const schedule = {
    collective: "all_reduce",
    algorithm: "doubling",
    ranks,
    root: null,
    chunks: 1,
    scratch: 0,
    sites: ["a:1"],
    steps,
  };
  const { promise } = fixture<Golden>("golden.json").find((one) => one.schedule.collective === "all_reduce")!;
  const replay = new Replay({ schedule, promise, starts: row, ends: row });
  expect(replay.progress(replay.at(steps.length))).toEqual({ right: ranks, all: ranks });
  expect(replay.contributors(replay.at(3), 700)).toEqual([696, 697, 698, 699, 700, 701, 702, 703]);
});

test("a move reads as it does everywhere", () => {
  expect(word({ number: 0, step: 0, reduces: true, chunk: 0, source: 1, destination: 2, into: 5, site: 0 })).toBe(
    "+0:1→2@5",
  );
});
