/** The numbers of the grid: what every rank brings, how they are combined, and what a cell holds. Pure. */

import { every } from "./numbers";
import { NOTHING, type Move, type Replay, type State } from "./replay";

/** Up to this many ranks numbers are short enough to be read in a cell. */
export const MOST_RANKS = 16;

export const OPS = ["sum", "max", "min", "avg", "product", "band", "bor", "bxor"] as const;
type OpName = (typeof OPS)[number];

/** Whole numbers are added up as such, in 64 bits, as Python's int64; others as floating ones. */
type Amount = number | bigint;

export interface Numbers {
  op: OpName;
  /** The numbers that a rank brings for a datum; as many as the chunk has elements. */
  given(rank: number, datum: number): Amount[];
}

/** What is shown as long as nobody has typed numbers: one digit, different for neighbours. */
export const EXAMPLE: Numbers = { op: "sum", given: (rank, datum) => [1 + ((rank * 4 + datum * 5) % 9)] };

export const carriesNumbers = (replay: Replay): boolean => replay.promise.carries_data;

/** How many rows a text has, if it says it: one per rank. */
export const rowsIn = (text: string): number | null => (text.includes(";") ? text.split(";").length : null);

const NUMBER = /^[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?$/i;

/** `1 2 3; 4 5 6; 7 8 9`, one row per rank, as `allfold show --values` reads it; an error says what is wrong with it. */
export function readNumbers(text: string, op: string, replay: Replay): Numbers {
  const { chunks } = replay.schedule;
  const { ranks, promise } = replay;
  if (!OPS.includes(op as OpName)) throw new Error(`unknown operation “${op}”; known: ${OPS.join(", ")}`);
  let rows = text.split(";").map((row) => row.replace(/,/g, " ").split(/\s+/).filter(Boolean));
  const odd = rows.flat().find((word) => !NUMBER.test(word) || !isFinite(Number(word)));
  if (odd !== undefined) throw new Error(`“${odd}” is not a number; expected numbers, as in 1 2 3; 4 5 6; 7 8 9`);
  if (rows.length === 1 && promise.root_brings) rows = every(ranks).map(() => rows[0]);
  const long = rows[0].length;
  if (rows.length !== ranks || rows.some((row) => row.length !== long) || !long) {
    const lengths = rows.slice(0, 8).map((row) => row.length);
    throw new Error(
      `expected ${ranks} rows of equally many numbers, one row per rank, divided by “;”; got rows of ${lengths.join(", ")}`,
    );
  }
  if (promise.sliced && !promise.brings_slice && long % ranks)
    throw new Error(`${long} numbers cannot be divided into ${ranks} slices, one per rank`);
  const floating = rows.map((row) => row.map(Number));
  const whole = op !== "avg" && floating.flat().every(Number.isSafeInteger);
  if (replay.reduces && !whole && ["band", "bor", "bxor"].includes(op))
    throw new Error(`${op} is defined for whole numbers only`);
  const all: Amount[][] = whole ? floating.map((row) => row.map(BigInt)) : floating;
  const slice = promise.brings_slice;
  // As Python's `chunk_bounds` divides: part i of n elements goes from i·n//p on.
  const bound = (chunk: number): number => Math.floor((chunk * (slice ? ranks * long : long)) / chunks);
  return {
    op: op as OpName,
    given: (rank, datum) => {
      const chunk = datum % chunks;
      const before = slice ? rank * long : 0;
      return all[rank].slice(bound(chunk) - before, bound(chunk + 1) - before);
    },
  };
}

/** Digits for every rank, as many as there are chunks. */
export function randomNumbers(replay: Replay): string {
  const { chunks } = replay.schedule;
  const long = replay.promise.brings_slice ? chunks / replay.ranks : chunks;
  return every(replay.ranks)
    .map(() =>
      every(long)
        .map(() => Math.floor(Math.random() * 10))
        .join(" "),
    )
    .join("; ");
}

const int64 = (value: bigint): bigint => BigInt.asIntN(64, value);

function combine(op: OpName, one: Amount, other: Amount): Amount {
  if (op === "max") return one > other ? one : other;
  if (op === "min") return one < other ? one : other;
  if (typeof one === "bigint" && typeof other === "bigint") {
    if (op === "product") return int64(one * other);
    if (op === "band") return one & other;
    if (op === "bor") return one | other;
    if (op === "bxor") return one ^ other;
    return int64(one + other);
  }
  return op === "product" ? Number(one) * Number(other) : Number(one) + Number(other);
}

/** The numbers in a cell; null where it holds nothing. A part that came twice counts twice. */
function held(numbers: Numbers, replay: Replay, state: State, cell: number): Amount[] | null {
  const datum = state.datum[cell];
  if (datum === NOTHING) return null;
  const ranks = replay.contributors(state, cell);
  if (!replay.reduces) return numbers.given(ranks[0], datum);
  const doubled = replay.doubled(state, cell);
  const parts = ranks.flatMap((rank) => every(doubled.get(rank) ?? 1).map(() => numbers.given(rank, datum)));
  const total = parts.reduce((sum, part) => sum.map((one, i) => combine(numbers.op, one, part[i])));
  const complete = numbers.op === "avg" && ranks.length === replay.ranks;
  return complete ? total.map((one) => Number(one) / replay.ranks) : total;
}

/** `3 4`: a dash for a chunk without elements. */
const inWords = (amounts: Amount[]): string => amounts.map(word).join(" ") || "–";

/** Six digits at most, as Python's `%g`. */
function word(amount: Amount): string {
  if (typeof amount === "bigint" || !isFinite(amount) || amount === 0) return String(amount);
  const [mantissa, exponent] = amount.toExponential(5).split("e");
  const power = Number(exponent);
  if (power >= -4 && power < 6) return String(Number(amount.toPrecision(6)));
  return `${Number(mantissa)}e${power < 0 ? "-" : "+"}${String(Math.abs(power)).padStart(2, "0")}`;
}

/** What a cell shows; null where it holds nothing. */
export function amountIn(numbers: Numbers, replay: Replay, state: State, cell: number): string | null {
  const amounts = held(numbers, replay, state, cell);
  return amounts && inWords(amounts);
}

const SIGNS: Partial<Record<OpName, string>> = {
  sum: " + ",
  avg: " + ",
  product: " × ",
  band: " & ",
  bor: " | ",
  bxor: " ^ ",
};

/** What stands between the parts of a result: ` + `. */
export const signOf = (op: string): string => SIGNS[op as OpName] ?? ", ";

/** `2 + 5 + 8 = 15`, `max of 2, 5, 8 = 8`. */
function equation(op: OpName, terms: string[], result: string, divided: number): string {
  const sign = SIGNS[op];
  if (!sign) return `${op} of ${terms.join(", ")} = ${result}`;
  return `${terms.join(sign)}${divided ? `, divided by ${divided}` : ""} = ${result}`;
}

/** The parts of the number in a cell, by rank, and what they make. */
export function sumIn(numbers: Numbers, replay: Replay, state: State, cell: number): string {
  const result = amountIn(numbers, replay, state, cell) ?? "";
  const doubled = replay.doubled(state, cell);
  const ranks = replay.contributors(state, cell);
  const terms = ranks.flatMap((rank) =>
    every(doubled.get(rank) ?? 1).map(() => inWords(numbers.given(rank, state.datum[cell]))),
  );
  const complete = numbers.op === "avg" && ranks.length === replay.ranks;
  return terms.length === 1
    ? `${terms[0]} = ${result}`
    : equation(numbers.op, terms, result, complete ? replay.ranks : 0);
}

/** What a cell must hold in the end: what those that contribute to it together make of its datum. */
export function resultOf(numbers: Numbers, replay: Replay, cell: number): string {
  const all = replay.wanted(cell).map((rank) => numbers.given(rank, replay.ends[cell]));
  const total = all.reduce((sum, part) => sum.map((one, i) => combine(numbers.op, one, part[i])));
  return inWords(numbers.op === "avg" ? total.map((one) => Number(one) / replay.ranks) : total);
}

/** One cell that a step changes, and how: `6 + 3 from rank 0 = 9`. */
interface Change {
  rank: number;
  chunk: number;
  says: string;
}

/** The places that a step changes, with the numbers that move and what they make; in the words of `allfold show --values`. */
export function changesOf(numbers: Numbers, replay: Replay, step: number): Change[] {
  const [before, after] = [replay.at(step - 1), replay.at(step)];
  const into = new Map<number, Move[]>();
  for (const move of replay.moves(step - 1)) {
    const cell = move.destination * replay.width + move.into;
    into.set(cell, [...(into.get(cell) ?? []), move]);
  }
  return [...into]
    .sort(([one], [other]) => one - other)
    .map(([cell, moves]) => {
      const { rank, chunk } = replay.place(cell);
      const own = amountIn(numbers, replay, before, cell);
      const coming = moves.map((move) => {
        const amount = amountIn(numbers, replay, before, move.source * replay.width + move.chunk) ?? "nothing";
        return move.source === rank ? amount : `${amount} from rank ${move.source}`;
      });
      if (!moves.some((move) => move.reduces)) {
        const last = coming[coming.length - 1];
        return { rank, chunk, says: own === null ? last : `${last} in place of ${own}` };
      }
      const result = amountIn(numbers, replay, after, cell) ?? "nothing";
      const complete = numbers.op === "avg" && replay.count(after, cell) === replay.ranks;
      const terms = own === null ? coming : [own, ...coming];
      return { rank, chunk, says: equation(numbers.op, terms, result, complete ? replay.ranks : 0) };
    });
}

/** `rank 1, chunk 2: 6 + 3 from rank 0 = 9`. */
export function changeInWords(replay: Replay, { rank, chunk, says }: Change): string {
  return `rank ${rank}${replay.schedule.chunks > 1 ? `, chunk ${chunk}` : ""}: ${says}`;
}
