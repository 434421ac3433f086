/** A large network by class: links of one kind together, host by host, and one host alone. Pure. */

import type { LinkJson, Place, TopologyJson } from "../document";
import { unique } from "../numbers";
import type { Drawing } from "./drawing";

export interface LinkClass {
  name: string;
  /** Places in the list of links, in the order of their hosts. */
  links: number[];
  /** The host of each, as a place among the hosts; −1 where it belongs to none. */
  owners: number[];
}

/** The least, the median and the most of something. */
interface Spread {
  least: number;
  median: number;
  most: number;
}

/** Kinds of links from the top of the network to its ranks. */
const KINDS: [name: (place: Place) => string | null, level: number][] = [
  [(place) => ("cable" in place ? "cables between groups" : null), 0],
  [(place) => ("uplink" in place ? `uplinks, ${place.way}` : null), 1],
  [(place) => ("card" in place ? `network cards, ${place.way}` : null), 2],
  [(place) => ("router" in place ? "cables between routers of a group" : null), 3],
  [(place) => ("dimension" in place ? `dimension ${place.dimension}, ${place.down ? "down" : "up"}` : null), 4],
  [(place) => ("from" in place ? "cables between ranks" : null), 5],
  [(place) => ("switch" in place ? `switches of hosts, ${place.way}` : null), 6],
  [(place) => ("host" in place ? "buses of hosts" : null), 7],
  [(place) => ("rank" in place ? `ports of ranks, ${place.way}` : null), 8],
];

const OTHER: [string, number] = ["links without a place", 9];

function kindOf(place: Place | undefined): [name: string, level: number] {
  if (place)
    for (const [nameOf, level] of KINDS) {
      const name = nameOf(place);
      if (name !== null) return [name, level];
    }
  return OTHER;
}

/** The hosts of the ranks that are shown, in their order. */
export const hostsShown = (topology: TopologyJson, ranks: number): number[] => unique(topology.host.slice(0, ranks));

/** The host that a link belongs to; null for those of the network between them. */
function hostOf(place: Place | undefined, topology: TopologyJson, routers: number): number | null {
  if (!place || "uplink" in place || "cable" in place) return null;
  if ("host" in place) return place.host;
  if ("rank" in place) return topology.host[place.rank] ?? null;
  if ("node" in place) return topology.host[place.node] ?? null;
  if ("from" in place) return topology.host[place.from] ?? null;
  return place.group * routers + place.router;
}

/** Routers in a group of a dragonfly, whose hosts are its routers. */
function routersIn(links: LinkJson[]): number {
  let most = 0;
  for (const { place } of links) if (place && "router" in place) most = Math.max(most, place.router + 1, place.to + 1);
  return most;
}

export function classesOf(topology: TopologyJson, links: LinkJson[], ranks: number): LinkClass[] {
  const number = new Map(hostsShown(topology, ranks).map((host, i) => [host, i]));
  const routers = routersIn(links);
  const found = new Map<string, { level: number; members: { link: number; owner: number }[] }>();
  links.forEach(({ place }, link) => {
    const host = hostOf(place, topology, routers);
    if (host !== null && !number.has(host)) return; // of a host without a rank
    const [name, level] = kindOf(place);
    if (!found.has(name)) found.set(name, { level, members: [] });
    found.get(name)!.members.push({ link, owner: host === null ? -1 : number.get(host)! });
  });
  return [...found]
    .sort(([a, one], [b, other]) => one.level - other.level || (a < b ? -1 : 1))
    .map(([name, { members }]) => {
      members.sort((a, b) => a.owner - b.owner || a.link - b.link);
      return { name, links: members.map(({ link }) => link), owners: members.map(({ owner }) => owner) };
    });
}

export function spreadOf(values: number[]): Spread {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = (sorted.length - 1) / 2;
  const median = (sorted[Math.floor(middle)] + sorted[Math.ceil(middle)]) / 2;
  return { least: sorted[0], median, most: sorted[sorted.length - 1] };
}

