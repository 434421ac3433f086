/** A map of the winners: one row per number of ranks, one column per size. */

import type { ComponentChildren } from "preact";
import { hueOf } from "../palette";
import type { Drawn } from "../picture";
import { openAt } from "../source";
import { pointed, state } from "../state";
import { stop } from "../stops";
import { bytes, plural, seconds } from "../words";
import type { Standings } from "./standings";

export function drawMap(all: Standings[], ranks: number, width: number): Drawn {
  const rows = all.filter((one) => one.winners.length);
  const narrow = width < 620;
  const sizes = rows[0]?.sizes ?? [];
  const [left, right] = [58, narrow ? 16 : 150];
  const wide = (width - left - right) / Math.max(1, sizes.length);
  const tall = 24;
  const top = (row: number): number => 4 + (rows.length - 1 - row) * tall;
  const tile = (one: Standings, row: number, column: number): ComponentChildren => {
    const [best, size] = [one.winners[column], sizes[column]];
    const isHere = one.ranks === ranks && Math.round(Math.log2(state.value.size || 1)) === Math.round(Math.log2(size));
    return (
      <rect
        key={`${one.ranks} ${size}`}
        class={`hot tile${pointed.value && pointed.value !== best ? " dim" : ""}${isHere ? " current" : ""}`}
        x={left + column * wide}
        y={top(row)}
        width={wide - 1}
        height={tall - 1}
        fill={hueOf(best)}
        {...stop(() => openAt(best, one.ranks, size))}
      >
        <title>{`${plural(one.ranks, "rank")}, ${bytes(size)}: ${best}, ${seconds(one.seconds[column].get(best) ?? 0)}`}</title>
      </rect>
    );
  };
  const content = (
    <>
      {rows.map((one, row) => (
        <text key={one.ranks} class="axis" x={left - 8} y={top(row) + 16} text-anchor="end">
          {one.ranks}
        </text>
      ))}
      {rows.map((one, row) => one.winners.map((_, column) => tile(one, row, column)))}
      {sizes.map((size, i) =>
        i % (narrow ? 7 : 3) === 0 ? (
          <text key={size} class="axis" x={left + (i + 0.5) * wide} y={rows.length * tall + 20} text-anchor="middle">
            {bytes(size)}
          </text>
        ) : null,
      )}
    </>
  );
  return { width, height: rows.length * tall + 30, content };
}
