/** Where the ranks and links of networks without a tree of switches are drawn: tori, meshes and dragonflies. */

import type { LinkJson, TopologyJson } from "../document";
import { every, tenth } from "../numbers";
import { point, type Point } from "../svg";
import { placed, type Box, type Drawing, type Shape } from "./drawing";

/** A torus, mesh or hypercube: one dimension is a circle, two are a grid, three a cube, four a row of cubes. */
export function cabled(topology: TopologyJson, links: LinkJson[], ranks: number, width: number): Drawing {
  const shape = shapeOf(topology, links);
  const high = Math.min(460, Math.max(280, width * 0.5));
  const at = shape.length === 1 ? onCircle(shape[0], width, high) : onGrid(shape, width, high);
  const circles = every(Math.min(ranks, topology.ranks)).map((rank) => ({ rank, ...at(rank), r: 14 }));
  const lowest = Math.max(...every(topology.ranks).map((node) => at(node).y));
  const strides = shape.map((_, d) => shape.slice(d + 1).reduce((product, one) => product * one, 1));
  const shapes: Shape[] = [];
  for (const { link, place } of placed(links, "dimension")) {
    const { node, dimension, down } = place;
    if (node >= topology.ranks || dimension >= shape.length) continue; // files are not trusted
    const along = Math.floor(node / strides[dimension]) % shape[dimension];
    const next = (along + (down ? shape[dimension] - 1 : 1)) % shape[dimension];
    const other = node + (next - along) * strides[dimension];
    if (other === node) continue;
    const [from, to] = [at(node), at(other)];
    const around = Math.abs(next - along) > 1;
    // The two directions of a cable lie side by side; the wrap-around cable is curved.
    const [dx, dy] = [to.x - from.x, to.y - from.y];
    const far = Math.hypot(dx, dy) || 1;
    const bow = shape.length === 1 ? 6 : around ? Math.min(0.28 * far, 24) : 5;
    const middle = {
      x: (from.x + to.x) / 2 + (-dy / far) * bow * 1.6,
      y: (from.y + to.y) / 2 + (dx / far) * bow * 1.6,
    };
    shapes.push({
      link,
      path: `M${point(from)}Q${point(middle)} ${point(to)}`,
      ranks: [node, other].filter((one) => one < ranks),
    });
  }
  return { height: Math.min(high, lowest + 50), widest: 8, boxes: [], ranks: circles, shapes };
}

/** A hypercube is two ranks wide in every dimension; a ring, or a file that says nothing, has one dimension. */
function shapeOf(topology: TopologyJson, links: LinkJson[]): number[] {
  const given = topology.parameters?.shape;
  if (Array.isArray(given)) return given as number[];
  const dimensions = Math.max(...placed(links, "dimension").map(({ place }) => place.dimension)) + 1;
  return topology.ranks === 2 ** dimensions ? every(dimensions).map(() => 2) : [topology.ranks];
}

function onCircle(many: number, width: number, high: number): (node: number) => Point {
  const radius = Math.min(width / 2 - 30, high / 2 - 28);
  return (node) => {
    const angle = (2 * Math.PI * node) / many - Math.PI / 2;
    return { x: width / 2 + radius * Math.cos(angle), y: high / 2 + radius * Math.sin(angle) };
  };
}

function onGrid(shape: number[], width: number, high: number): (node: number) => Point {
  const units = unitsOf(shape);
  const [xs, ys] = [units.map(({ x }) => x), units.map(({ y }) => y)];
  const [left, top] = [Math.min(...xs), Math.min(...ys)];
  const [wide, tall] = [Math.max(...xs) - left, Math.max(...ys) - top];
  const pitchX = Math.min(170, (width - 110) / Math.max(1, wide));
  const pitchY = Math.min(170, (high - 110) / Math.max(1, tall));
  return (node) => ({
    x: (width - wide * pitchX) / 2 + (units[node].x - left) * pitchX,
    y: 55 + (units[node].y - top) * pitchY,
  });
}

/**
 * Columns, rows, then every further dimension in a direction of its own: grids behind each other, each a bit further to
 * the right and up, as a cube is drawn; then such cubes side by side, a bit lower; then below each other, and so on. No
 * two directions are the same, so no link lies behind a third node.
 */
