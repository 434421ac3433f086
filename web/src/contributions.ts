/**
 * Sets of ranks that have contributed, each stored once and identified by its number.
 *
 * A set is stored as runs of consecutive ranks, since that is what algorithms make, and unions are cached. Everything
 * is in plain arrays: a ring of a thousand ranks makes a million different sets, too many for one object each.
 */

const EMPTY = 0;

export class Contributions {
  /** first, last, first, last … of the runs of all sets; the runs of set s begin at `starts[s]`. */
  private runs = new Int32Array(1 << 12);
  private starts = new Int32Array(1 << 10);
  private counts = new Int32Array(1 << 10);
  private sets = 0;
  /** For the few sets in which a rank occurs more than once: how often. */
  private readonly more = new Map<number, ReadonlyMap<number, number>>();
  private readonly unions = new PairTable();

  /** Where duplicates do no harm, as in a barrier, they are not recorded. */
  constructor(
    ranks: number,
    private readonly idempotent: boolean,
  ) {
    this.add([]);
    for (let rank = 0; rank < ranks; rank++) this.add([rank, rank]);
  }

  /** The set of one rank alone. */
  single(rank: number): number {
    return rank + 1;
  }

  count(set: number): number {
    return this.counts[set];
  }

  has(set: number, rank: number): boolean {
    for (let i = this.starts[set]; i < this.starts[set + 1]; i += 2) {
      if (rank >= this.runs[i] && rank <= this.runs[i + 1]) return true;
    }
    return false;
  }

  members(set: number): number[] {
    const ranks: number[] = [];
    for (let i = this.starts[set]; i < this.starts[set + 1]; i += 2) {
      for (let rank = this.runs[i]; rank <= this.runs[i + 1]; rank++) ranks.push(rank);
    }
    return ranks;
  }

  /** For each rank that occurs more than once: how often. */
  doubled(set: number): ReadonlyMap<number, number> {
    return this.more.get(set) ?? NONE;
  }

  union(one: number, other: number): number {
    if (one === EMPTY || other === EMPTY) return one + other;
    const known = this.unions.get(one, other);
    if (known >= 0) return known;
    const made = this.add(this.merge(one, other));
    this.unions.set(one, other, made);
    const overlaps = this.counts[made] < this.counts[one] + this.counts[other];
    if (!this.idempotent && (overlaps || this.more.has(one) || this.more.has(other))) {
      const times = (set: number, rank: number): number => this.doubled(set).get(rank) ?? Number(this.has(set, rank));
      const counted = this.members(made).map((rank): [number, number] => [rank, times(one, rank) + times(other, rank)]);
      this.more.set(made, new Map(counted.filter(([, often]) => often > 1)));
    }
    return made;
  }

  /** Merge two sorted lists of runs; adjacent runs are joined. */
  private merge(one: number, other: number): number[] {
    const { runs, starts } = this;
    const merged: number[] = [];
    let [i, j] = [starts[one], starts[other]];
    const [endI, endJ] = [starts[one + 1], starts[other + 1]];
    while (i < endI || j < endJ) {
      const at = j >= endJ || (i < endI && runs[i] <= runs[j]) ? (i += 2) - 2 : (j += 2) - 2;
      const end = merged.length - 1;
      if (end > 0 && runs[at] <= merged[end] + 1) merged[end] = Math.max(merged[end], runs[at + 1]);
      else merged.push(runs[at], runs[at + 1]);
    }
    return merged;
  }

  private add(runs: number[]): number {
    const set = this.sets++;
    if (set + 2 > this.starts.length) {
      this.starts = grown(this.starts);
      this.counts = grown(this.counts);
    }
    const start = this.starts[set];
    while (start + runs.length > this.runs.length) this.runs = grown(this.runs);
    this.runs.set(runs, start);
    this.starts[set + 1] = start + runs.length;
    let count = 0;
    for (let i = 0; i < runs.length; i += 2) count += runs[i + 1] - runs[i] + 1;
    this.counts[set] = count;
    return set;
  }
}

const NONE: ReadonlyMap<number, number> = new Map();

/** A hash table from pairs of numbers to numbers, with open addressing; a Map would need a million boxed keys. */
class PairTable {
  private cells = new Int32Array(3 << 10).fill(-1);
  private filled = 0;

  get(one: number, other: number): number {
    return this.cells[this.place(one, other) + 2];
  }

  set(one: number, other: number, value: number): void {
    if (++this.filled * 6 > this.cells.length) this.grow(); // at most half full
    const at = this.place(one, other);
    this.cells[at] = one;
    this.cells[at + 1] = other;
    this.cells[at + 2] = value;
  }

  private place(one: number, other: number): number {
    const { cells } = this;
    const mask = cells.length / 3 - 1;
    let at = (Math.imul(one, 0x9e3779b1) ^ Math.imul(other, 0x85ebca6b)) >>> 0;
    at = (at ^ (at >>> 15)) & mask;
    while (cells[3 * at + 2] >= 0 && (cells[3 * at] !== one || cells[3 * at + 1] !== other)) at = (at + 1) & mask;
    return 3 * at;
  }

  private grow(): void {
    const old = this.cells;
    this.cells = new Int32Array(2 * old.length).fill(-1);
    for (let i = 0; i < old.length; i += 3) {
      if (old[i + 2] >= 0) this.cells.set(old.subarray(i, i + 3), this.place(old[i], old[i + 1]));
    }
  }
}

function grown(array: Int32Array<ArrayBuffer>): Int32Array<ArrayBuffer> {
  const larger = new Int32Array(2 * array.length);
  larger.set(array);
  return larger;
}
