/** The space-time drawing: lifelines and messages between them; with more ranks, rows that stand for many ranks. */

import type { ComponentChildren, JSX } from "preact";
import { scaleLinear } from "d3-scale";
import { every, tenth } from "../numbers";
import { deeper, fullness } from "../palette";
import { anchorOf, lights, openStep, type Drawn } from "../picture";
import { fraction } from "../player";
import { seconds } from "../words";
import type { Happening, Interval, Transfer } from "./transfers";

const SINGLE = 1200; // up to this many messages, each is an element of its own
export const LIFELINES = 64;

interface Frame {
  left: number;
  top: number;
  bottom: number;
  x: (time: number) => number;
  y: (rank: number) => number;
  band: number;
}

function frameOf(what: Happening, ranks: number, width: number): Frame {
  const narrow = width < 560;
  const left = narrow ? 30 : 76;
  const pitch = ranks <= 8 ? 52 : ranks <= 16 ? 36 : ranks <= 32 ? 20 : 13;
  const top = 16;
  const x = scaleLinear([0, what.duration || 1], [left, width - 16]);
  return {
    left,
    top,
    bottom: top + ranks * pitch,
    x: (time) => x(time),
    y: (rank) => top + (rank + 0.5) * pitch,
    band: ranks <= 16 ? 9 : 5,
  };
}

/** One row per rank, time from left to right. */
export function drawLifelines(
  what: Happening,
  ranks: number,
  done: number,
  width: number,
  lit: (one: Transfer) => boolean,
): Drawn {
  const frame = frameOf(what, ranks, width);
  const { left, bottom, y } = frame;
  const labelled = ranks <= 32 ? 1 : 2;
  const content = (
    <>
      <defs>
        <pattern id="idle" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
          <rect class="hatch" width="1.2" height="5" />
        </pattern>
      </defs>
      <Axis what={what} frame={frame} width={width} />
      {every(ranks).map((rank) => (
        <g key={rank} class="hot" {...lights({ ranks: [rank] })}>
          {rank % labelled === 0 && (
            <text class="label" x={left - 12} y={y(rank) + 4} text-anchor="end">
              {width < 560 || ranks > 16 ? rank : `rank ${rank}`}
            </text>
          )}
          <rect class="band" {...bar(frame, { rank, start: 0, end: what.duration })} />
        </g>
      ))}
      {what.idle.map((one, i) => (
        <rect key={i} class="idle" fill="url(#idle)" data-r={one.rank} {...bar(frame, one)} />
      ))}
      {what.transfers.length > SINGLE ? (
        <ManyTransfers what={what} frame={frame} done={done} lit={lit} />
      ) : (
        <Transfers what={what} frame={frame} done={done} lit={lit} />
      )}
      <Work what={what} frame={frame} done={done} />
      <Now what={what} frame={frame} done={done} />
    </>
  );
  return { width, height: bottom + 34, content };
}

/** A time of one rank on its lifeline. */
function bar(frame: Frame, { rank, start, end }: Interval, least = 0): Record<"x" | "y" | "width" | "height", number> {
  const { x, y, band } = frame;
  return { x: x(start), y: y(rank) - band / 2, width: Math.max(least, x(end) - x(start)), height: band };
}

function Axis(props: { what: Happening; frame: Frame; width: number }): JSX.Element {
  const { what, frame, width } = props;
  const inSteps = what.clock === "steps";
  const ticks = scaleLinear([0, what.duration || 1], [0, 1]).ticks(
    Math.max(2, Math.min(inSteps ? what.duration : 8, Math.floor(width / 110))),
  );
  return (
    <g class="ruler">
      {ticks.map((tick) => (
        <g key={tick}>
          <line class="hair" x1={frame.x(tick)} x2={frame.x(tick)} y1={frame.top} y2={frame.bottom} />
          <text class="axis" x={frame.x(tick)} y={frame.bottom + 18} text-anchor={anchorOf(frame.x(tick), width)}>
            {inSteps ? (Number.isInteger(tick) ? tick : "") : seconds(tick)}
          </text>
        </g>
      ))}
    </g>
  );
}

