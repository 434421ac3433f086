/**
 * What every cell (rank, chunk) holds after every step. Pure: schedule in, states out; nothing is drawn here.
 *
 * It follows Python's `symbolic.State`, which tests check, with one difference: Python refuses a step that makes
 * no sense, while a picture has to show it. So what is wrong is kept (a contribution that came twice counts twice) and
 * noted as a fault where it happens.
 */

import { Contributions } from "./contributions";
import { every } from "./numbers";
import type { CollectiveFacts, Entry, MoveRow, ScheduleJson } from "./document";

export const NOTHING = -1;

export type Replayable = Pick<Entry, "schedule" | "promise" | "starts" | "ends" | "values">;

export interface Move {
  /** Its number in the schedule, counted over all steps. */
  number: number;
  step: number;
  reduces: boolean;
  chunk: number;
  source: number;
  destination: number;
  into: number;
  site: number;
}

export interface State {
  /** Steps that are done. */
  done: number;
  /** By cell, rank · width + chunk: which piece of data lies there, and the number of its set of contributions. */
  datum: Int32Array;
  held: Int32Array;
}

type FaultKind = "twice" | "nothing" | "mixture" | "unordered" | "missing" | "other";

export interface Fault {
  kind: FaultKind;
  rank: number;
  chunk: number;
  /** The step that did it, or the last one where the end is not as promised. */
  step: number;
  move: number | null;
  sentence: string;
}

const KEPT_CELLS = 12_000_000; // in all snapshots together: about 100 MB

export class Replay {
  readonly schedule: ScheduleJson;
  readonly promise: CollectiveFacts;
  readonly ranks: number;
  readonly width: number;
  readonly steps: number;
  /** Whether the collective combines; if not, a cell holds one contribution: of the rank where its datum started. */
  readonly reduces: boolean;
  readonly ends: Int32Array;
  /** The total number of moves. */
  readonly size: number;
  /** What its ranks bring, unless the reader types other numbers. */
  readonly values: string | null;
  /** Whether any move is combined on arrival, and whether any is copied. */
  readonly kinds: { reduce: boolean; copy: boolean };
  private readonly starts: number[];
  private readonly sets: Contributions;
  private readonly kept = new Map<number, State>();
  private recent: State;
  private readonly stride: number;
  private found: Fault[] | null = null;
  /** How many cells are promised something; and which were as promised when this was asked last. */
  private readonly promised: number;
  private readonly progressed: { done: number; right: number; cells: Uint8Array };
  /** What was answered, by steps done: the page asks for the step before and for the step itself in turns. */
  private readonly rightAfter = new Map<number, number>();

  constructor(given: Replayable) {
    const { schedule } = given;
    this.schedule = schedule;
    this.promise = given.promise;
    this.ranks = schedule.ranks;
    this.values = given.values ?? null;
    this.width = schedule.chunks + schedule.scratch;
    this.steps = schedule.steps.length;
    this.reduces = given.promise.reduces;
    this.sets = new Contributions(this.ranks, given.promise.idempotent);
    this.ends = this.flatten(given.ends);
    this.promised = this.ends.filter((wanted) => wanted !== NOTHING).length;
    this.progressed = { done: -2, right: 0, cells: new Uint8Array(this.ends.length) };
    this.starts = [0];
    for (const step of schedule.steps) this.starts.push(this.starts[this.starts.length - 1] + step.length);
    this.size = this.starts[this.steps];
    this.stride = Math.max(1, Math.ceil((this.steps * this.ranks * this.width) / KEPT_CELLS));
    const any = (reduces: number): boolean => schedule.steps.some((step) => step.some((row) => row[0] === reduces));
    this.kinds = { reduce: any(1), copy: any(0) };
    const datum = this.flatten(given.starts);
    const held = new Int32Array(datum.length);
    for (let cell = 0; cell < datum.length; cell++) {
      if (datum[cell] !== NOTHING) held[cell] = this.sets.single(Math.floor(cell / this.width));
    }
    this.recent = { done: 0, datum, held };
    this.kept.set(0, this.recent);
  }

