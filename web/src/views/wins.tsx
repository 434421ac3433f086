/** View 5, who wins where: time over size for every algorithm, and a map of the winners over sizes and ranks. */

import type { ComponentChildren, JSX } from "preact";
import { useEffect } from "preact/hooks";
import { signal } from "@preact/signals";
import { scaleLog } from "d3-scale";
import { line } from "d3-shape";
import type { Entry, TableRow } from "../document";
import { reigns, timeOf, winner, type Figures } from "../model";
import { clamp, unique } from "../numbers";
import { Picture, Twin, type Drawn } from "../picture";
import { colourOf } from "../palette";
import { choose, extendTable, inStudio, measured, table } from "../source";
import { go, state } from "../state";
import { bytes, rate, seconds } from "../words";
import { figures, figuresOf, ranksShown, Sliders } from "./figures";

const SIZES = Array.from({ length: 28 * 4 + 1 }, (_, i) => 2 ** (3 + i / 4));
const MAP_SIZES = Array.from({ length: 28 }, (_, i) => 2 ** (3 + i));

/** Numbers of ranks that the studio counts if a collective has no rows, and the largest that it counts at all. */
const COUNTED = [2, 4, 8, 16, 32, 64];
const MOST_COUNTED = 256;

const pointed = signal<string | null>(null);
const pointing = (name: string): Record<"onPointerEnter" | "onPointerLeave", () => void> => ({
  onPointerEnter: () => void (pointed.value = name),
  onPointerLeave: () => void (pointed.value = null),
});

export function Wins(props: { entry: Entry; step: number }): JSX.Element {
  const { collective } = state.value;
  const rows = table.value.filter((row) => row.collective === collective);
  const known = unique(rows.map((row) => row.ranks)).sort((a, b) => a - b);
  const own = props.entry.schedule.ranks;
  useEffect(() => {
    if (!inStudio()) return;
    const lacking = [...(rows.length ? [] : COUNTED), ...(own >= 2 && own <= MOST_COUNTED ? [own] : [])].filter(
      (many) => !known.includes(many),
    );
    if (lacking.length) void extendTable(collective, lacking).catch(() => undefined);
  }, [collective, own]);
  if (!rows.length)
    return <p class="waiting">{inStudio() ? "Being counted …" : `This file holds no table of ${collective}.`}</p>;
  const wanted = ranksShown.value ?? props.entry.schedule.ranks;
  const ranks = known.reduce((best, one) => (Math.abs(one - wanted) < Math.abs(best - wanted) ? one : best), known[0]);
  const here = rows.filter((row) => row.ranks === ranks);
  const names = unique(rows.map((row) => row.algorithm));
  const now = figures.value ?? figuresOf(props.entry);
  const reign = reigns(here, SIZES, now);
  const lines = [
    `${collective} with ${ranks} ranks, latency ${seconds(now.latency)}, bandwidth ${rate(now.bandwidth)}, combining ${rate(now.reduction)}.`,
    ...reign.map((one) => `From ${bytes(one.from)} to ${bytes(one.to)}, ${one.algorithm} is fastest.`),
  ];
  return (
    <>
      <Sliders known={known} ranks={ranks} now={now} />
      <Picture
        name="wins"
        label={`Time over size: ${lines.join(" ")}`}
        draw={(width) => drawLines(here, names, ranks, now, width)}
      />
      <h3 class="below">Winners over sizes and ranks</h3>
      <Picture
        name="map"
        caption="Winners over sizes and ranks"
        label="The fastest algorithm for every size and number of ranks"
        draw={(width) => drawMap(rows, known, names, ranks, now, width)}
      />
      <Names names={names} reigning={new Set(reign.map((one) => one.algorithm))} />
      <p class="note">
        Modelled: rounds · latency + bytes of the busiest port / bandwidth + bytes combined / combining speed, counted
        from the schedules.
        {measured.value.length > 0 && " Circles are measured."} A click opens the other views there.
      </p>
      <Twin lines={lines} />
    </>
  );
}

