/** Who wins where: how much slower than the best each algorithm is, and a map of the winners. */

import type { JSX } from "preact";
import { useEffect } from "preact/hooks";
import { signal } from "@preact/signals";
import { scaleLog } from "d3-scale";
import { line } from "d3-shape";
import type { Case, Entry } from "../document";
import { reigns } from "../model";
import { clamp } from "../numbers";
import { hueOf, inkOn } from "../palette";
import { anchorOf, Picture, Twin, type Drawn } from "../picture";
import { againstState, casesOf, extendTable, inStudio, measured, openAt } from "../source";
import { pointed, state } from "../state";
import { stop } from "../stops";
import { bytes, digits, plural, rate, seconds } from "../words";
import { figures, ranksShown, Sliders } from "./figures";
import { drawMap } from "./map";
import { ratiosOf, standingsOf, type Standings } from "./standings";
import type { View } from "./view";

export const view: View = {
  name: "wins",
  title: "Who wins where",
  summary: "the fastest algorithm for every size and number of ranks",
  key: "5",
  draw: Wins,
  needs: ["table", "measured"],
  plays: "nothing",
  broad: true,
};

/** Numbers of ranks that the studio prices if a collective has no cases, and the largest that it prices at all. */
const COUNTED = [2, 4, 8, 16, 32, 64];
const MOST_COUNTED = 256;
const SLOWEST = 32; // times the best; slower ones leave the picture at its top

/** The size that the pointer is on, as an index. */
const column = signal<number | null>(null);

const pointing = (name: string): Record<"onPointerEnter" | "onPointerLeave", () => void> => ({
  onPointerEnter: () => void (pointed.value = name),
  onPointerLeave: () => void (pointed.value = null),
});

function Wins(props: { entry: Entry; step: number }): JSX.Element {
  const { collective, topology } = state.value;
  const cases = casesOf(collective, topology);
  const own = props.entry.schedule.ranks;
  useEffect(() => {
    if (!inStudio()) return;
    const wanted = [...(cases.length ? [] : COUNTED), ...(own >= 2 && own <= MOST_COUNTED ? [own] : [])];
    const lacking = wanted.filter((many) => !cases.some((one) => one.ranks === many));
    if (lacking.length) void extendTable(collective, topology, lacking).catch(() => undefined);
  }, [collective, topology, own]);
  if (!cases.length)
    return <p class="waiting">{inStudio() ? "Pricing …" : `This file has no times for ${collective}.`}</p>;
  const wanted = ranksShown.value ?? own;
  const here = cases.reduce((best, one) => (Math.abs(one.ranks - wanted) < Math.abs(best.ranks - wanted) ? one : best));
  const planned = here.winners.length > 0;
  const whatIf = figures.value;
  const standings = standingsOf(here, whatIf);
  if (!planned && !whatIf)
    return (
      <>
        <Sliders cases={cases} here={here} entry={props.entry} />
        <p class="note">No topology was given, so there are no planned times. Try “what if”.</p>
      </>
    );
  const reign = reigns(standings.winners, standings.sizes);
  const where = whatIf
    ? `What if every rank had one port with a latency of ${seconds(whatIf.latency)} and ${rate(whatIf.bandwidth)}, and combined ${rate(whatIf.reduction)}`
    : `On ${topology}, as allfold plan prices it`;
  const lines = [
    `${where}: ${collective} with ${plural(here.ranks, "rank")}.`,
    ...reign.map((one) => `From ${bytes(one.from)} to ${bytes(one.to)}, ${one.algorithm} is fastest.`),
  ];
  return (
    <>
      <Sliders cases={cases} here={here} entry={props.entry} />
      <p class={whatIf ? "whatif" : "planned"}>{lines[0]}</p>
      <Picture
        name="wins"
        label={`How many times slower than the best, over size. ${lines.join(" ")}`}
        draw={(width) => drawRatios(here, standings, width)}
      />
      <Values standings={standings} />
      <h3 class="below">Winners over sizes and ranks</h3>
      <Picture
        name="map"
        caption="Winners over sizes and ranks"
        label="The fastest algorithm for every size and number of ranks"
        draw={(width) =>
          drawMap(
            cases.map((one) => standingsOf(one, whatIf)),
            here.ranks,
            width,
          )
        }
      />
      <Names names={standings.names} reigning={new Set(reign.map((one) => one.algorithm))} />
      <p class="note">
        {whatIf
          ? "The same model as allfold plan, for a network on which nothing but the ranks' own ports is shared. "
          : "Times of allfold plan, each algorithm with its best number of segments; docs/model.md explains them. "}
        {measured.value.length > 0 && "Circles are measurements. "}
        {inStudio()
          ? "Click to open the other views there."
          : "Click to open the other views there, if this file has it."}
      </p>
      <Twin lines={lines} />
    </>
  );
}