  /** What each cell holds after `done` steps. Do not write into it. */
  at(done: number): State {
    const wanted = Math.max(0, Math.min(this.steps, Math.round(done)));
    const exact = this.kept.get(wanted);
    if (exact) return exact;
    let from = wanted;
    while (!this.kept.has(from) && this.recent.done !== from) from--;
    const state = copyOf(this.recent.done === from ? this.recent : this.kept.get(from)!);
    while (state.done < wanted) {
      this.advance(state, null);
      if (state.done < wanted && state.done % this.stride === 0) this.kept.set(state.done, copyOf(state));
    }
    if (wanted % this.stride === 0 || wanted === this.steps) this.kept.set(wanted, state);
    return (this.recent = state); // the next request is mostly for the next step
  }

  moves(step: number): Move[] {
    if (step < 0 || step >= this.steps) return [];
    return this.schedule.steps[step].map((row, i) => asMove(row, step, this.starts[step] + i));
  }

  /** The move with this number, counted over all steps. */
  move(number: number): Move {
    let low = 0;
    let high = this.steps;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (this.starts[middle] <= number) low = middle;
      else high = middle;
    }
    return asMove(this.schedule.steps[low][number - this.starts[low]], low, number);
  }

  /** The place of a move in its step. */
  placeIn(move: Move): number {
    return move.number - this.starts[move.step];
  }

  contributors(state: State, cell: number): number[] {
    return this.sets.members(state.held[cell]);
  }

  has(state: State, cell: number, rank: number): boolean {
    return this.sets.has(state.held[cell], rank);
  }

  count(state: State, cell: number): number {
    return this.sets.count(state.held[cell]);
  }

  /** For each rank that came more than once: how often. */
  doubled(state: State, cell: number): ReadonlyMap<number, number> {
    return this.sets.doubled(state.held[cell]);
  }

  /** Whether the cell holds what the collective promises; false where it promises nothing. */
  asPromised(state: State, cell: number): boolean {
    const wanted = this.ends[cell];
    if (wanted === NOTHING || state.datum[cell] !== wanted) return false;
    const set = state.held[cell];
    return !this.reduces || (this.holdsWanted(cell, set) && !this.sets.doubled(set).size);
  }

  /** The ranks that contribute to what a cell must hold in the end. */
  wanted(cell: number): number[] {
    const [first, end] = this.promise.contributors?.[Math.floor(cell / this.width)] ?? [0, this.ranks];
    return every(end - first).map((rank) => first + rank);
  }

  private holdsWanted(cell: number, set: number): boolean {
    if (!this.promise.contributors) return this.sets.count(set) === this.ranks;
    const wanted = this.wanted(cell);
    return this.sets.count(set) === wanted.length && wanted.every((rank) => this.sets.has(set, rank));
  }

  /** How many of the promised cells are as promised, and how many there are. */
  progress(state: State): { right: number; all: number } {
    const answered = this.rightAfter.get(state.done);
    if (answered !== undefined) return { right: answered, all: this.promised };
    const known = this.progressed;
    const look = (cell: number): void => {
      const right = Number(this.asPromised(state, cell));
      known.right += right - known.cells[cell];
      known.cells[cell] = right;
    };
    if (known.done === state.done - 1) {
      // Playing: only what the step has written can have changed.
      for (const [, , , destination, into] of this.schedule.steps[known.done]) look(destination * this.width + into);
    } else if (known.done !== state.done) {
      for (let cell = 0; cell < this.ends.length; cell++) look(cell);
    }
    known.done = state.done;
    this.rightAfter.set(state.done, known.right);
    return { right: known.right, all: this.promised };
  }

  /** The share of promised data that has arrived: in contributions if they are combined, otherwise in chunks. */
  arrived(state: State): number {
    let there = 0;
    let all = 0;
    for (let cell = 0; cell < this.ends.length; cell++) {
      const wanted = this.ends[cell];
      if (wanted === NOTHING) continue;
      const parts = !this.reduces ? 1 : this.promise.contributors ? this.wanted(cell).length : this.ranks;
      all += parts;
      if (state.datum[cell] === wanted) there += this.reduces ? Math.min(parts, this.count(state, cell)) : 1;
    }
    return all ? there / all : 1;
  }

  /** Everything that is wrong, in order of time; the cells that do not end as promised last. */
  faults(): Fault[] {
    if (this.found) return this.found;
    const faults: Fault[] = [];
    const state = copyOf(this.at(0));
    while (state.done < this.steps) this.advance(state, faults);
    const last = Math.max(0, this.steps - 1);
    for (let cell = 0; cell < this.ends.length; cell++) {
      if (this.ends[cell] === NOTHING || this.asPromised(state, cell)) continue;
      const kind =
        state.datum[cell] !== this.ends[cell] ? "other" : this.doubled(state, cell).size ? "twice" : "missing";
      faults.push({ kind, ...this.place(cell), step: last, move: null, sentence: this.complaint(state, cell) });
    }
    return (this.found = faults);
  }

  /**
   * What is wrong with a cell, as Python words it: "lacks rank 1 and has rank 3 twice"; empty if nothing is.
   * On the way, who is missing is named only if as many contributions are there as the end needs: others may still come.
   */
  complaint(state: State, cell: number, onTheWay = false): string {
    const parts: string[] = [];
    const wanted = this.ends[cell];
    if (wanted !== NOTHING && state.datum[cell] !== wanted) {
      return `holds ${this.nameOf(state.datum[cell])} instead of ${this.nameOf(wanted)}`;
    }
    const doubled = this.doubled(state, cell);
    const there = [...doubled.values()].reduce((sum, times) => sum + times - 1, this.count(state, cell));
    const needed = this.wanted(cell);
    if (this.reduces && wanted !== NOTHING && (!onTheWay || there >= needed.length)) {
      const missing = needed.filter((rank) => !this.has(state, cell, rank));
      if (missing.length) parts.push(`lacks ${nameRanks(missing)}`);
    }
    if (this.reduces && wanted !== NOTHING && !onTheWay && this.promise.contributors) {
      const surplus = this.contributors(state, cell).filter((rank) => !needed.includes(rank));
      if (surplus.length) parts.push(`has ${nameRanks(surplus)}, which it should not`);
    }
    for (const times of [...new Set(doubled.values())].sort((a, b) => a - b)) {
      const who = [...doubled].filter(([, n]) => n === times).map(([rank]) => rank);
      parts.push(`has ${nameRanks(who.sort((a, b) => a - b))} ${times === 2 ? "twice" : `${times} times`}`);
    }
    return parts.join(" and ");
  }

  /** A datum in words, as in Python. */
  nameOf(datum: number): string {
    if (datum === NOTHING) return "nothing";
    const { chunks } = this.schedule;
    const { sliced, exchanges } = this.promise;
    const part = sliced ? Math.max(1, Math.floor(chunks / this.ranks)) : 1;
    if (exchanges) {
      return `slice ${Math.floor((datum % chunks) / part)} of rank ${Math.floor(datum / chunks)}`;
    }
    return sliced ? `slice ${Math.floor(datum / part)}` : `chunk ${datum}`;
  }

  /** The moves through which each contribution of a cell came, from its start to here. */
  provenance(done: number, rank: number, chunk: number): { rank: number; path: Move[] }[] {
    const paths: { rank: number; path: Move[] }[] = [];
    const writes = this.writesBefore(done);
    const walk = (cell: number, before: number, tail: Move[]): void => {
      if (paths.length >= 4 * this.ranks) return; // a wrong schedule may double paths without end
      const step = lastBefore(writes.get(cell), before);
      if (step === null) {
        if (this.at(0).datum[cell] !== NOTHING) paths.push({ rank: Math.floor(cell / this.width), path: tail });
        return;
      }
      const here = this.moves(step).filter((move) => move.destination * this.width + move.into === cell);
      if (here.some((move) => move.reduces)) walk(cell, step, tail);
      for (const move of here) walk(move.source * this.width + move.chunk, step, [move, ...tail]);
    };
    walk(rank * this.width + chunk, done, []);
    return paths.sort((a, b) => a.rank - b.rank);
  }

  /** Whether any move writes into a cell. */
  writes(cell: number): boolean {
    const { rank, chunk } = this.place(cell);
    return this.schedule.steps.some((step) => step.some((row) => row[3] === rank && row[4] === chunk));
  }

  place(cell: number): { rank: number; chunk: number } {
    return { rank: Math.floor(cell / this.width), chunk: cell % this.width };
  }

  /** By cell, the steps that write into it, among those that are done. */
  private writesBefore(done: number): Map<number, number[]> {
    const writes = new Map<number, number[]>();
    for (let step = 0; step < done; step++) {
      for (const row of this.schedule.steps[step]) {
        const cell = row[3] * this.width + row[4];
        const steps = writes.get(cell);
        if (!steps) writes.set(cell, [step]);
        else if (steps[steps.length - 1] !== step) steps.push(step);
      }
    }
    return writes;
  }

  /** Take one step, in place: a thousand ranks have a million cells, and a step touches few of them. */
  private advance(state: State, faults: Fault[] | null): void {
    const step = state.done;
    const rows = this.schedule.steps[step];
    const { datum, held } = state;
    // Everything is read before anything is written, so the order of the moves of a step does not matter.
    const took = rows.map(([, chunk, source]) => source * this.width + chunk);
    const tookDatum = took.map((cell) => datum[cell]);
    const tookHeld = took.map((cell) => held[cell]);
    const hollow = rows.map(([, , , destination, into]) => datum[destination * this.width + into] === NOTHING);
    const written = faults && new Map<number, boolean>(); // by cell: whether it was copied into in this step
    const doubled = new Map<number, number>(); // by cell: the fault that is worded when all moves have arrived
    state.done = step + 1;
    for (let i = 0; i < rows.length; i++) {
      const [reduces, chunk, source, destination, into] = rows[i];
      const to = destination * this.width + into;
      const note = (kind: FaultKind, cell: number, says: (move: Move) => string): void => {
        const move = asMove(rows[i], step, this.starts[step] + i);
        faults?.push({ kind, ...this.place(cell), step, move: move.number, sentence: says(move) });
      };
      if (tookDatum[i] === NOTHING) {
        note("nothing", took[i], (move) => `${word(move)} takes chunk ${chunk} of rank ${source}, which holds nothing`);
        continue;
      }
      if (written) {
        const already = written.get(to);
        if (already !== undefined && (already || !reduces))
          note("unordered", to, () => `has two unordered writes in step ${step + 1}`);
        written.set(to, !reduces || already === true);
      }
      if (!reduces) {
        datum[to] = tookDatum[i];
        held[to] = tookHeld[i];
        continue;
      }
      if (hollow[i]) {
        note(
          "nothing",
          to,
          (move) => `${word(move)} reduces into chunk ${into} of rank ${destination}, which holds nothing`,
        );
        continue;
      }
      if (tookDatum[i] !== datum[to]) {
        note(
          "mixture",
          to,
          (move) => `${word(move)} mixes ${this.nameOf(tookDatum[i])} with ${this.nameOf(datum[to])}`,
        );
      }
      held[to] = this.sets.union(held[to], tookHeld[i]);
      if (faults && this.sets.doubled(held[to]).size && !doubled.has(to)) {
        doubled.set(to, faults.length);
        note("twice", to, () => "");
      }
    }
    for (const [cell, fault] of doubled) faults![fault].sentence = this.complaint(state, cell, true);
  }

  private flatten(rows: number[][]): Int32Array {
    const flat = new Int32Array(this.ranks * this.width).fill(NOTHING);
    rows.forEach((row, rank) => row.forEach((datum, chunk) => (flat[rank * this.width + chunk] = datum)));
    return flat;
  }
}

