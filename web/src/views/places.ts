/** Where ranks, hosts, switches and links of a topology are drawn. Pure: names of links and hosts in, shapes out. */

import type { LinkJson, PairsJson, TopologyJson } from "../document";
import { ABROAD, CABLE, cabled, dragonfly, LOCAL } from "./cables";

export interface Shape {
  link: number;
  /** An SVG path; the link's width and colour come from its bytes. */
  path: string;
  ranks: number[];
}

export interface Box {
  kind: "host" | "switch" | "group";
  x: number;
  y: number;
  width: number;
  height: number;
  label: string;
}

export interface Drawing {
  height: number;
  /** How wide the busiest link may be, so that neighbours do not touch. */
  widest: number;
  boxes: Box[];
  ranks: { rank: number; x: number; y: number; r: number }[];
  shapes: Shape[];
}

const PORT = /^rank (\d+) (out|in)$/;
const BUS = /^host (\d+) memory bus$/;
const CARD = /^host (\d+) card (\d+) (out|in)$/;
const LEAF = /^leaf (\d+) (up|down) (\d+)$/;

/** A drawing with meaning in its positions, or null where the names say nothing: then only the list is shown. */
export function placesOf(
  topology: TopologyJson,
  links: LinkJson[],
  pairs: PairsJson | null,
  ranks: number,
  width: number,
): Drawing | null {
  if (links.some((link) => CABLE.test(link.name))) return cabled(topology, links, ranks, width);
  if (links.some((link) => LOCAL.test(link.name) || ABROAD.test(link.name)))
    return dragonfly(topology, links, ranks, width);
  const known = links.every((link) => [PORT, BUS, CARD, LEAF].some((pattern) => pattern.test(link.name)));
  return known ? switched(topology, links, pairs, ranks, width) : null;
}

