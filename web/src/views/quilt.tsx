/** The ground of a number: the colours of the ranks whose parts are in it, each in its own place. */

import type { JSX } from "preact";
import { tenth } from "../numbers";
import { colourOf } from "../palette";

/** A cell that holds the parts of all ranks is full; strong below, so that the colours can be told apart. */
export function Quilt(props: {
  ranks: number[];
  many: number;
  x: number;
  y: number;
  width: number;
  height: number;
}): JSX.Element {
  const { ranks, many, x, y, width, height } = props;
  const wide = width / many;
  const strip = Math.max(3, Math.min(5, height * 0.14));
  const part = (rank: number, top: number, high: number): string =>
    `M${tenth(x + rank * wide)} ${tenth(top)}h${tenth(wide)}v${tenth(high)}h${-tenth(wide)}z`;
  return (
    <>
      {ranks.map((rank) => (
        <path key={`g${rank}`} class="patch" d={part(rank, y, height)} fill={colourOf(rank, many)} />
      ))}
      {ranks.map((rank) => (
        <path key={`p${rank}`} class="part" d={part(rank, y + height - strip, strip)} fill={colourOf(rank, many)} />
      ))}
    </>
  );
}
