/** How a wrong cell became wrong, in one sentence. Pure. */

import type { Entry, Phase, Proof } from "./document";
import type { Replay } from "./replay";

/** What is wrong, and how it came about. */
export function verdictOf(replay: Replay, proof: Proof): string {
  const story = storyOf(replay, proof);
  return story ? `${proof.message}. ${story}` : proof.message;
}

/** How the cell that a proof names went wrong: `Right until step 7, then overwritten by rank 2.` */
export function storyOf(replay: Replay, proof: Proof): string {
  const { ok, rank, chunk, step } = proof;
  if (ok || rank == null || chunk == null || rank >= replay.ranks || chunk >= replay.width) return "";
  const cell = rank * replay.width + chunk;
  const end = Math.min((step ?? replay.steps - 1) + 1, replay.steps);
  let right = -1;
  for (let done = 0; done <= end; done++) if (replay.asPromised(replay.at(done), cell)) right = done;
  for (let done = end; done > Math.max(0, right); done--) {
    const into = replay.moves(done - 1).filter((move) => move.destination === rank && move.into === chunk);
    const last = into[into.length - 1];
    if (!last) continue;
    const how = `${last.reduces ? "added to" : "overwritten"} by rank ${last.source}`;
    if (right > 0) return `It was right until step ${right}, then ${how} in step ${done}.`;
    if (right === 0) return `It was right at the start, then ${how} in step ${done}.`;
    return `It was last ${how} in step ${done}.`;
  }
  return right < 0 && !replay.writes(cell) ? "No move ever writes to it." : "";
}

/** The phase of the step that was done last, and what it does. */
export function phaseAt(entry: Entry, done: number): { phase: Phase; sentence: string } | null {
  const phase = entry.phases.find((one) => done > one.first && done <= one.first + one.steps);
  return phase ? { phase, sentence: phase.sentences[done - 1 - phase.first] ?? "" } : null;
}

/** Every sentence of an entry, with its phase, once; and which of them belongs to a step, -1 if none. */
export function sentencesOf(entry: Entry): {
  told: { phase: Phase; sentence: string }[];
  at: (done: number) => number;
} {
  const places = new Map<string, number>();
  const told: { phase: Phase; sentence: string }[] = [];
  for (const phase of entry.phases) {
    for (const sentence of new Set(phase.sentences)) {
      places.set(`${phase.first} ${sentence}`, told.length);
      told.push({ phase, sentence });
    }
  }
  const at = (done: number): number => {
    const now = phaseAt(entry, done);
    return now ? (places.get(`${now.phase.first} ${now.sentence}`) ?? -1) : -1;
  };
  return { told, at };
}

const HOLDS = "A row is a rank: one process, or one GPU, with its buffer.";
const CHUNKS = "A column is a chunk: a part of the buffer that travels as a whole.";

const PROMISES: Record<string, string> = {
  all_reduce: "Every rank has a list of numbers, and every rank wants the sum of all lists.",
  reduce: "Every rank has a list of numbers, and the root wants the sum of all lists.",
  reduce_scatter: "Every rank has a list of numbers; the sum of all lists is wanted, a part of it on each rank.",
  broadcast: "The root has a list of numbers, and every rank wants a copy.",
  gather: "Every rank has a part of a list, and the root wants the whole list.",
  scatter: "The root has a list, and every rank wants its own part of it.",
  all_gather: "Every rank has a part of a list, and every rank wants the whole list.",
  all_to_all: "Every rank has a part for every other rank, and wants the parts that the others have for it.",
  barrier: "Every rank waits until it knows that all others have come.",
};

/** What is wanted, for somebody who sees this for the first time. */
export function opening(entry: Entry): string {
  return PROMISES[entry.schedule.collective] ?? "";
}

/** How the grid is read. */
export function reading(entry: Entry): string {
  const steps = "A step is what happens at once; press play, or the right arrow key.";
  return `${HOLDS} ${entry.schedule.chunks > 1 ? `${CHUNKS} ` : ""}${steps}`;
}