function drawLines(rows: TableRow[], names: string[], ranks: number, now: Figures, width: number): Drawn {
  const narrow = width < 620;
  const [left, right, top, high] = [58, narrow ? 16 : 150, 14, narrow ? 300 : 380];
  const [first, last] = [SIZES[0], SIZES[SIZES.length - 1]];
  const points = measured.value.filter((one) => one.collective === state.value.collective && one.ranks === ranks);
  const times = [
    ...rows.flatMap((row) => [timeOf(row, first, now), timeOf(row, last, now)]),
    ...points.map((one) => one.seconds),
  ].filter((time) => time > 0);
  const x = scaleLog([first, last], [left, width - right]).base(2);
  const y = scaleLog([Math.min(...times) * 0.7, Math.max(...times) * 1.4], [top + high, top]);
  const reign = reigns(rows, SIZES, now);
  const kings = new Set(reign.map((one) => one.algorithm));
  const curve = line<number>((size) => x(size));
  const strip = top + high + 12;
  const open = (event: MouseEvent): void => {
    const box = (event.currentTarget as SVGElement).getBoundingClientRect();
    const size =
      2 ** Math.round(Math.log2(x.invert(left + ((event.clientX - box.left) / box.width) * (width - right - left))));
    const best = winner(rows, size, now);
    if (best) openAt(best.algorithm, ranks, size);
  };
  const content = (
    <>
      {decades(y.domain()).map((time) => (
        <g key={time}>
          <line class="hair" x1={left} x2={width - right} y1={y(time)} y2={y(time)} />
          <text class="axis" x={left - 8} y={y(time) + 4} text-anchor="end">
            {seconds(time)}
          </text>
        </g>
      ))}
      {rows.map((row) => {
        const dim = pointed.value ? pointed.value !== row.algorithm : !kings.has(row.algorithm);
        return (
          <path
            key={row.algorithm}
            class={`curve${dim ? " dim" : ""}`}
            stroke={hueOf(row.algorithm, names)}
            d={curve.y((size) => y(Math.max(1e-12, timeOf(row, size, now))))(SIZES) ?? ""}
          />
        );
      })}
      {points.map((one, i) => (
        <circle
          key={i}
          class="point"
          cx={x(clamp(one.size, first, last))}
          cy={y(one.seconds)}
          r={5}
          stroke={hueOf(one.algorithm, names)}
        >
          <title>{`${one.algorithm}, ${bytes(one.size)}: measured ${seconds(one.seconds)}, ${one.memory} memory`}</title>
        </circle>
      ))}
      {!narrow && (
        <EndLabels
          rows={rows}
          names={names}
          at={last}
          x={width - right + 10}
          y={(time) => y(time)}
          now={now}
          kings={kings}
        />
      )}
      <rect
        class="pointer"
        x={left}
        y={top}
        width={width - right - left}
        height={high}
        fill="transparent"
        onClick={open}
      />
      {reign.map((one, i) => (
        <g key={i} class="hot" onClick={() => openAt(one.algorithm, ranks, nearestPower(Math.sqrt(one.from * one.to)))}>
          <rect
            x={x(one.from)}
            y={strip}
            width={Math.max(1, x(one.to) - x(one.from) - 1)}
            height={20}
            rx={3}
            fill={hueOf(one.algorithm, names)}
          >
            <title>{`${one.algorithm} from ${bytes(one.from)} to ${bytes(one.to)}`}</title>
          </rect>
          {x(one.to) - x(one.from) > one.algorithm.length * 7 + 10 && (
            <text class="inside" x={(x(one.from) + x(one.to)) / 2} y={strip + 10} font-size={12}>
              {one.algorithm}
            </text>
          )}
        </g>
      ))}
      {MAP_SIZES.filter((_, i) => i % (narrow ? 7 : 3) === 0).map((size) => (
        <text key={size} class="axis" x={x(size)} y={strip + 38} text-anchor="middle">
          {bytes(size)}
        </text>
      ))}
      <line
        class="here"
        x1={x(clampSize(state.value.size))}
        x2={x(clampSize(state.value.size))}
        y1={top}
        y2={strip + 20}
      />
      <text class="axis" x={x(clampSize(state.value.size))} y={top - 3} text-anchor="middle">
        {bytes(state.value.size)}
      </text>
    </>
  );
  return { width, height: strip + 48, content };
}