function copyOf(state: State): State {
  return { done: state.done, datum: state.datum.slice(), held: state.held.slice() };
}

function asMove(row: MoveRow, step: number, number: number): Move {
  const [reduces, chunk, source, destination, into, site] = row;
  return { number, step, reduces: reduces !== 0, chunk, source, destination, into, site };
}

function lastBefore(steps: number[] | undefined, before: number): number | null {
  if (!steps) return null;
  for (let i = steps.length - 1; i >= 0; i--) if (steps[i] < before) return steps[i];
  return null;
}

/** A move in one word, as everywhere: `+0:1→2@5`. */
export function word(move: Move): string {
  const into = move.into === move.chunk ? "" : `@${move.into}`;
  return `${move.reduces ? "+" : ""}${move.chunk}:${move.source}→${move.destination}${into}`;
}

/** `rank 3`, `ranks 1 and 2`, `ranks 0, 1, 2 and 40 more`. */
export function nameRanks(ranks: number[]): string {
  if (ranks.length === 1) return `rank ${ranks[0]}`;
  if (ranks.length > 8) return `ranks ${ranks.slice(0, 6).join(", ")} and ${ranks.length - 6} more`;
  return `ranks ${ranks.slice(0, -1).join(", ")} and ${ranks[ranks.length - 1]}`;
}