/** Hosts as boxes in a row, leaf switches above, spines on top. */
function switched(
  topology: TopologyJson,
  links: LinkJson[],
  pairs: PairsJson | null,
  ranks: number,
  width: number,
): Drawing {
  const hosts = [...new Set(topology.host.slice(0, ranks))];
  const number = new Map(hosts.map((host, i) => [host, i]));
  const named = (pattern: RegExp): { match: RegExpMatchArray; link: number }[] =>
    links.flatMap((link, i) => {
      const match = link.name.match(pattern);
      return match ? [{ match, link: i }] : [];
    });
  const cards = named(CARD).filter(({ match }) => number.has(Number(match[1])));
  const perHost = Math.max(0, ...cards.map(({ match }) => Number(match[2]) + 1));
  const ups = named(LEAF);
  const leafNumbers = [...new Set(ups.map(({ match }) => Number(match[1])))].sort((a, b) => a - b);
  const climbs = leaves(links, pairs);
  // A card that sends nothing has no route to read its leaf off: with as many leaves as cards a host, they are rails.
  const leafOf = (host: number, card: number): number =>
    climbs.get(`${host} ${card}`) ?? (leafNumbers.length === perHost ? card : (leafNumbers[0] ?? 0));
  const showLeaves = ups.length > 0 && leafNumbers.length > 1;

  const gap = Math.min(28, width * 0.03);
  const pitch = Math.min(
    hosts.length === 1 ? 88 : 72,
    (width - 8 - gap * (hosts.length - 1) - 16 * hosts.length) / ranks,
  );
  const counts = hosts.map((host) => topology.host.slice(0, ranks).filter((one) => one === host).length);
  const total = counts.reduce((sum, many) => sum + many * pitch + 16, 0) + gap * (hosts.length - 1);
  const spineY = 8;
  const leafY = showLeaves ? 92 : 8;
  const hostY = cards.length ? leafY + 34 + 74 : 8;
  const hasBus = links.some((link) => BUS.test(link.name));
  const hostHeight = 150;
  const busY = hostY + 44;
  const rankY = hostY + 112;
  const radius = Math.min(14, pitch * 0.34);

  const boxes: Box[] = [];
  const shapes: Shape[] = [];
  const circles: Drawing["ranks"] = [];
  const left: number[] = [];
  let x = (width - total) / 2;
  hosts.forEach((host, i) => {
    left.push(x);
    const wide = counts[i] * pitch + 16;
    boxes.push({ kind: "host", x, y: hostY, width: wide, height: hostHeight, label: `host ${host}` });
    x += wide + gap;
  });
  const within = hosts.map(() => 0);
  const spread = Math.min(8, pitch * 0.16);
  const place: number[] = [];
  for (let rank = 0; rank < ranks; rank++) {
    const host = number.get(topology.host[rank])!;
    place[rank] = left[host] + 8 + (within[host]++ + 0.5) * pitch;
    circles.push({ rank, x: place[rank], y: rankY, r: radius });
  }
  for (const { match, link } of named(PORT)) {
    const rank = Number(match[1]);
    if (rank >= ranks) continue;
    const at = place[rank] + (match[2] === "out" ? -spread : spread);
    shapes.push({ link, path: `M${at} ${rankY - radius}V${busY + (hasBus ? 4 : 0)}`, ranks: [rank] });
  }
  for (const { match, link } of named(BUS)) {
    const host = number.get(Number(match[1]));
    if (host === undefined) continue;
    const members = topology.host.slice(0, ranks).flatMap((one, rank) => (one === hosts[host] ? [rank] : []));
    shapes.push({ link, path: `M${left[host] + 14} ${busY}H${left[host] + counts[host] * pitch + 2}`, ranks: members });
  }
  // Where a host has no bus that is a link, its ports meet at a thin bar, which is drawn as a switch.
  if (!hasBus)
    hosts.forEach((_, i) =>
      boxes.push({ kind: "switch", x: left[i] + 12, y: busY - 4, width: counts[i] * pitch - 8, height: 8, label: "" }),
    );

  const center = (i: number): number => left[i] + (counts[i] * pitch + 16) / 2;
  // A leaf stands over the hosts below it; leaves that share their hosts stand side by side.
  const below = (leaf: number): number[] =>
    hosts.flatMap((host, i) =>
      Array.from({ length: perHost }, (_, card) => leafOf(host, card)).includes(leaf) ? [i] : [],
    );
  const rails = leafNumbers.some(
    (leaf, i) => i > 0 && below(leaf).some((host) => below(leafNumbers[i - 1]).includes(host)),
  );
  const share = (width - 8) / Math.max(1, leafNumbers.length);
  const leafX = (leaf: number): number => {
    if (rails) return 4 + (leafNumbers.indexOf(leaf) + 0.5) * share;
    const under = below(leaf).map(center);
    return under.length ? under.reduce((sum, one) => sum + one, 0) / under.length : width / 2;
  };
  const leafWide = (leaf: number): number => {
    if (rails) return Math.min(120, share - 10);
    const under = below(leaf);
    return under.length
      ? Math.max(70, Math.min(260, (center(under[under.length - 1]) - center(under[0])) * 0.8 + 70))
      : 70;
  };
  if (cards.length) {
    const tops = showLeaves ? leafNumbers : [0];
    for (const leaf of tops) {
      const middle = showLeaves ? leafX(leaf) : width / 2;
      const wide = showLeaves ? leafWide(leaf) : Math.min(total * 0.6, 420);
      boxes.push({
        kind: "switch",
        x: middle - wide / 2,
        y: leafY,
        width: wide,
        height: 34,
        label: showLeaves ? `leaf ${leaf}` : "switch",
      });
    }
    for (const { match, link } of cards) {
      const [host, card, out] = [number.get(Number(match[1]))!, Number(match[2]), match[3] === "out"];
      const step = Math.min(26, (counts[host] * pitch) / (perHost + 1));
      const from = center(host) + (card - (perHost - 1) / 2) * step + (out ? -5 : 5);
      const leaf = leafOf(Number(match[1]), card);
      const middle = showLeaves ? leafX(leaf) : width / 2;
      const wide = (showLeaves ? leafWide(leaf) : Math.min(total * 0.6, 420)) - 24;
      const hereX = middle + Math.max(-wide / 2, Math.min(wide / 2, from - middle));
      shapes.push({
        link,
        path: `M${from} ${busY - 2}V${hostY - 8}L${hereX} ${leafY + 42}V${leafY + 34}`,
        ranks: topology.host.slice(0, ranks).flatMap((one, rank) => (one === hosts[host] ? [rank] : [])),
      });
    }
  }
  if (showLeaves) {
    const spine = rails ? width - 8 : Math.min(total, 460);
    boxes.push({ kind: "switch", x: (width - spine) / 2, y: spineY, width: spine, height: 28, label: "spines" });
    const perLeaf = Math.max(...ups.map(({ match }) => Number(match[3]) + 1));
    for (const { match, link } of ups) {
      const leaf = Number(match[1]);
      if (!leafNumbers.includes(leaf)) continue;
      const step = Math.min(22, leafWide(leaf) / (perLeaf + 1));
      const from = leafX(leaf) + (Number(match[3]) - (perLeaf - 1) / 2) * step + (match[2] === "up" ? -5 : 5);
      const half = spine / 2 - 12;
      const to = width / 2 + Math.max(-half, Math.min(half, from - width / 2));
      shapes.push({ link, path: `M${from} ${leafY}L${to} ${spineY + 28}`, ranks: [] });
    }
  }
  return {
    height: hostY + hostHeight + 8,
    widest: Math.max(3, Math.min(12, spread * 1.6)),
    boxes,
    ranks: circles,
    shapes,
  };
}

/** Which leaf each card hangs on, read off the routes: after a card comes the uplink of its leaf. */
function leaves(links: LinkJson[], pairs: PairsJson | null): Map<string, number> {
  const found = new Map<string, number>();
  for (const route of pairs?.links ?? []) {
    for (let i = 0; i < route.length; i++) {
      const leaf = links[route[i]]?.name.match(LEAF);
      if (!leaf) continue;
      const card = links[route[leaf[2] === "up" ? i - 1 : i + 1]]?.name.match(CARD);
      if (card) found.set(`${card[1]} ${card[2]}`, Number(leaf[1]));
    }
  }
  return found;
}