/** Names at the ends of their lines, moved apart where lines are close. */
function EndLabels(props: {
  rows: TableRow[];
  names: string[];
  at: number;
  x: number;
  y: (time: number) => number;
  now: Figures;
  kings: Set<string>;
}): JSX.Element {
  const ends = props.rows
    .map((row) => ({ name: row.algorithm, y: props.y(timeOf(row, props.at, props.now)) }))
    .sort((a, b) => a.y - b.y);
  for (let i = 1; i < ends.length; i++) ends[i].y = Math.max(ends[i].y, ends[i - 1].y + 15);
  const over = ends.length ? ends[ends.length - 1].y - 396 : 0;
  if (over > 0)
    for (let i = ends.length - 1; i >= 0; i--) ends[i].y = Math.min(ends[i].y, 396 - (ends.length - 1 - i) * 15);
  return (
    <g>
      {ends.map((one) => (
        <text
          key={one.name}
          class={`end hot${props.kings.has(one.name) ? " king" : ""}`}
          x={props.x}
          y={one.y + 4}
          fill={hueOf(one.name, props.names)}
          {...pointing(one.name)}
          onClick={() => choose({ algorithm: one.name })}
        >
          {one.name}
        </text>
      ))}
    </g>
  );
}

function drawMap(
  rows: TableRow[],
  known: number[],
  names: string[],
  ranks: number,
  now: Figures,
  width: number,
): Drawn {
  const narrow = width < 620;
  const [left, right] = [58, narrow ? 16 : 150];
  const wide = (width - left - right) / MAP_SIZES.length;
  const tall = 24;
  const cells: ComponentChildren[] = [];
  known.forEach((many, row) => {
    const here = rows.filter((one) => one.ranks === many);
    MAP_SIZES.forEach((size, column) => {
      const best = winner(here, size, now);
      if (!best) return;
      const isHere = many === ranks && nearestPower(state.value.size) === size;
      cells.push(
        <rect
          key={`${many} ${size}`}
          class={`hot tile${pointed.value && pointed.value !== best.algorithm ? " dim" : ""}${isHere ? " current" : ""}`}
          x={left + column * wide}
          y={4 + (known.length - 1 - row) * tall}
          width={wide - 1}
          height={tall - 1}
          fill={hueOf(best.algorithm, names)}
          onClick={() => openAt(best.algorithm, many, size)}
        >
          <title>{`${many} ranks, ${bytes(size)}: ${best.algorithm}, ${seconds(timeOf(best, size, now))}`}</title>
        </rect>,
      );
    });
  });
  const content = (
    <>
      {known.map((many, row) => (
        <text key={many} class="axis" x={left - 8} y={4 + (known.length - 1 - row) * tall + 16} text-anchor="end">
          {many}
        </text>
      ))}
      {cells}
      {MAP_SIZES.map((size, i) =>
        i % (narrow ? 7 : 3) === 0 ? (
          <text key={size} class="axis" x={left + (i + 0.5) * wide} y={known.length * tall + 20} text-anchor="middle">
            {bytes(size)}
          </text>
        ) : null,
      )}
    </>
  );
  return { width, height: known.length * tall + 30, content };
}

function Names(props: { names: string[]; reigning: Set<string> }): JSX.Element {
  return (
    <p class="legend">
      {props.names.map((name) => (
        <span key={name} class={props.reigning.has(name) ? "king" : ""} {...pointing(name)}>
          <i class="swatch" style={{ background: hueOf(name, props.names) }} /> {name}
        </span>
      ))}
    </p>
  );
}

function openAt(algorithm: string, ranks: number, size: number): void {
  choose({ algorithm, ranks, size });
  go({ view: "holds" });
}

function decades([least, most]: number[]): number[] {
  const from = Math.ceil(Math.log10(least));
  const to = Math.floor(Math.log10(most));
  const every = Math.max(1, Math.ceil((to - from) / 8));
  return Array.from({ length: Math.floor((to - from) / every) + 1 }, (_, i) => 10 ** (from + i * every));
}

const hueOf = (name: string, names: string[]): string => colourOf(Math.max(0, names.indexOf(name)), names.length);
const clampSize = (size: number): number => clamp(size || 1, SIZES[0], SIZES[SIZES.length - 1]);
const nearestPower = (size: number): number => 2 ** Math.round(Math.log2(clampSize(size)));
