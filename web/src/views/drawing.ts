/** The parts of a drawing of a topology, and the links that have a place in it. */

import type { LinkJson, Place } from "../document";

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

/** Places with these keys. */
type With<Key extends string> = Extract<Place, Record<Key, number>>;

/** The links whose place has such a key, by their index in the list. */
export function placed<Key extends string>(links: LinkJson[], key: Key): { link: number; place: With<Key> }[] {
  return links.flatMap(({ place }, link) => (place && key in place ? [{ link, place: place as With<Key> }] : []));
}
