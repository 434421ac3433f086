/** How a race ended: a step per place, those that are equally fast on the same height. */

import { clamp } from "../numbers";
import type { Drawn } from "../picture";
import type { Placed } from "../racing";
import { digits } from "../words";

/** `ring wins; swing is as fast. naive takes 7.06 times as long. broken is wrong.` */
export function resultOf(places: Placed[], wrong: string[]): string {
  const first = places.filter((one) => one.place === 1);
  const rest = places.filter((one) => one.place > 1);
  const sentences = [
    first.length > 1 ? `A tie: ${first.map((one) => one.name).join(" and ")} are equally fast.` : "",
    first.length === 1 ? `${first[0].name} wins.` : "",
    ...rest.map((one) => `${one.name} takes ${digits(one.seconds / first[0].seconds)} times as long.`),
    ...wrong.map((name) => `${name} is wrong, so it is not ranked.`),
  ];
  return sentences.filter(Boolean).join(" ");
}

const HIGH = [0, 92, 66, 48, 36]; // pixels of a step, by place

export function drawPodium(
  places: Placed[],
  hueOf: (name: string) => string,
  say: (time: number) => string,
  width: number,
): Drawn {
  const wide = clamp((width - 16) / places.length, 70, 170);
  // As on a real podium: the first in the middle, the second on the left.
  const order = places.reduce<Placed[]>((row, one, i) => (i % 2 ? [one, ...row] : [...row, one]), []);
  const left = (width - wide * places.length) / 2;
  const ground = 156;
  const content = order.map((one, i) => {
    const high = HIGH[Math.min(one.place, HIGH.length - 1)];
    const [x, middle] = [left + i * wide, left + (i + 0.5) * wide];
    return (
      <g key={one.name} class="winner">
        <text class="label" x={middle} y={ground - high - 26} text-anchor="middle" font-weight={600}>
          {one.name.length > wide / 7 ? `${one.name.slice(0, Math.floor(wide / 7) - 1)}…` : one.name}
        </text>
        <text class="axis" x={middle} y={ground - high - 9} text-anchor="middle">
          {say(one.seconds)}
        </text>
        <rect class="stand" x={x + 3} y={ground - high} width={wide - 6} height={high} rx={4} />
        <rect x={x + 3} y={ground - high} width={wide - 6} height={6} rx={2} fill={hueOf(one.name)} />
        <text class="place-number" x={middle} y={ground - high / 2 + 4} text-anchor="middle">
          {one.tied ? `${one.place} (tie)` : one.place}
        </text>
      </g>
    );
  });
  return { width, height: ground + 4, content };
}
