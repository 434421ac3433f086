/** Large networks by class of link, and one host of them alone. */

import { expect, test } from "vitest";
import {
  classesOf,
  columnsOf,
  hostAlone,
  linksOfHost,
  numberedAs,
  spreadInWords,
  spreadOf,
} from "../src/views/classes";
import { placesOf } from "../src/views/places";
import { link, topologyOf, WAYS } from "./network";

const hosts = 40;
const host = Array.from({ length: 4 * hosts }, (_, rank) => Math.floor(rank / 4));
const links = [
  ...WAYS.flatMap((way) => host.map((_, rank) => link({ rank, way }, 1 + (rank % 4)))),
  ...Array.from({ length: hosts }, (_, host) => link({ host })),
  ...WAYS.flatMap((way) => Array.from({ length: hosts }, (_, host) => link({ host, card: 0, leaf: host >> 3, way }))),
  ...Array.from({ length: 10 }, (_, i) => link({ leaf: i >> 1, uplink: i & 1, way: "up" })),
];

test("links of one kind are one class, from the top of the network to its ranks, host by host", () => {
  const found = classesOf(topologyOf(host), links, host.length);
  expect(found.map((one) => [one.name, one.links.length])).toEqual([
    ["uplinks, up", 10],
    ["network cards, in", hosts],
    ["network cards, out", hosts],
    ["buses of hosts", hosts],
    ["ports of ranks, in", 4 * hosts],
    ["ports of ranks, out", 4 * hosts],
  ]);
  // Every link is in one class; each lies in the columns of its host.
  expect(found.flatMap((one) => one.links).sort((a, b) => a - b)).toEqual(links.map((_, i) => i));
  const ports = found[5];
  expect(ports.owners).toEqual(host);
  const { at, wide } = columnsOf(ports, hosts);
  ports.owners.forEach((owner, i) => {
    expect(at[i]).toBeGreaterThanOrEqual(owner / hosts - 1e-9);
    expect(at[i] + wide).toBeLessThanOrEqual((owner + 1) / hosts + 1e-9);
  });
  expect(columnsOf(found[0], hosts).wide).toBeCloseTo(0.1);
});

test("hosts without a rank are left out", () => {
  const found = classesOf(topologyOf(host), links, 8);
  expect(found.find((one) => one.name === "buses of hosts")!.links).toHaveLength(2);
  expect(found.find((one) => one.name === "ports of ranks, in")!.links).toHaveLength(8);
});

test("one host is drawn as a network of its own, with its own numbers", () => {
  const alone = hostAlone(topologyOf(host), links, host.length, 7);
  expect(alone.ranks).toEqual([28, 29, 30, 31]);
  const drawing = numberedAs(alone, placesOf(alone.topology, alone.links, 4, 600))!;
  expect(drawing.ranks.map((one) => one.rank)).toEqual([28, 29, 30, 31]);
  expect(drawing.boxes.find((box) => box.kind === "host")!.label).toBe("host 7");
  const mine = linksOfHost(topologyOf(host), links, 7);
  expect(mine.map((i) => links[i].name).every((name) => /"host":7|"rank":(28|29|30|31)/.test(name))).toBe(true);
  expect(mine).toHaveLength(11);
  expect(new Set(drawing.shapes.map((one) => one.link))).toEqual(new Set(mine));
});

test("routers of a dragonfly and nodes of a torus have their own links", () => {
  const routers = [
    ...[0, 1].flatMap((group) =>
      [0, 1, 2].flatMap((router) => [0, 1, 2].filter((to) => to !== router).map((to) => link({ group, router, to }))),
    ),
    link({ group: 0, cable: 0 }),
  ];
  const dragonfly = topologyOf([0, 1, 2, 3, 4, 5]);
  const found = classesOf(dragonfly, routers, 6);
  expect(found.map((one) => [one.name, one.owners])).toEqual([
    ["cables between groups", [-1]],
    ["cables between routers of a group", [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]],
  ]);
  expect(linksOfHost(dragonfly, routers, 4)).toEqual([8, 9]);
  const torus = [0, 1, 2].flatMap((node) => [0, 1].map((down) => link({ node, dimension: 0, down })));
  expect(classesOf(topologyOf([0, 1, 2]), torus, 3).map((one) => one.name)).toEqual([
    "dimension 0, down",
    "dimension 0, up",
  ]);
});

test("a spread is one value, or its least, most and median", () => {
  expect(spreadInWords(spreadOf([2, 2, 2]), String)).toBe("2 each");
  expect(spreadInWords(spreadOf([4, 1, 2, 3]), String)).toBe("1 to 4, median 2.5");
});
