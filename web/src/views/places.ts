/** Where ranks, hosts, switches and links of a topology are drawn. Pure: places of links and hosts in, shapes out. */

import type { LinkJson, TopologyJson } from "../document";
import { clamp, every, sum, unique } from "../numbers";
import { cabled, dragonfly } from "./cables";
import { placed, type Box, type Drawing, type Shape } from "./drawing";
import { wired } from "./wired";

/** A drawing with meaningful positions, or null if places of links are unknown: then only the list is shown. */
export function placesOf(topology: TopologyJson, links: LinkJson[], ranks: number, width: number): Drawing | null {
  if (placed(links, "dimension").length) return cabled(topology, links, ranks, width);
  if (placed(links, "group").length) return dragonfly(topology, links, ranks, width);
  if (placed(links, "from").length || placed(links, "switch").length) return wired(topology, links, ranks, width);
  return links.every((link) => link.place) ? switched(topology, links, ranks, width) : null;
}

/** Hosts as boxes in a row, leaf switches above, spines on top. */
function switched(topology: TopologyJson, links: LinkJson[], ranks: number, width: number): Drawing {
  const hosts = unique(topology.host.slice(0, ranks));
  const number = new Map(hosts.map((host, i) => [host, i]));
  const members = hosts.map((host) => every(ranks).filter((rank) => topology.host[rank] === host));
  const here = <T extends { place: { host: number } }>(one: T): boolean => number.has(one.place.host);
  const buses = placed(links, "host").filter((one) => here(one) && !("card" in one.place));
  const cards = placed(links, "card").filter(here);
  const uplinks = placed(links, "uplink");
  const perHost = Math.max(0, ...cards.map(({ place }) => place.card + 1));
  const leaves = unique(uplinks.map(({ place }) => place.leaf)).sort((a, b) => a - b);
  const showLeaves = leaves.length > 1;

  const gap = Math.min(28, width * 0.03);
  const pitch = Math.min(
    hosts.length === 1 ? 88 : 72,
    (width - 8 - gap * (hosts.length - 1) - 16 * hosts.length) / ranks,
  );
  const wide = members.map((mine) => mine.length * pitch + 16);
  const total = sum(wide) + gap * (hosts.length - 1);
  const spineY = 8;
  const leafY = showLeaves ? 92 : 8;
  const hostY = cards.length ? leafY + 34 + 74 : 8;
  const hostHeight = 150;
  const busY = hostY + 44;
  const rankY = hostY + 112;
  const radius = Math.min(14, pitch * 0.34);
  const spread = Math.min(8, pitch * 0.16);

  const boxes: Box[] = [];
  const shapes: Shape[] = [];
  const circles: Drawing["ranks"] = [];
  const left: number[] = [];
  let x = (width - total) / 2;
  hosts.forEach((host, i) => {
    left.push(x);
    boxes.push({ kind: "host", x, y: hostY, width: wide[i], height: hostHeight, label: `host ${host}` });
    members[i].forEach((rank, place) => {
      circles[rank] = { rank, x: x + 8 + (place + 0.5) * pitch, y: rankY, r: radius };
    });
    x += wide[i] + gap;
  });
  for (const { place, link } of placed(links, "rank")) {
    if (place.rank >= ranks) continue;
    const at = circles[place.rank].x + (place.way === "out" ? -spread : spread);
    const end = busY + (buses.length ? 4 : 0);
    shapes.push({ link, path: `M${at} ${rankY - radius}V${end}`, ranks: [place.rank] });
  }
  for (const { place, link } of buses) {
    const host = number.get(place.host)!;
    const path = `M${left[host] + 14} ${busY}H${left[host] + wide[host] - 14}`;
    shapes.push({ link, path, ranks: members[host] });
  }
  // If a host has no bus link, its ports meet at a thin bar, which is drawn as a switch.
  if (!buses.length)
    hosts.forEach((_, i) =>
      boxes.push({ kind: "switch", x: left[i] + 12, y: busY - 4, width: wide[i] - 24, height: 8, label: "" }),
    );
  if (!cards.length) return { height: hostY + hostHeight + 8, widest: widestOf(spread), boxes, ranks: circles, shapes };

  const center = (i: number): number => left[i] + wide[i] / 2;
  const leafOf = (card: { leaf?: number }): number => (showLeaves ? (card.leaf ?? leaves[0]) : 0);
  // A leaf is drawn above its hosts; leaves that share hosts are side by side.
  const below = new Map<number, number[]>();
  for (const { place } of cards)
    below.set(leafOf(place), unique([...(below.get(leafOf(place)) ?? []), number.get(place.host)!]));
  const under = (leaf: number): number[] => below.get(leaf) ?? [];
  const rails = leaves.some((leaf, i) => i > 0 && under(leaf).some((host) => under(leaves[i - 1]).includes(host)));
  const share = (width - 8) / Math.max(1, leaves.length);
  /** The centre and the width of a leaf, or of the single switch above all hosts. */
  const leafAt = (leaf: number): { middle: number; broad: number } => {
    if (!showLeaves) return { middle: width / 2, broad: Math.min(total * 0.6, 420) };
    if (rails) return { middle: 4 + (leaves.indexOf(leaf) + 0.5) * share, broad: Math.min(120, share - 10) };
    const centers = under(leaf).map(center);
    if (!centers.length) return { middle: width / 2, broad: 70 };
    const reach = centers[centers.length - 1] - centers[0];
    return { middle: sum(centers) / centers.length, broad: clamp(reach * 0.8 + 70, 70, 260) };
  };
  for (const leaf of showLeaves ? leaves : [0]) {
    const { middle, broad } = leafAt(leaf);
    const label = showLeaves ? `leaf ${leaf}` : "switch";
    boxes.push({ kind: "switch", x: middle - broad / 2, y: leafY, width: broad, height: 34, label });
  }
  for (const { place, link } of cards) {
    const host = number.get(place.host)!;
    const step = Math.min(26, (members[host].length * pitch) / (perHost + 1));
    const from = center(host) + (place.card - (perHost - 1) / 2) * step + (place.way === "out" ? -5 : 5);
    const { middle, broad } = leafAt(leafOf(place));
    const to = middle + clamp(from - middle, 12 - broad / 2, broad / 2 - 12);
    const path = `M${from} ${busY - 2}V${hostY - 8}L${to} ${leafY + 42}V${leafY + 34}`;
    shapes.push({ link, path, ranks: members[host] });
  }
  if (showLeaves) {
    const spine = rails ? width - 8 : Math.min(total, 460);
    boxes.push({ kind: "switch", x: (width - spine) / 2, y: spineY, width: spine, height: 28, label: "spines" });
    const perLeaf = Math.max(...uplinks.map(({ place }) => place.uplink + 1));
    for (const { place, link } of uplinks) {
      const { middle, broad } = leafAt(place.leaf);
      const step = Math.min(22, broad / (perLeaf + 1));
      const from = middle + (place.uplink - (perLeaf - 1) / 2) * step + (place.way === "up" ? -5 : 5);
      const to = width / 2 + clamp(from - width / 2, 12 - spine / 2, spine / 2 - 12);
      shapes.push({ link, path: `M${from} ${leafY}L${to} ${spineY + 28}`, ranks: [] });
    }
  }
  return { height: hostY + hostHeight + 8, widest: widestOf(spread), boxes, ranks: circles, shapes };
}

const widestOf = (spread: number): number => clamp(spread * 1.6, 3, 12);
