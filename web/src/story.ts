/** How a wrong cell became wrong, in one sentence. Pure. */

import type { Proof } from "./document";
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
  return right < 0 && !replay.writes(cell) ? "No move ever comes to it." : "";
}