function unitsOf(shape: number[]): Point[] {
  let units: Point[] = [{ x: 0, y: 0 }];
  [...shape].reverse().forEach((many, k) => {
    const wide = Math.max(...units.map(({ x }) => x)) - Math.min(...units.map(({ x }) => x));
    const tall = Math.max(...units.map(({ y }) => y)) - Math.min(...units.map(({ y }) => y));
    const way =
      k === 0
        ? { x: 1, y: 0 }
        : k === 1
          ? { x: 0, y: 1 }
          : k === 2
            ? { x: 0.42, y: -0.34 }
            : k % 2
              ? { x: wide + 0.68, y: 0.5 }
              : { x: 0.3, y: tall + 0.68 };
    units = every(many).flatMap((i) => units.map(({ x, y }) => ({ x: x + i * way.x, y: y + i * way.y })));
  });
  return units;
}

/** Groups as boxes, routers in them, ranks below; cables to other groups go up. */
export function dragonfly(topology: TopologyJson, links: LinkJson[], ranks: number, width: number): Drawing {
  const local = placed(links, "router");
  const routers = Math.max(0, ...local.map(({ place }) => Math.max(place.router, place.to))) + 1;
  const routerOf = (rank: number): number => topology.host[rank];
  const groups = Math.floor(Math.max(...topology.host.slice(0, ranks)) / routers) + 1;
  const gap = 24;
  const wide = (width - 8 - gap * (groups - 1)) / groups;
  const pitch = wide / routers;
  const groupX = (group: number): number => 4 + group * (wide + gap);
  const routerX = (router: number): number => groupX(Math.floor(router / routers)) + ((router % routers) + 0.5) * pitch;
  const boxes: Box[] = [];
  for (let group = 0; group < groups; group++) {
    boxes.push({ kind: "group", x: groupX(group), y: 96, width: wide, height: 230, label: `group ${group}` });
    for (let router = 0; router < routers; router++) {
      boxes.push({
        kind: "switch",
        x: routerX(group * routers + router) - Math.min(30, pitch * 0.35),
        y: 196,
        width: Math.min(60, pitch * 0.7),
        height: 26,
        label: pitch > 50 ? `router ${router}` : String(router),
      });
    }
  }
  if (groups > 1)
    boxes.push({
      kind: "switch",
      x: width / 2 - Math.min(220, width * 0.4),
      y: 8,
      width: Math.min(440, width * 0.8),
      height: 26,
      label: "between groups",
    });
  const circles: Drawing["ranks"] = [];
  const shapes: Shape[] = [];
  const seen = new Map<number, number>();
  const perRouter = Math.max(
    ...[...new Set(topology.host)].map((host) => topology.host.filter((one) => one === host).length),
  );
  for (let rank = 0; rank < ranks; rank++) {
    const place = seen.get(routerOf(rank)) ?? 0;
    seen.set(routerOf(rank), place + 1);
    circles.push({
      rank,
      x: routerX(routerOf(rank)) + (place - (perRouter - 1) / 2) * Math.min(34, pitch / perRouter),
      y: 294,
      r: Math.min(13, (pitch / perRouter) * 0.4),
    });
  }
  for (const { link, place } of placed(links, "rank")) {
    if (place.rank >= ranks) continue;
    const { x, y, r } = circles[place.rank];
    const shift = place.way === "out" ? -4.5 : 4.5;
    shapes.push({ link, path: `M${tenth(x + shift)} ${y - r}V222`, ranks: [place.rank] });
  }
  for (const { link, place } of local) {
    if (place.router === place.to || place.group >= groups) continue;
    const [from, to] = [place.router, place.to].map((router) => routerX(place.group * routers + router));
    const top = { x: (from + to) / 2, y: 196 - (20 + Math.abs(to - from) * 0.22 + (to > from ? 0 : 8)) };
    shapes.push({ link, path: `M${tenth(from)} 196Q${point(top)} ${tenth(to)} 196`, ranks: [] });
  }
  for (const { link, place } of placed(links, "cable")) {
    if (place.group >= groups) continue;
    const from = groupX(place.group) + wide / 2 + place.cable * 8;
    shapes.push({ link, path: `M${tenth(from)} 96L${tenth(width / 2 + (from - width / 2) * 0.5)} 34`, ranks: [] });
  }
  return { height: 336, widest: 7, boxes, ranks: circles, shapes };
}
