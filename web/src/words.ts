/** Numbers and moves in words: the same under every picture and in its text version. */

import type { Move, Replay } from "./replay";

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

/** `64 KiB`, `1.5 MiB`: bytes as people write buffer sizes. */
export function bytes(value: number): string {
  let unit = 0;
  let left = value;
  while (left >= 1024 && unit < UNITS.length - 1) {
    left /= 1024;
    unit++;
  }
  return `${digits(left)} ${UNITS[unit]}`;
}

/** `12 µs`, `3.4 ms`. */
export function seconds(value: number): string {
  if (value === 0) return "0 s";
  const [scale, unit] = value < 1e-6 ? [1e9, "ns"] : value < 1e-3 ? [1e6, "µs"] : value < 1 ? [1e3, "ms"] : [1, "s"];
  return `${digits(value * scale)} ${unit}`;
}

/** `12.5 GB/s`. */
export function rate(value: number): string {
  const [scale, unit] = value < 1e9 ? [1e-6, "MB/s"] : value < 1e12 ? [1e-9, "GB/s"] : [1e-12, "TB/s"];
  return `${digits(value * scale)} ${unit}`;
}

/** A multiple of the buffer; exact if four digits are enough. */
export function timesS(value: number): string {
  return `${Number(value.toFixed(value < 10 ? 3 : 2))} S`;
}

/** Three significant digits. */
export function digits(value: number): string {
  if (value >= 100 || Number.isInteger(value)) return String(Math.round(value));
  return String(Number(value.toPrecision(3)));
}

export function plural(number: number, word: string, many = `${word}s`): string {
  return `${number} ${number === 1 ? word : many}`;
}

/** `1–7, 9`: numbers in ascending order; after eight runs, how many more there are. */
export function listed(numbers: number[]): string {
  const runs: [number, number][] = [];
  for (const one of numbers) {
    const last = runs[runs.length - 1];
    if (last && one === last[1] + 1) last[1] = one;
    else runs.push([one, one]);
  }
  const shown = runs.slice(0, 8).map(([from, to]) => (from === to ? String(from) : `${from}–${to}`));
  const left = runs.slice(8).reduce((sum, [from, to]) => sum + to - from + 1, 0);
  return shown.join(", ") + (left ? ` and ${left} more` : "");
}

export function percent(share: number): string {
  return `${Math.round(share * 100)} %`;
}

/** Where the player stands: `after step 3`. */
export function moment(done: number): string {
  return done ? `after step ${done}` : "at the start";
}

export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

/** `rank 0 sends chunk 2 to rank 1, reduced`. */
export function sentence(move: Move): string {
  const into = move.into === move.chunk ? "" : ` into chunk ${move.into}`;
  if (move.source === move.destination) {
    return `rank ${move.source} ${move.reduces ? "combines" : "copies"} its own chunk ${move.chunk}${into}`;
  }
  return `rank ${move.source} sends chunk ${move.chunk} to rank ${move.destination}${into}${move.reduces ? ", reduced" : ""}`;
}

const MOST = 16;

/** What a step does, move by move; `null` stands for "at the start". */
export function stepLines(replay: Replay, done: number): string[] {
  const moves = replay.moves(done - 1);
  if (!moves.length) return ["nothing has moved yet"];
  const lines = moves.slice(0, MOST).map(sentence);
  if (moves.length > MOST) lines.push(`and ${moves.length - MOST} more moves`);
  return lines;
}

/** `step 3 of 14: …` as one sentence, for screen readers. */
export function stepSentence(replay: Replay, done: number): string {
  const { right, all } = replay.progress(replay.at(done));
  const end = `${right} of ${plural(all, "cell")} as promised`;
  if (done === 0) return `At the start: ${end}.`;
  return `Step ${done}: ${stepLines(replay, done).join("; ")}. Then ${end}.`;
}
