/** How chunks travel: the moves of every chunk as a tree, and chunks that take the same tree together. Pure. */

import type { Entry, MoveRow } from "./document";
import { unique } from "./numbers";
import { NOTHING, type Replay } from "./replay";

interface Branch {
  source: number;
  destination: number;
  reduces: boolean;
  /** The first step in which a chunk takes it, counted from 0. */
  step: number;
}

export interface Tree {
  /** Where it grows from, or where it ends when it collects; null if its moves are no tree. */
  root: number | null;
  /** The columns of the grid that it fills. */
  chunks: number[];
  /** How many chunks of the buffer travel on it. */
  carries: number;
  branches: Branch[];
}

/** With more moves than this nobody picks one tree. */
const MOST_MOVES = 400_000;

/** Every way that chunks take, by root. None for collectives whose chunks go one way each, or carry nothing. */
export function treesOf(replay: Replay): Tree[] {
  const { carries_data, exchanges } = replay.promise;
  if (!carries_data || exchanges || replay.size > MOST_MOVES) return [];
  const trees = new Map<string, Tree>();
  for (const [datum, ways] of waysOf(replay)) {
    const branches = [...ways.branches.values()];
    const name = branches
      .map((one) => `${one.reduces ? "+" : ""}${one.source}>${one.destination}`)
      .sort()
      .join(" ");
    const known = trees.get(name);
    if (!known) {
      trees.set(name, { root: rootOf(branches), chunks: unique([datum, ...ways.columns]), carries: 1, branches });
      continue;
    }
    known.carries++;
    known.chunks = unique([...known.chunks, datum, ...ways.columns]);
    for (const one of known.branches) {
      const again = branches.find((other) => same(one, other))!;
      one.step = Math.min(one.step, again.step);
    }
  }
  const all = [...trees.values()];
  for (const tree of all) tree.chunks.sort((a, b) => a - b);
  return all.sort((a, b) => (a.root ?? replay.ranks) - (b.root ?? replay.ranks) || a.chunks[0] - b.chunks[0]);
}

const same = (one: Branch, other: Branch): boolean =>
  one.source === other.source && one.destination === other.destination && one.reduces === other.reduces;

interface Ways {
  branches: Map<string, Branch>;
  columns: Set<number>;
}

/** By datum: between which ranks it moves, and the columns in which it lies. */
function waysOf(replay: Replay): Map<number, Ways> {
  const found = new Map<number, Ways>();
  const datum = replay.at(0).datum.slice();
  replay.schedule.steps.forEach((rows, step) => {
    const taken = rows.map(([, chunk, source]) => datum[source * replay.width + chunk]);
    rows.forEach(([reduces, chunk, source, destination, into], i) => {
      if (taken[i] === NOTHING) return;
      if (!reduces) datum[destination * replay.width + into] = taken[i];
      if (source === destination) return;
      let ways = found.get(taken[i]);
      if (!ways) found.set(taken[i], (ways = { branches: new Map(), columns: new Set() }));
      ways.columns.add(chunk).add(into);
      const key = `${reduces}${source}>${destination}`;
      if (!ways.branches.has(key)) ways.branches.set(key, { source, destination, reduces: reduces !== 0, step });
    });
  });
  return found;
}

/** The root of branches that collect, spread, or collect and then spread from the same rank. */
function rootOf(branches: Branch[]): number | null {
  const collecting = branches.filter((one) => one.reduces);
  const spreading = branches.filter((one) => !one.reduces);
  const roots = unique(
    [
      top(collecting.map((one) => [one.destination, one.source])),
      top(spreading.map((one) => [one.source, one.destination])),
    ].filter((root) => root !== undefined),
  );
  return roots.length === 1 ? roots[0] : null;
}

/** The one parent that is nobody's child, if every child has one parent; undefined without branches. */
function top(pairs: [parent: number, child: number][]): number | null | undefined {
  if (!pairs.length) return undefined;
  const children = new Set(pairs.map(([, child]) => child));
  const tops = unique(pairs.map(([parent]) => parent).filter((parent) => !children.has(parent)));
  return children.size === pairs.length && tops.length === 1 ? tops[0] : null;
}

export interface Placed {
  rank: number;
  /** How many branches lie between it and the root, and where it stands among the others: leaves are whole numbers. */
  depth: number;
  across: number;
  parent: Placed | null;
  branch: Branch | null;
}

/** A tree laid out: leaves side by side, every other rank above the middle of its children. */
export function layOutTree(tree: Tree, reduces: boolean): { ranks: Placed[]; leaves: number; depth: number } {
  const below = new Map<number, Branch[]>();
  for (const branch of tree.branches) {
    if (branch.reduces !== reduces) continue;
    const parent = reduces ? branch.destination : branch.source;
    below.set(parent, [...(below.get(parent) ?? []), branch]);
  }
  const ranks: Placed[] = [];
  let leaves = 0;
  const place = (rank: number, parent: Placed | null, branch: Branch | null): Placed => {
    const here: Placed = { rank, depth: parent ? parent.depth + 1 : 0, across: 0, parent, branch };
    ranks.push(here);
    const children = (below.get(rank) ?? []).map((one) => place(reduces ? one.source : one.destination, here, one));
    here.across = children.length ? (children[0].across + children[children.length - 1].across) / 2 : leaves++;
    return here;
  };
  if (tree.root !== null) place(tree.root, null, null);
  return { ranks, leaves, depth: Math.max(0, ...ranks.map((one) => one.depth)) };
}

/** The messages that carry some of these chunks, as `step source destination`. */
export function ridesOf(replay: Replay, wanted: number[]): Set<string> {
  const chunks = new Set(wanted);
  const rides = new Set<string>();
  replay.schedule.steps.forEach((rows, step) => {
    for (const [, chunk, source, destination] of rows)
      if (chunks.has(chunk)) rides.add(`${step} ${source} ${destination}`);
  });
  return rides;
}

/** Only some columns of an entry, as an entry of its own: for more chunks than a grid has room for. */
export function onlyChunks(entry: Entry, chunks: number[]): Entry {
  const column = new Map(chunks.map((chunk, i) => [chunk, i]));
  const pick = (rows: number[][]): number[][] =>
    rows.map((row) => chunks.map((chunk) => column.get(row[chunk]) ?? NOTHING));
  const steps = entry.schedule.steps.map((rows) =>
    rows
      .filter(([, chunk, , , into]) => column.has(chunk) && column.has(into))
      .map(([reduces, chunk, source, destination, into, site]): MoveRow => {
        return [reduces, column.get(chunk)!, source, destination, column.get(into)!, site];
      }),
  );
  return {
    ...entry,
    schedule: { ...entry.schedule, chunks: chunks.length, scratch: 0, steps },
    starts: pick(entry.starts),
    ends: pick(entry.ends),
  };
}