/** Where each link of a class lies across a picture: in the columns of its host, or evenly over all of them. */
export function columnsOf({ owners }: LinkClass, hosts: number): { at: number[]; wide: number } {
  const many = new Map<number, number>();
  for (const owner of owners) many.set(owner, (many.get(owner) ?? 0) + 1);
  const seen = new Map<number, number>();
  const most = Math.max(...many.values());
  const alone = many.has(-1);
  const at = owners.map((owner) => {
    const place = seen.get(owner) ?? 0;
    seen.set(owner, place + 1);
    return owner < 0 ? place / many.get(owner)! : (owner + place / most) / hosts;
  });
  return { at, wide: alone ? 1 / many.get(-1)! : 1 / (hosts * most) };
}

/** One host as a network of its own, to be drawn as small ones are; its ranks and links by their old numbers. */
export interface Alone {
  host: number;
  topology: TopologyJson;
  ranks: number[];
  links: LinkJson[];
  numbers: number[];
}

export function hostAlone(topology: TopologyJson, links: LinkJson[], many: number, host: number): Alone {
  const ranks = topology.host.slice(0, many).flatMap((one, rank) => (one === host ? [rank] : []));
  const inside = new Map(ranks.map((rank, i) => [rank, i]));
  const routers = routersIn(links);
  const kept: LinkJson[] = [];
  const numbers: number[] = [];
  links.forEach((link, i) => {
    const place = link.place && within(link.place, host, inside);
    if (!place || hostOf(link.place, topology, routers) !== host) return;
    kept.push({ ...link, place });
    numbers.push(i);
  });
  const own = { ...topology, host: ranks.map(() => 0), ranks: ranks.length, parameters: undefined };
  return { host, topology: own, ranks, links: kept, numbers };
}

/** The drawing of one host, with its ranks and links under their old numbers. */
export function numberedAs(alone: Alone, drawing: Drawing | null): Drawing | null {
  if (!drawing || !alone.links.length) return null;
  const rankOf = (rank: number): number => alone.ranks[rank];
  return {
    ...drawing,
    boxes: drawing.boxes.map((box) => (box.kind === "host" ? { ...box, label: `host ${alone.host}` } : box)),
    ranks: drawing.ranks.map((one) => ({ ...one, rank: rankOf(one.rank) })),
    shapes: drawing.shapes.map((one) => ({ ...one, link: alone.numbers[one.link], ranks: one.ranks.map(rankOf) })),
  };
}

/** A place inside a host, with its ranks numbered from 0; null for what leads to another. */
function within(place: Place, host: number, inside: Map<number, number>): Place | null {
  if ("switch" in place || ("rank" in place && "way" in place)) {
    const rank = inside.get(place.rank);
    return rank === undefined ? null : { ...place, rank };
  }
  if ("from" in place) {
    const [from, to] = [inside.get(place.from), inside.get(place.to)];
    return from === undefined || to === undefined ? null : { from, to };
  }
  if ("card" in place) return place.host === host ? { host: 0, card: place.card, way: place.way } : null;
  return "host" in place && place.host === host ? { host: 0 } : null;
}

/** The links that leave a host, or belong to it, as the list beside its drawing has them. */
export function linksOfHost(topology: TopologyJson, links: LinkJson[], host: number): number[] {
  const routers = routersIn(links);
  return links.flatMap(({ place }, i) => (hostOf(place, topology, routers) === host ? [i] : []));
}

/** `2 MiB each`, or `1 MiB to 2 MiB, median 1.5 MiB`. */
export function spreadInWords({ least, median, most }: Spread, say: (value: number) => string): string {
  if (most - least <= 1e-9 * Math.abs(most)) return `${say(most)} each`;
  return `${say(least)} to ${say(most)}, median ${say(median)}`;
}
