/** SVG as text: for paths, and for pictures that are saved. */

import { tenth } from "./numbers";

export interface Piece {
  text: string;
  width: number;
  height: number;
}

export interface Point {
  x: number;
  y: number;
}

/** A point of a path. */
export const point = ({ x, y }: Point): string => `${tenth(x)} ${tenth(y)}`;

export function escaped(text: string): string {
  return text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/"/g, "&quot;");
}
