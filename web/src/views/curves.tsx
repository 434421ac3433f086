/** The curves of a race: the share that has arrived over time, up to now, and the lower bound. */

import type { JSX } from "preact";
import { hueOf } from "../palette";
import { scaleLinear } from "d3-scale";
import { tenth } from "../numbers";
import { anchorOf, type Drawn } from "../picture";
import type { Runner } from "../racing";
import { remembered } from "../remembered";
import { percent } from "../words";

/** Where a wrong algorithm ends: not at 100 %. */
function WrongEnd(props: { x: number; y: number }): JSX.Element {
  const { x, y } = props;
  return (
    <g class="wrong-end">
      <path d={`M${x - 5} ${y - 5}l10 10m0 -10l-10 10`} />
      <text x={x - 10} y={y - 10} text-anchor="end">
        wrong
      </text>
    </g>
  );
}

const RIGHT = 24; // pixels beside the axis

/** The curve of a runner in a picture with these measures: `left top high width longest`. */
const curveOf = remembered((one: Runner, measures: string): string => {
  const [left, top, high, width, longest] = measures.split(" ").map(Number);
  const x = (time: number): number => left + (time / longest) * (width - RIGHT - left);
  return one.curve
    .map(({ time, share }, i) => `${i ? "L" : "M"}${tenth(x(time))} ${tenth(top + high - share * high)}`)
    .join("");
});

export function drawCurves(
  runners: Runner[],
  now: number,
  longest: number,
  least: number | undefined,
  say: (time: number) => string,
  width: number,
): Drawn {
  const [left, right, top, high] = [50, RIGHT, 30, 220];
  const x = scaleLinear([0, Math.max(longest, least ?? 0)], [left, width - right]);
  const y = scaleLinear([0, 1], [top + high, top]);
  const ticks = x.ticks(Math.max(2, Math.floor(width / 140)));
  const lines = `${left} ${top} ${high} ${width} ${x.domain()[1]}`;
  const content = (
    <>
      <defs>
        <clipPath id="sofar">
          <rect x={0} y={0} width={x(now)} height={top + high + 10} />
        </clipPath>
      </defs>
      {[0, 0.5, 1].map((share) => (
        <g key={share}>
          <line class="hair" x1={left} x2={width - right} y1={y(share)} y2={y(share)} />
          <text class="axis" x={left - 8} y={y(share) + 4} text-anchor="end">
            {percent(share)}
          </text>
        </g>
      ))}
      {ticks.map((tick) => (
        <text key={tick} class="axis" x={x(tick)} y={top + high + 20} text-anchor={anchorOf(x(tick), width)}>
          {say(tick)}
        </text>
      ))}
      {runners.map((one, i) => (
        <g key={i} fill="none" stroke={hueOf(one.name)}>
          <path class="curve ghost" d={curveOf(one, lines)} />
          <path class="curve" d={curveOf(one, lines)} clip-path="url(#sofar)" />
          {one.entry.proof.ok ? (
            <circle
              cx={x(one.what.duration)}
              cy={y(1)}
              r={4}
              fill={now >= one.what.duration * (1 - 1e-9) ? hueOf(one.name) : "none"}
            />
          ) : (
            <WrongEnd x={x(one.what.duration)} y={y(one.curve[one.curve.length - 1].share)} />
          )}
        </g>
      ))}
      {least !== undefined && (
        <g class="least">
          <line x1={x(least)} x2={x(least)} y1={top - 8} y2={top + high} />
          <text
            x={x(least) + (x(least) > width - 190 ? -6 : 6)}
            y={top - 12}
            text-anchor={x(least) > width - 190 ? "end" : "start"}
          >
            {`lower bound ${say(least)}`}
          </text>
        </g>
      )}
      <g class="playhead">
        <line x1={x(now)} x2={x(now)} y1={top - 2} y2={top + high} />
      </g>
    </>
  );
  return { width, height: top + high + 32, content };
}
