/** Where ranks that are wired to each other, and to switches of their host, are drawn: a circle of ranks per host. */

import type { LinkJson, TopologyJson } from "../document";
import { every, sum, tenth, unique } from "../numbers";
import { point, type Point } from "../svg";
import { placed, type Box, type Drawing, type Shape } from "./drawing";

/** Hosts as boxes, up to four in a row; switches of a host among their ranks, those of the network on top. */
export function wired(topology: TopologyJson, links: LinkJson[], ranks: number, width: number): Drawing {
  const many = Math.min(ranks, topology.ranks);
  const hosts = unique(topology.host.slice(0, many));
  const number = new Map(hosts.map((host, i) => [host, i]));
  const members = hosts.map((host) => every(many).filter((rank) => topology.host[rank] === host));
  const cards = placed(links, "card").filter(({ place }) => number.has(place.host));
  const leaves = unique(cards.map(({ place }) => place.leaf ?? 0)).sort((a, b) => a - b);

  const gap = 18;
  const columns = Math.min(hosts.length, 4);
  const wide = Math.min(440, (width - 8 - gap * (columns - 1)) / columns);
  const high = Math.min(wide, 400);
  const top = cards.length ? 104 : 8;
  const left = (width - columns * wide - (columns - 1) * gap) / 2;
  const corner = (host: number): Point => ({
    x: left + (host % columns) * (wide + gap),
    y: top + Math.floor(host / columns) * (high + gap),
  });

  const boxes: Box[] = [];
  const circles: Drawing["ranks"] = [];
  const largest = Math.max(...members.map((mine) => mine.length));
  const around = Math.min(wide, high) / 2 - 34;
  const radius = Math.max(3, Math.min(14, (around * Math.PI) / Math.max(1, largest) - 2));
  hosts.forEach((host, i) => {
    const { x, y } = corner(i);
    boxes.push({ kind: "host", x, y, width: wide, height: high, label: `host ${host}` });
    members[i].forEach((rank, place) => {
      const angle = (2 * Math.PI * (place + 0.5)) / members[i].length - Math.PI / 2;
      const far = members[i].length > 1 ? around : 0;
      circles[rank] = {
        rank,
        x: x + wide / 2 + far * Math.cos(angle),
        y: y + high / 2 + 6 + far * Math.sin(angle),
        r: radius,
      };
    });
  });

  const shapes: Shape[] = [];
  const connect = (link: number, from: Point, to: Point, who: number[]): void => {
    // The two directions lie side by side, each bent a little to its own side.
    const [dx, dy] = [to.x - from.x, to.y - from.y];
    const far = Math.hypot(dx, dy) || 1;
    const bow = Math.min(9, 0.08 * far + 3);
    const middle = { x: (from.x + to.x) / 2 - (dy / far) * bow, y: (from.y + to.y) / 2 + (dx / far) * bow };
    shapes.push({ link, path: `M${point(from)}Q${point(middle)} ${point(to)}`, ranks: who });
  };
  for (const { link, place } of placed(links, "from")) {
    if (place.from >= many || place.to >= many || place.from === place.to) continue; // files are not trusted
    connect(link, circles[place.from], circles[place.to], [place.from, place.to]);
  }

  const switches = new Map<number, { link: number; rank: number; way: "out" | "in" }[]>();
  for (const { link, place } of placed(links, "switch")) {
    if (place.rank >= many) continue;
    switches.set(place.switch, [...(switches.get(place.switch) ?? []), { link, rank: place.rank, way: place.way }]);
  }
  for (const cables of switches.values()) {
    const below = unique(cables.map(({ rank }) => rank)).map((rank) => circles[rank]);
    const at = { x: sum(below.map(({ x }) => x)) / below.length, y: sum(below.map(({ y }) => y)) / below.length };
    boxes.push({ kind: "switch", x: at.x - 29, y: at.y - 11, width: 58, height: 22, label: "switch" });
    for (const { link, rank, way } of cables) {
      const far = Math.hypot(circles[rank].x - at.x, circles[rank].y - at.y) || 1;
      const [dx, dy] = [(circles[rank].x - at.x) / far, (circles[rank].y - at.y) / far];
      const edge = { x: at.x + dx * Math.min(29, far), y: at.y + dy * Math.min(11, far) };
      if (way === "out") connect(link, circles[rank], edge, [rank]);
      else connect(link, edge, circles[rank], [rank]);
    }
  }

  const share = (width - 8) / Math.max(1, leaves.length);
  const broad = Math.min(260, share - 16);
  const above = (leaf: number): number => 4 + (leaves.indexOf(leaf) + 0.5) * share;
  if (cards.length)
    for (const leaf of leaves) {
      const label = leaves.length > 1 ? `switch ${leaf}` : "switch";
      boxes.push({ kind: "switch", x: above(leaf) - broad / 2, y: 8, width: broad, height: 30, label });
    }
  const perHost = Math.max(0, ...cards.map(({ place }) => place.card + 1));
  for (const { link, place } of cards) {
    const host = number.get(place.host)!;
    const { x, y } = corner(host);
    const from = x + ((place.card + 0.5) / perHost) * wide + (place.way === "out" ? -3 : 3);
    const to = above(place.leaf ?? 0) + ((from - 4) / (width - 8) - 0.5) * (broad - 24);
    shapes.push({ link, path: `M${tenth(from)} ${tenth(y)}L${tenth(to)} 38`, ranks: members[host] });
  }
  const rows = Math.ceil(hosts.length / columns);
  return { height: top + rows * (high + gap), widest: 8, boxes, ranks: circles, shapes };
}
