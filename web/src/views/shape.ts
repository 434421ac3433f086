/** The shape of an algorithm: where its ranks stand so that a ring is a ring and a tree a tree. Pure. */

import { every, unique } from "../numbers";
import type { Replay } from "../replay";
import { layOutTree, type Tree } from "../trees";

export interface Spot {
  x: number;
  y: number;
}

export interface Shape {
  kind: "ring" | "tree" | "circle";
  height: number;
  radius: number;
  spots: Spot[];
}

/** Up to this many ranks a picture of all of them says something. */
export const MOST_DRAWN = 64;

/** Who talks to whom, in any step and direction. */
export function neighboursOf(replay: Replay): Set<number>[] {
  const near = every(replay.ranks).map(() => new Set<number>());
  for (const step of replay.schedule.steps) {
    for (const [, , source, destination] of step) {
      if (source === destination) continue;
      near[source].add(destination);
      near[destination].add(source);
    }
  }
  return near;
}

export function shapeOf(replay: Replay, width: number): Shape {
  const near = neighboursOf(replay);
  const links = near.reduce((sum, one) => sum + one.size, 0) / 2;
  const walk = ringOf(near);
  if (walk && replay.ranks > 2) return onCircle("ring", walk, width);
  const tree = links === replay.ranks - 1 && replay.ranks > 1 ? treeOf(near, centreOf(replay, near)) : null;
  return (tree && asTree(tree, replay.ranks, width)) ?? onCircle("circle", every(replay.ranks), width);
}

/** The ranks in the order of a walk around, if everybody has two neighbours and all are on one ring. */
function ringOf(near: Set<number>[]): number[] | null {
  if (near.some((one) => one.size !== 2)) return null;
  const walk = [0];
  let before = -1;
  let here = 0;
  for (;;) {
    const next = [...near[here]].sort((a, b) => a - b).find((one) => one !== before)!;
    if (next === 0 || walk.length > near.length) break;
    walk.push(next);
    [before, here] = [here, next];
  }
  return walk.length === near.length ? walk : null;
}

/** Where a tree hangs from: the root of the collective, or whoever sends last to most others. */
function centreOf(replay: Replay, near: Set<number>[]): number {
  if (replay.schedule.root !== null) return replay.schedule.root;
  return near.reduce((best, one, rank) => (one.size > near[best].size ? rank : best), 0);
}

/** The connections as a tree from this rank; null if they do not reach everybody. */
function treeOf(near: Set<number>[], root: number): Tree | null {
  const branches: Tree["branches"] = [];
  const seen = new Set([root]);
  const queue = [root];
  for (const source of queue) {
    for (const destination of near[source]) {
      if (seen.has(destination)) continue;
      seen.add(destination);
      queue.push(destination);
      branches.push({ source, destination, reduces: false, step: 0 });
    }
  }
  return seen.size === near.length ? { root, chunks: [], carries: 0, branches } : null;
}

function asTree(tree: Tree, ranks: number, width: number): Shape | null {
  const { ranks: placed, leaves, depth } = layOutTree(tree, false);
  const pitch = (width - 36) / Math.max(1, leaves - 1);
  if (placed.length !== ranks || (leaves > 1 && pitch < 9)) return null;
  const level = Math.min(56, 260 / Math.max(1, depth));
  const spots: Spot[] = [];
  for (const one of placed) {
    spots[one.rank] = { x: leaves > 1 ? 18 + one.across * pitch : width / 2, y: 22 + one.depth * level };
  }
  return {
    kind: "tree",
    height: 44 + depth * level,
    radius: Math.max(4, Math.min(12, pitch * 0.4, level * 0.3)),
    spots,
  };
}

function onCircle(kind: "ring" | "circle", order: number[], width: number): Shape {
  const side = Math.min(width, 280);
  const far = side / 2 - 22;
  const spots: Spot[] = [];
  order.forEach((rank, i) => {
    const angle = (2 * Math.PI * i) / order.length - Math.PI / 2;
    spots[rank] = { x: width / 2 + far * Math.cos(angle), y: side / 2 + far * Math.sin(angle) };
  });
  return { kind, height: side, radius: Math.max(4, Math.min(13, (far * Math.PI) / order.length - 1.5)), spots };
}

/** Pairs that are drawn faintly: everybody who talks to somebody, once. */
export function pairsOf(near: Set<number>[]): [number, number][] {
  return unique(
    near.flatMap((others, rank) => [...others].filter((other) => other > rank).map((other) => `${rank} ${other}`)),
  ).map((pair) => pair.split(" ").map(Number) as [number, number]);
}
