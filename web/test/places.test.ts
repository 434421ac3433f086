import { expect, test } from "vitest";
import type { LinkJson } from "../src/document";
import { placesOf } from "../src/views/places";
import { link, topologyOf, WAYS } from "./network";

const ports = (ranks: number): LinkJson[] =>
  WAYS.flatMap((way) => Array.from({ length: ranks }, (_, rank) => link({ rank, way })));
const cards = (host: number, leaf?: number): LinkJson[] =>
  WAYS.map((way) => link({ host, card: 0, way, ...(leaf === undefined ? {} : { leaf }) }));
const uplinks = (leaf: number): LinkJson[] => (["up", "down"] as const).map((way) => link({ leaf, uplink: 0, way }));

test("hosts are boxes, the switch is above them, ranks are inside", () => {
  const links = [...ports(4), link({ host: 0 }), link({ host: 1 }), ...cards(0), ...cards(1)];
  const drawing = placesOf(topologyOf([0, 0, 1, 1]), links, 4, 900)!;
  const [first, second] = drawing.boxes.filter((box) => box.kind === "host");
  const above = drawing.boxes.find((box) => box.label === "switch")!;
  expect(above.y + above.height).toBeLessThan(first.y);
  const inside = (rank: number): string =>
    [first, second]
      .filter((box) => drawing.ranks[rank].x > box.x && drawing.ranks[rank].x < box.x + box.width)
      .map((box) => box.label)
      .join();
  expect([0, 1, 2, 3].map(inside)).toEqual(["host 0", "host 0", "host 1", "host 1"]);
  expect(new Set(drawing.shapes.map((shape) => shape.link)).size).toBe(links.length);
});

test("a leaf stands over the hosts whose cards hang on it", () => {
  const hosts = [0, 1, 2].flatMap((host) => cards(host, host === 2 ? 1 : 0));
  const links = [...ports(3), ...hosts, ...uplinks(0), ...uplinks(1)];
  const drawing = placesOf(topologyOf([0, 1, 2]), links, 3, 900)!;
  const middle = (label: string): number => {
    const box = drawing.boxes.find((one) => one.label === label)!;
    return box.x + box.width / 2;
  };
  expect(middle("leaf 0")).toBeCloseTo((middle("host 0") + middle("host 1")) / 2);
  expect(middle("leaf 1")).toBeCloseTo(middle("host 2"));
  expect(middle("spines")).toBeCloseTo(450);
});

test("a torus has a cable to each neighbour, and every link its place", () => {
  const cables = Array.from({ length: 8 }, (_, node) =>
    [0, 1].flatMap((d) => [0, 1].map((down) => link({ node, dimension: d, down }))),
  ).flat();
  const drawing = placesOf(topologyOf([0, 1, 2, 3, 4, 5, 6, 7], { shape: [2, 4] }), [...ports(8), ...cables], 8, 900)!;
  expect(drawing.shapes).toHaveLength(cables.length);
  expect(drawing.ranks[1].y).toBe(drawing.ranks[0].y);
  expect(drawing.ranks[4].x).toBe(drawing.ranks[0].x);
});

test("a hypercube is two ranks wide in every dimension", () => {
  const cables = Array.from({ length: 4 }, (_, node) =>
    [0, 1].map((d) => link({ node, dimension: d, down: (node >> (1 - d)) & 1 })),
  ).flat();
  const drawing = placesOf(topologyOf([0, 1, 2, 3], { dimensions: 2 }), [...ports(4), ...cables], 4, 900)!;
  expect(drawing.shapes).toHaveLength(8);
  expect(drawing.ranks[1].y).toBe(drawing.ranks[0].y);
  expect(drawing.ranks[2].x).toBe(drawing.ranks[0].x);
});

test("ranks that are wired to each other are a circle per host, switches among them and on top", () => {
  const wires = [0, 1, 2].map((from) => link({ from, to: (from + 1) % 3 }));
  const up = WAYS.flatMap((way) => [3, 4, 5].map((rank) => link({ rank, switch: 1, way })));
  const links = [...ports(6), ...wires, ...up, ...cards(0, 0), ...cards(1, 1)];
  const drawing = placesOf(topologyOf([0, 0, 0, 1, 1, 1]), links, 6, 900)!;
  expect(drawing.shapes).toHaveLength(links.length - 12); // ports are not drawn
  const [first, second] = drawing.boxes.filter((box) => box.kind === "host");
  for (const { rank, x, y } of drawing.ranks) {
    const box = rank < 3 ? first : second;
    expect(x > box.x && x < box.x + box.width && y > box.y && y < box.y + box.height).toBe(true);
  }
  const inside = drawing.boxes.find((box) => box.kind === "switch" && box.label === "switch")!;
  expect(inside.x + inside.width / 2).toBeCloseTo(second.x + second.width / 2);
  const network = drawing.boxes.filter((box) => box.label.startsWith("switch "));
  expect(network.map((box) => box.label)).toEqual(["switch 0", "switch 1"]);
  for (const box of network) expect(box.y + box.height).toBeLessThan(first.y);
});

test("cables to ranks that are not there are left out", () => {
  const strange = [link({ from: 0, to: 9 }), link({ from: 1, to: 1 }), link({ rank: 7, switch: 0, way: "in" })];
  expect(placesOf(topologyOf([0, 0]), [link({ from: 0, to: 1 }), ...strange], 2, 900)!.shapes).toHaveLength(1);
});

test("routers of a dragonfly stand in their groups", () => {
  const local = [0, 1].flatMap((router) => [0, 1].map((to) => link({ group: 0, router, to })));
  const drawing = placesOf(topologyOf([0, 1, 2]), [...ports(3), ...local, link({ group: 0, cable: 0 })], 3, 900)!;
  expect(drawing.boxes.filter((box) => box.kind === "group")).toHaveLength(2);
  expect(drawing.shapes).toHaveLength(6 + 2 + 1); // a router has no cable to itself
});

test("a topology with links whose place nobody knows is not drawn", () => {
  expect(placesOf(topologyOf([0, 0]), [...ports(2), link()], 2, 900)).toBeNull();
});

test("what a file says of a place that does not exist is left out", () => {
  const strange = [link({ node: 7, dimension: 0, down: 0 }), link({ node: 0, dimension: 3, down: 0 })];
  const cables = [0, 1].map((node) => link({ node, dimension: 0, down: 0 }));
  expect(placesOf(topologyOf([0, 1]), [...cables, ...strange], 2, 900)!.shapes).toHaveLength(2);
});

test("in a hypercube of 16 no link lies behind a third rank", () => {
  const ranks = 16;
  const links = Array.from({ length: ranks * 4 }, (_, i) => link({ node: i >> 2, dimension: i % 4, down: 0 }));
  const { ranks: circles } = placesOf(topologyOf(Array<number>(ranks).fill(0)), links, ranks, 960)!;
  for (let node = 0; node < ranks; node++) {
    for (const other of [1, 2, 4, 8].map((bit) => node ^ bit)) {
      const [from, to] = [circles[node], circles[other]];
      const [dx, dy] = [to.x - from.x, to.y - from.y];
      for (const third of circles) {
        if (third === from || third === to) continue;
        const t = ((third.x - from.x) * dx + (third.y - from.y) * dy) / (dx * dx + dy * dy);
        if (t < 0 || t > 1) continue;
        expect(Math.abs((third.x - from.x) * dy - (third.y - from.y) * dx) / Math.hypot(dx, dy)).toBeGreaterThan(16);
      }
    }
  }
});