interface Drawing {
  what: Happening;
  frame: Frame;
  done: number;
  /** Whether a message carries what is followed; all do if nothing is. */
  lit: (one: Transfer) => boolean;
}

function classOf(one: Transfer, { done, lit }: Drawing): string {
  return `transfer ${phase(one.step, done)}${one.critical ? " critical" : ""}${lit(one) ? "" : " unlit"}`;
}

function Transfers(props: Drawing): JSX.Element {
  const { what, frame } = props;
  // The critical path is drawn last, on top.
  const order = [...what.transfers].sort((a, b) => Number(a.critical) - Number(b.critical));
  return (
    <g>
      {order.map((one, i) => (
        <g
          key={i}
          class={classOf(one, props)}
          {...lights({ chunk: one.chunk, ranks: [one.source, one.destination] }, () => openStep(one.step + 1))}
        >
          <title>{saying(one, what)}</title>
          <path class={one.reduces ? "reduce" : "copy"} d={shape(one, frame)} />
          {one.end > one.landed && (
            <rect class="combine" {...bar(frame, { rank: one.destination, start: one.landed, end: one.end }, 1)} />
          )}
        </g>
      ))}
    </g>
  );
}

/** Thousands of messages: one path per kind and direction. In one path, shapes of opposite orientation would cut holes
 * into each other. */
function ManyTransfers(props: Drawing): JSX.Element {
  const { what, frame } = props;
  const paths = new Map<string, string>();
  const add = (kind: string, d: string): void => void paths.set(kind, (paths.get(kind) ?? "") + d);
  for (const one of what.transfers) {
    const group = classOf(one, props);
    const way = one.destination > one.source ? "down" : "up";
    add(`${group}|${one.reduces ? "reduce" : "copy"} ${way}`, shape(one, frame));
    if (one.end > one.landed) {
      const [from, to] = [tenth(frame.x(one.landed)), tenth(frame.x(one.end))];
      const top = frame.y(one.destination) - frame.band / 2;
      add(`${group}|combine`, `M${from} ${top}H${to}v${frame.band}H${from}z`);
    }
  }
  const order = [...paths].sort(([a], [b]) => Number(a.includes("critical")) - Number(b.includes("critical")));
  return (
    <g>
      {order.map(([kind, d]) => (
        <g key={kind} class={`${kind.split("|")[0]} many`}>
          <path class={kind.split("|")[1]} d={d} />
        </g>
      ))}
    </g>
  );
}

/** The slope is the latency, the width the time that the bytes take. */
function shape(one: Transfer, frame: Frame): string {
  if (one.source === one.destination) return "";
  const side = one.destination > one.source ? frame.band / 2 : -frame.band / 2;
  const [top, bottom] = [frame.y(one.source) + side, frame.y(one.destination) - side];
  const at = (time: number): number => tenth(frame.x(time));
  return `M${at(one.start)} ${top}L${at(one.sent)} ${top}L${at(one.arrived)} ${bottom}L${at(one.first)} ${bottom}z`;
}

function phase(step: number, done: number): string {
  if (done === 0) return "plain";
  return step === done - 1 ? "now" : step < done ? "past" : "future";
}

function saying(one: Transfer, what: Happening): string {
  const carries = one.moves === 1 ? `chunk ${one.chunk}` : `chunk ${one.chunk} and ${one.moves - 1} more`;
  const when = what.clock === "steps" ? "" : `, ${seconds(one.start)} to ${seconds(one.end)}`;
  return `step ${one.step + 1}: rank ${one.source} sends ${carries} to rank ${one.destination}${one.reduces ? ", reduced" : ""}${when}${one.critical ? "; on the critical path" : ""}`;
}