/** The size under the pointer, or the page's own, as an index into the sizes. */
function chosenSize(sizes: number[]): number {
  if (column.value !== null) return clamp(column.value, 0, sizes.length - 1);
  const distance = (size: number): number => Math.abs(Math.log2(size) - Math.log2(Math.max(1, state.value.size)));
  return sizes.reduce((best, size, i) => (distance(size) < distance(sizes[best]) ? i : best), 0);
}

/** The times at one size, the best first. */
function Values(props: { standings: Standings }): JSX.Element {
  const { standings } = props;
  const at = chosenSize(standings.sizes);
  const best = standings.seconds[at].get(standings.winners[at])!;
  const sorted = [...standings.seconds[at]].sort((a, b) => a[1] - b[1]);
  return (
    <div class="values">
      <h3>
        {bytes(standings.sizes[at])} <small>{plural(standings.ranks, "rank")}</small>
      </h3>
      <ol>
        {sorted.map(([name, time]) => (
          <li key={name} {...pointing(name)}>
            <i class="dot" style={{ background: hueOf(name) }} />
            <b>{name}</b>
            <span>{seconds(time)}</span>
            <span class="soft">
              {name === standings.winners[at] ? "best" : time <= best * 1.01 ? "as good" : `${digits(time / best)}×`}
            </span>
          </li>
        ))}
      </ol>
    </div>
  );
}

function drawRatios(one: Case, standings: Standings, width: number): Drawn {
  const narrow = width < 620;
  const [left, right, top, high] = [58, narrow ? 16 : 168, 42, narrow ? 240 : 300];
  const { sizes, names } = standings;
  const [first, last] = [sizes[0], sizes[sizes.length - 1]];
  const x = scaleLog([first, last], [left, width - right]).base(2);
  // As high as the slowest line goes.
  const farthest = Math.max(2, ...names.flatMap((name) => ratiosOf(standings, name).map((ratio) => ratio ?? 1)));
  const highest = Math.min(SLOWEST, farthest * 1.05);
  const y = scaleLog([1, highest], [top + high, top]).clamp(true);
  const reign = reigns(standings.winners, sizes);
  const kings = new Set(reign.map(({ algorithm }) => algorithm));
  const compared = againstState(state.value)?.algorithm;
  const at = chosenSize(sizes);
  const strip = top + high + 12;
  // Every third size has its name, or every ninth where names would lie over one another.
  const every = (3 * (width - right - left)) / (sizes.length - 1) < 56 ? 9 : 3;
  const nearest = (event: MouseEvent): number => {
    const box = (event.currentTarget as SVGElement).getBoundingClientRect();
    return Math.round(((event.clientX - box.left) / box.width) * (sizes.length - 1));
  };
  const curve = line<number | null>(
    (_, i) => x(sizes[i]),
    (ratio) => y(ratio!),
  ).defined((ratio) => ratio !== null);
  const points = measured.value.filter(
    (point) => point.collective === one.collective && point.ranks === one.ranks && !figures.value,
  );
  const bestAt = (size: number): number | undefined => {
    const i = sizes.findIndex((known) => known >= size * 0.99);
    return i < 0 ? undefined : standings.seconds[i].get(standings.winners[i]);
  };
  const content = (
    <>
      <text class="axis" x={0} y={11}>
        times as long as the best
      </text>
      {[1, 2, 4, 8, 16, SLOWEST]
        .filter((ratio) => ratio <= highest)
        .map((ratio) => (
          <g key={ratio}>
            <line class="hair" x1={left} x2={width - right} y1={y(ratio)} y2={y(ratio)} />
            <text class="axis" x={left - 8} y={y(ratio) + 4} text-anchor="end">
              {ratio === 1 ? "best" : `${ratio}×`}
            </text>
          </g>
        ))}
      {names.map((name) => {
        const dim = pointed.value
          ? pointed.value !== name
          : !kings.has(name) && name !== state.value.algorithm && name !== compared;
        return (
          <path
            key={name}
            class={`curve${dim ? " dim" : ""}`}
            stroke={hueOf(name)}
            d={curve(ratiosOf(standings, name)) ?? ""}
          />
        );
      })}
      {points.map((point, i) => {
        const best = bestAt(point.size);
        return best ? (
          <circle
            key={i}
            class="point"
            cx={x(clamp(point.size, first, last))}
            cy={y(point.seconds / best)}
            r={5}
            stroke={hueOf(point.algorithm)}
          >
            <title>{`${point.algorithm}, ${bytes(point.size)}: measured ${seconds(point.seconds)}, ${point.memory} memory`}</title>
          </circle>
        ) : null;
      })}
      {!narrow && <EndLabels standings={standings} x={width - right + 10} y={(ratio) => y(ratio)} kings={kings} />}
      <rect
        class="pointer"
        x={left}
        y={top}
        width={width - right - left}
        height={high}
        fill="transparent"
        onPointerMove={(event) => (column.value = nearest(event))}
        onPointerLeave={(event) => event.pointerType === "mouse" && (column.value = null)}
        tabindex={0}
        role="slider"
        aria-label="Buffer size"
        aria-valuemin={0}
        aria-valuemax={sizes.length - 1}
        aria-valuenow={at}
        aria-valuetext={bytes(sizes[at])}
        onKeyDown={(event) => {
          const by = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
          if (!by) return;
          column.value = clamp(at + by, 0, sizes.length - 1);
          event.preventDefault();
          event.stopPropagation();
        }}
      />
      {reign.map((span, i) => (
        <g
          key={i}
          class="hot"
          {...stop(() => openAt(span.algorithm, one.ranks, 2 ** Math.round(Math.log2(span.from * span.to) / 2)))}
        >
          <rect
            x={x(span.from)}
            y={strip}
            width={Math.max(1, x(span.to) - x(span.from) - 1)}
            height={20}
            rx={3}
            fill={hueOf(span.algorithm)}
          >
            <title>{`${span.algorithm} from ${bytes(span.from)} to ${bytes(span.to)}`}</title>
          </rect>
          {x(span.to) - x(span.from) > span.algorithm.length * 7 + 10 && (
            <text
              class="inside"
              style={{ fill: inkOn(hueOf(span.algorithm)) }}
              x={(x(span.from) + x(span.to)) / 2}
              y={strip + 10}
              font-size={12}
            >
              {span.algorithm}
            </text>
          )}
        </g>
      ))}
      {sizes
        .filter((_, i) => i % every === 0)
        .map((size) => (
          <text key={size} class="axis" x={x(size)} y={strip + 38} text-anchor={anchorOf(x(size), width)}>
            {bytes(size)}
          </text>
        ))}
      <line class="here" x1={x(sizes[at])} x2={x(sizes[at])} y1={top} y2={strip + 20} />
      <text class="axis" x={x(sizes[at])} y={top - 8} text-anchor={anchorOf(x(sizes[at]), width)}>
        {bytes(sizes[at])}
      </text>
    </>
  );
  return { width, height: strip + 48, content };
}

