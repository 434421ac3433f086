/** The shape of an algorithm: where its ranks stand so that a ring is a ring and a tree a tree. Pure. */

import { every, unique } from "../numbers";
import type { Replay } from "../replay";
import type { Point } from "../svg";
import { layOutTree, type Tree } from "../trees";

interface Box extends Point {
  width: number;
  height: number;
  host: number;
}

interface Shape {
  kind: "ring" | "tree" | "circle" | "hosts";
  height: number;
  radius: number;
  spots: Point[];
  /** The hosts, where they can be drawn as boxes around their ranks. */
  boxes: Box[];
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

/** `host` says on which host each rank is; nothing if that is unknown. */
export function shapeOf(replay: Replay, width: number, host: number[] = []): Shape {
  const near = neighboursOf(replay);
  const hosts = unique(host.slice(0, replay.ranks));
  const links = near.reduce((sum, one) => sum + one.size, 0) / 2;
  const walk = ringOf(near);
  if (walk && replay.ranks > 2) return boxed(onCircle("ring", walk, width, hosts.length > 1), host);
  const tree = links === replay.ranks - 1 && replay.ranks > 1 ? treeOf(near, centreOf(replay, near)) : null;
  const drawn = tree && asTree(tree, replay.ranks, width);
  if (drawn) return boxed(drawn, host);
  const inHosts = hosts.length > 1 && hosts.length < replay.ranks ? asHosts(host.slice(0, replay.ranks), width) : null;
  return inHosts ?? onCircle("circle", every(replay.ranks), width, false);
}

/** Boxes around the ranks of each host; none if they would overlap, or if there is one host only. */
function boxed(shape: Shape, host: number[]): Shape {
  const edge = shape.radius + 7;
  const boxes = unique(host.slice(0, shape.spots.length)).map((one): Box => {
    const spots = shape.spots.filter((_, rank) => host[rank] === one);
    const [xs, ys] = [spots.map((spot) => spot.x), spots.map((spot) => spot.y)];
    const [x, y] = [Math.min(...xs) - edge, Math.min(...ys) - edge];
    return { x, y, width: Math.max(...xs) + edge - x, height: Math.max(...ys) + edge - y, host: one };
  });
  const apart = boxes.every((one, i) =>
    boxes
      .slice(i + 1)
      .every(
        (other) =>
          one.x + one.width <= other.x ||
          other.x + other.width <= one.x ||
          one.y + one.height <= other.y ||
          other.y + other.height <= one.y,
      ),
  );
  return { ...shape, boxes: apart && boxes.length > 1 ? boxes : [] };
}

/** Hosts side by side and below each other, the ranks of each in reading order, in as many rows as columns. */
function asHosts(host: number[], width: number): Shape | null {
  const hosts = unique(host);
  const across = hosts.length <= 3 ? hosts.length : Math.ceil(Math.sqrt(hosts.length));
  const side = Math.min(150, (width - 4) / across);
  const most = Math.max(...hosts.map((one) => host.filter((other) => other === one).length));
  const columns = Math.ceil(Math.sqrt(most));
  const rows = Math.ceil(most / columns);
  // The lowest strip is for the host's name.
  const pitchX = (side - 12) / columns;
  const pitchY = (side - 26) / rows;
  const radius = Math.min(12, Math.min(pitchX, pitchY) * 0.36);
  if (side < 44 || radius < 3.5) return null;
  const left = (width - across * side) / 2;
  const spots: Point[] = [];
  const boxes = hosts.map((one, i): Box => {
    const [x, y] = [left + (i % across) * side, 4 + Math.floor(i / across) * side];
    const ranks = every(host.length).filter((rank) => host[rank] === one);
    ranks.forEach((rank, j) => {
      spots[rank] = {
        x: x + 6 + ((j % columns) + 0.5) * pitchX,
        y: y + 6 + (Math.floor(j / columns) + 0.5) * pitchY,
      };
    });
    return { x: x + 3, y: y + 3, width: side - 6, height: side - 6, host: one };
  });
  return { kind: "hosts", height: 8 + Math.ceil(hosts.length / across) * side, radius, spots, boxes };
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
  const edge = 24; // the largest rank, and the box of its host around it
  const pitch = (width - 2 * edge) / Math.max(1, leaves - 1);
  if (placed.length !== ranks || (leaves > 1 && pitch < 9)) return null;
  const level = Math.min(56, 260 / Math.max(1, depth));
  const spots: Point[] = [];
  for (const one of placed) {
    spots[one.rank] = { x: leaves > 1 ? edge + one.across * pitch : width / 2, y: edge + one.depth * level };
  }
  return {
    kind: "tree",
    height: 2 * edge + depth * level,
    radius: Math.max(4, Math.min(12, pitch * 0.4, level * 0.3)),
    spots,
    boxes: [],
  };
}

/** `between`: the top lies between the first and the last, so that hosts are halves or quarters. */
function onCircle(kind: "ring" | "circle", order: number[], width: number, between: boolean): Shape {
  const side = Math.min(width, 280);
  const far = side / 2 - 22;
  const spots: Point[] = [];
  order.forEach((rank, i) => {
    const angle = (2 * Math.PI * (i + (between ? 0.5 : 0))) / order.length - Math.PI / 2;
    spots[rank] = { x: width / 2 + far * Math.cos(angle), y: side / 2 + far * Math.sin(angle) };
  });
  const radius = Math.max(4, Math.min(13, (far * Math.PI) / order.length - 1.5));
  return { kind, height: side, radius, spots, boxes: [] };
}

const bows = new WeakMap<Point[], Map<string, number>>();

/** How far an arrow is bent to the side: a little, or as far as it takes to pass by the ranks in its way. */
export function bowOf(spots: Point[], source: number, destination: number, radius: number): number {
  let known = bows.get(spots);
  if (!known) bows.set(spots, (known = new Map<string, number>()));
  const key = `${source} ${destination}`;
  const found = known.get(key) ?? bend(spots, source, destination, radius);
  known.set(key, found);
  return found;
}

function bend(spots: Point[], source: number, destination: number, radius: number): number {
  const [from, to] = [spots[source], spots[destination]];
  const [dx, dy] = [to.x - from.x, to.y - from.y];
  const far = Math.hypot(dx, dy) || 1;
  const least = Math.min(14, far * 0.08);
  const others = spots.filter((_, rank) => rank !== source && rank !== destination);
  const hits = (bow: number): number => {
    const middle = { x: (from.x + to.x) / 2 - (dy / far) * bow, y: (from.y + to.y) / 2 + (dx / far) * bow };
    const way = every(15).map((i) => {
      const t = (i + 1) / 16;
      const along = (a: number, b: number, c: number): number => (1 - t) ** 2 * a + 2 * t * (1 - t) * b + t * t * c;
      return { x: along(from.x, middle.x, to.x), y: along(from.y, middle.y, to.y) };
    });
    return others.filter((one) => way.some(({ x, y }) => Math.hypot(one.x - x, one.y - y) < radius + 2)).length;
  };
  const wide = 2 * radius + 6;
  const tries = [0, 1, -1, 2, -2, 3, -3]
    .map((i) => least + i * wide)
    .filter((bow) => Math.abs(bow) < far || bow === least);
  return tries.reduce((best, bow) => (hits(bow) < hits(best) ? bow : best));
}

/** Where the name of a host has most room: in the middle of its box, or in a corner. */
export function nameAt(box: Box, spots: Point[]): Point & { anchor: "start" | "middle" | "end" } {
  const [left, right] = [box.x + 6, box.x + box.width - 6];
  const [top, bottom] = [box.y + 14, box.y + box.height - 6];
  const free = [
    { x: box.x + box.width / 2, y: box.y + box.height / 2 + 4, anchor: "middle" as const },
    { x: left, y: bottom, anchor: "start" as const },
    { x: right, y: bottom, anchor: "end" as const },
    { x: left, y: top, anchor: "start" as const },
    { x: right, y: top, anchor: "end" as const },
  ];
  const wide = 38; // pixels of `host 0`
  const room = ({ x, y, anchor }: (typeof free)[number]): number => {
    const middle = x + (anchor === "start" ? wide / 2 : anchor === "end" ? -wide / 2 : 0);
    // To the nearest point of the name, which is longer than high.
    return Math.min(
      ...spots.map((spot) => Math.hypot(Math.max(0, Math.abs(spot.x - middle) - wide / 2), spot.y - y + 4)),
    );
  };
  return free.reduce((best, one) => (room(one) > room(best) ? one : best));
}

/** Pairs that are drawn faintly: everybody who talks to somebody, once. */
export function pairsOf(near: Set<number>[]): [number, number][] {
  return unique(
    near.flatMap((others, rank) => [...others].filter((other) => other > rank).map((other) => `${rank} ${other}`)),
  ).map((pair) => pair.split(" ").map(Number) as [number, number]);
}