/** What a real run did: blocks of work, and whose memory they read. */
function Work(props: { what: Happening; frame: Frame; done: number }): JSX.Element | null {
  const { what, frame, done } = props;
  if (!what.work.length) return null;
  const tall = Math.min(18, frame.band * 2);
  const shapes: ComponentChildren[] = what.work.map((one, i) => (
    <g
      key={i}
      class={`work ${phase(one.step, done)}`}
      {...lights({ ranks: [one.rank, ...one.peers] }, () => openStep(one.step + 1))}
    >
      <title>{`rank ${one.rank}, step ${one.step + 1}: ${one.what}, ${seconds(one.end - one.start)}`}</title>
      {what.work.length < SINGLE &&
        one.peers.map((peer) => (
          <line
            key={peer}
            class="pull"
            x1={frame.x(one.start)}
            y1={frame.y(peer)}
            x2={frame.x(one.start)}
            y2={frame.y(one.rank)}
          />
        ))}
      <rect class={one.reduces ? "combine" : "copying"} {...bar({ ...frame, band: tall }, one, 1)} rx={1.5} />
    </g>
  ));
  return <g>{shapes}</g>;
}

/** Where the player stands. */
function Now(props: { what: Happening; frame: Frame; done: number }): JSX.Element {
  const { what, frame, done } = props;
  const here = what.doneAt[done] ?? 0;
  const next = what.doneAt[Math.min(done + 1, what.doneAt.length - 1)] ?? here;
  const x = frame.x(here + (next - here) * fraction.value);
  return (
    <g class="playhead">
      <line x1={x} x2={x} y1={frame.top - 6} y2={frame.bottom} />
      <path d={`M${x - 5} ${frame.top - 12}h10l-5 7z`} />
    </g>
  );
}

/** Too many ranks for lifelines: how busy blocks of ranks are, over time. */
export function drawCrowd(what: Happening, ranks: number, done: number, width: number): Drawn {
  const frame = { ...frameOf(what, LIFELINES, width), left: 76 };
  const buckets = Math.max(40, Math.floor((width - 92) / 8));
  const busy = new Float64Array(LIFELINES * buckets).fill(1);
  const per = (ranks / LIFELINES) * (what.duration / buckets || 1);
  for (const one of what.idle) {
    const row = Math.floor((one.rank * LIFELINES) / ranks);
    const first = Math.floor((one.start / what.duration) * buckets);
    const last = Math.min(buckets - 1, Math.floor((one.end / what.duration) * buckets));
    for (let bucket = first; bucket <= last; bucket++) {
      const from = Math.max(one.start, (bucket * what.duration) / buckets);
      const to = Math.min(one.end, ((bucket + 1) * what.duration) / buckets);
      busy[row * buckets + bucket] -= Math.max(0, to - from) / per;
    }
  }
  const wide = (frame.x(what.duration) - frame.x(0)) / buckets;
  const pitch = (frame.bottom - frame.top) / LIFELINES;
  const now = done > 0 ? frame.x(what.doneAt[done]) : frame.x(what.duration);
  const cells: ComponentChildren[] = [];
  busy.forEach((share, i) => {
    const [row, bucket] = [Math.floor(i / buckets), i % buckets];
    // On whole pixels, and without gaps: overlaps and gaps would be stripes that mean nothing.
    const x = Math.round(frame.x(0) + bucket * wide);
    cells.push(
      <rect
        key={i}
        x={x}
        y={frame.top + row * pitch}
        width={Math.round(frame.x(0) + (bucket + 1) * wide) - x}
        height={pitch}
        fill={fullness(share)}
      />,
    );
  });
  const content = (
    <>
      <text class="axis" x={frame.x(0)} y={frame.bottom + 44}>
        {`a row is ${Math.ceil(ranks / LIFELINES)} ranks; ${deeper()}, the more of them send, receive or combine`}
      </text>
      <g shape-rendering="crispEdges">{cells}</g>
      <rect
        class="ahead"
        x={now}
        y={frame.top}
        width={Math.max(0, frame.x(what.duration) - now)}
        height={frame.bottom - frame.top}
      />
      {every(LIFELINES, 4).map((row) => (
        <text key={row} class="label" x={64} y={frame.y(row) + 4} text-anchor="end">
          {`rank ${Math.ceil((row * ranks) / LIFELINES)}`}
        </text>
      ))}
      <Axis what={what} frame={frame} width={width} />
      <Now what={what} frame={frame} done={done} />
    </>
  );
  return { width, height: frame.bottom + 54, content };
}
