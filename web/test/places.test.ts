import { expect, test } from "vitest";
import type { LinkJson, PairsJson, TopologyJson } from "../src/document";
import { placesOf } from "../src/views/places";

const link = (name: string): LinkJson => ({ name, kind: "", bytes: 1, seconds: 1, latency: 0, bandwidth: 1 });
const ports = (ranks: number): LinkJson[] =>
  ["out", "in"].flatMap((way) => Array.from({ length: ranks }, (_, rank) => link(`rank ${rank} ${way}`)));
const topology = (host: number[], parameters: Record<string, unknown> = {}): TopologyJson => ({
  name: "",
  ranks: host.length,
  host,
  overhead: 0,
  reduction: "inf",
  latency: 0,
  bandwidth: 1,
  source: "",
  parameters,
});
const cards = (host: number): LinkJson[] => [link(`host ${host} card 0 out`), link(`host ${host} card 0 in`)];

test("hosts are boxes, the switch is above them, ranks are inside", () => {
  const links = [...ports(4), link("host 0 memory bus"), link("host 1 memory bus"), ...cards(0), ...cards(1)];
  const drawing = placesOf(topology([0, 0, 1, 1]), links, null, 4, 900)!;
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

test("a card hangs on the leaf that its routes climb to", () => {
  const links = [
    ...ports(2),
    ...cards(0),
    ...cards(1),
    link("leaf 0 up 0"),
    link("leaf 0 down 0"),
    link("leaf 1 up 0"),
    link("leaf 1 down 0"),
  ];
  const at = (name: string): number => links.findIndex((one) => one.name === name);
  const route = [
    "rank 0 out",
    "host 0 card 0 out",
    "leaf 0 up 0",
    "leaf 1 down 0",
    "host 1 card 0 in",
    "rank 1 in",
  ].map(at);
  const pairs: PairsJson = { source: [0], destination: [1], bytes: [1], links: [route] };
  const drawing = placesOf(topology([0, 1]), links, pairs, 2, 900)!;
  expect(drawing.boxes.map((box) => box.label)).toEqual(expect.arrayContaining(["leaf 0", "leaf 1", "spines"]));
});

test("a torus has a cable to each neighbour, and every link its place", () => {
  const cables = Array.from({ length: 8 }, (_, node) =>
    [0, 1].flatMap((d) => [0, 1].map((down) => link(`node ${node} dimension ${d} cable ${down}`))),
  ).flat();
  const drawing = placesOf(
    topology([0, 1, 2, 3, 4, 5, 6, 7], { shape: [2, 4] }),
    [...ports(8), ...cables],
    null,
    8,
    900,
  )!;
  expect(drawing.shapes).toHaveLength(cables.length);
  expect(drawing.ranks[1].y).toBe(drawing.ranks[0].y);
  expect(drawing.ranks[4].x).toBe(drawing.ranks[0].x);
});

test("links whose names say nothing are not drawn", () => {
  expect(placesOf(topology([0, 0]), [...ports(2), link("the blue cable")], null, 2, 900)).toBeNull();
});