/** Names at the ends of their lines, moved apart where lines are close. */
function EndLabels(props: {
  standings: Standings;
  x: number;
  y: (ratio: number) => number;
  kings: Set<string>;
}): JSX.Element {
  const { standings, kings } = props;
  const ends = standings.names
    .map((name) => props.y(ratiosOf(standings, name).at(-1) ?? SLOWEST))
    .map((y, i) => ({ name: standings.names[i], from: y, y }))
    .sort((a, b) => a.y - b.y);
  for (let i = 1; i < ends.length; i++) ends[i].y = Math.max(ends[i].y, ends[i - 1].y + 15);
  const lowest = props.y(1) + 12;
  if (ends.length && ends[ends.length - 1].y > lowest)
    for (let i = ends.length - 1; i >= 0; i--) ends[i].y = Math.min(ends[i].y, lowest - (ends.length - 1 - i) * 15);
  return (
    <g>
      {ends.map((one) => (
        <text
          key={one.name}
          class={`end hot${kings.has(one.name) ? " king" : ""}`}
          x={props.x + 10}
          y={one.y + 4}
          {...pointing(one.name)}
          {...stop(() => openAt(one.name, standings.ranks, state.value.size))}
        >
          <title>{`show ${one.name}`}</title>
          {one.name}
        </text>
      ))}
      {ends.map((one) => (
        <g key={one.name}>
          <path class="leader" d={`M${props.x - 10} ${one.from}L${props.x + 2} ${one.y}`} stroke={hueOf(one.name)} />
          <circle cx={props.x + 2} cy={one.y} r={4} fill={hueOf(one.name)} />
        </g>
      ))}
    </g>
  );
}

function Names(props: { names: string[]; reigning: Set<string> }): JSX.Element {
  return (
    <p class="legend">
      {props.names.map((name) => (
        <span key={name} class={props.reigning.has(name) ? "king" : ""} {...pointing(name)}>
          <i class="swatch" style={{ background: hueOf(name) }} /> {name}
        </span>
      ))}
    </p>
  );
}
