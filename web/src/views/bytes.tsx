/** View 3, where the bytes go: the topology with links as wide as their traffic; a matrix of ranks if it is large. */

import type { ComponentChildren, JSX } from "preact";
import type { Entry, LinkJson } from "../document";
import { clamp, every, unique } from "../numbers";
import { Key, lights, Picture, Scale, Twin, type Drawn } from "../picture";
import { colourOf, fullness, heat } from "../palette";
import type { Replay } from "../replay";
import { replayOf, routesOf } from "../source";
import { state } from "../state";
import { bytes, percent, seconds } from "../words";
import { placesOf } from "./places";

const DRAWN = 16; // with more ranks than this, a matrix says more than a drawing
const UNUSED = 40; // more links than this that carry nothing would only be in the way
const LISTED = 8;
const MOST_SQUARES = 64; // per side of the matrix; more ranks are grouped

export function Bytes(props: { entry: Entry; step: number }): JSX.Element {
  const { entry, step } = props;
  const replay = replayOf(entry);
  const links = entry.links ?? [];
  const duration = entry.timeline?.duration ?? entry.modelled?.seconds ?? 0;
  const busy = [...links].filter((link) => link.bytes > 0).sort((a, b) => b.seconds - a.seconds);
  const lines = [
    ...(entry.bottleneck ? [entry.bottleneck.sentence] : []),
    ...busy
      .slice(0, LISTED)
      .map(
        (link) => `${link.name} carries ${bytes(link.bytes)}, in use for ${percent(use(link, duration))} of the time.`,
      ),
  ];
  const asMatrix = replay.ranks > DRAWN || !entry.topology || !links.length;
  return (
    <>
      {entry.bottleneck && <p class="bottleneck">{entry.bottleneck.sentence}</p>}
      <Picture
        name="bytes"
        least={asMatrix ? 0 : 26 * replay.ranks}
        label={`Where the bytes go. ${lines[0] ?? "Bytes between pairs of ranks."}`}
        draw={(width) =>
          (asMatrix ? null : drawTopology(entry, replay, step, duration, width)) ??
          drawMatrix(entry, replay, step, width)
        }
      />
      <p class="legend">
        {asMatrix ? (
          <>
            <Scale
              from={step ? "no bytes so far" : "no bytes"}
              to="the most in the end"
              colours={[fullness(0.12), fullness(1)]}
            />
            {hostsOf(entry, replay).length > 1 && <Key sign="swatch host">a host's own pairs</Key>}
            {step > 0 && <Key sign="swatch fresh">used in this step</Key>}
          </>
        ) : (
          <>
            <Key sign="wedge">width: bytes</Key>
            <Scale from="idle" to="in use all the time" colours={[0, 0.33, 0.66, 1].map(heat)} />
            <Key sign="swatch outlined">bottleneck</Key>
            <Key sign="line flowing">used in this step</Key>
          </>
        )}
      </p>
      {!links.length && <p class="note">No topology was given, so no links are known.</p>}
      {busy.length > 0 && (
        <Busiest
          links={busy.slice(0, LISTED)}
          all={busy.length}
          duration={duration}
          bottleneck={entry.bottleneck?.link}
        />
      )}
      <Twin lines={lines} />
    </>
  );
}

const use = (link: LinkJson, duration: number): number => (duration > 0 ? Math.min(1, link.seconds / duration) : 0);

function drawTopology(entry: Entry, replay: Replay, step: number, duration: number, width: number): Drawn | null {
  const links = entry.links!;
  const drawing = placesOf(entry.topology!, links, replay.ranks, width);
  if (!drawing) return null;
  const most = Math.max(...links.map((link) => link.bytes)) || 1;
  const now = linksOf(entry, replay, step);
  const broad = (link: LinkJson): number => (link.bytes ? 1.4 + (drawing.widest - 1.4) * (link.bytes / most) : 1);
  // Thin lines over thick ones, the bottleneck on top.
  const unused = drawing.shapes.filter((shape) => !links[shape.link].bytes).length;
  const order = drawing.shapes
    .filter((shape) => links[shape.link].bytes || unused <= UNUSED)
    .sort((a, b) => links[b.link].bytes - links[a.link].bytes);
  const narrowest = entry.bottleneck?.link;
  // Others that are just as busy have a thin outline.
  const limit = links.find((link) => link.name === narrowest)?.seconds || Infinity;
  const content = (
    <>
      {drawing.boxes.map((box, i) => (
        <g key={i}>
          <rect
            class={`place ${box.kind}`}
            x={box.x}
            y={box.y}
            width={Math.max(1, box.width)}
            height={box.height}
            rx={box.kind === "switch" ? Math.min(6, box.height / 2) : 10}
          />
        </g>
      ))}
      {order
        .filter((shape) => links[shape.link].seconds >= limit * (1 - 1e-9))
        .map((shape) => (
          <path
            key={`n${shape.link}`}
            class="narrowest"
            data-r={shape.ranks.join(" ") || undefined}
            data-l={links[shape.link].name}
            d={shape.path}
            stroke-width={broad(links[shape.link]) + (links[shape.link].name === narrowest ? 7 : 2.4)}
          />
        ))}
      {order.map((shape) => {
        const link = links[shape.link];
        return (
          <g key={shape.link} class="hot" {...lights({ link: link.name, ranks: shape.ranks })}>
            <title>{`${link.name}: ${bytes(link.bytes)}, busy ${seconds(link.seconds)} (${percent(use(link, duration))})`}</title>
            <path class="reach" d={shape.path} />
            <path
              class={link.bytes ? "link" : "link unused"}
              d={shape.path}
              stroke={heat(use(link, duration))}
              stroke-width={broad(link)}
            />
            {now.has(shape.link) && <path class="flowing" d={shape.path} />}
          </g>
        );
      })}
      {drawing.boxes.map((box, i) =>
        box.label ? (
          <text
            key={i}
            class={box.kind === "switch" ? "label" : "axis"}
            x={box.kind === "switch" ? box.x + box.width / 2 : box.x + 10}
            y={box.kind === "switch" ? box.y + box.height / 2 + 4 : box.y + box.height - 9}
            text-anchor={box.kind === "switch" ? "middle" : "start"}
          >
            {box.label}
          </text>
        ) : null,
      )}
      {drawing.ranks.map((one) => (
        <g key={one.rank} class="hot" {...lights({ ranks: [one.rank] })}>
          <circle class="rank" cx={one.x} cy={one.y} r={one.r} fill={colourOf(one.rank, replay.ranks)} />
          <text class="inside" x={one.x} y={one.y} font-size={Math.max(8, one.r * 0.95)}>
            {one.rank}
          </text>
        </g>
      ))}
    </>
  );
  return { width, height: drawing.height, content };
}

/** The links that the moves of a step take. */
function linksOf(entry: Entry, replay: Replay, step: number): Set<number> {
  const routes = routesOf(entry);
  return new Set(replay.moves(step - 1).flatMap((move) => routes?.(move.source, move.destination) ?? []));
}

function Busiest(props: {
  links: LinkJson[];
  all: number;
  duration: number;
  bottleneck: string | undefined;
}): JSX.Element {
  const most = Math.max(...props.links.map((link) => link.seconds), 1e-30);
  return (
    <table class="busiest">
      <caption>
        The links that are busy longest{props.all > props.links.length ? `, ${props.links.length} of ${props.all}` : ""}
      </caption>
      <tbody>
        {props.links.map((link) => (
          <tr key={link.name} class={link.name === props.bottleneck ? "is" : ""} {...lights({ link: link.name })}>
            <th scope="row">{link.name}</th>
            <td>
              <i
                style={{
                  width: `${(100 * link.seconds) / most}%`,
                  background: heat(use(link, props.duration)),
                }}
              />
            </td>
            <td class="number">{bytes(link.bytes)}</td>
            <td class="number">{seconds(link.seconds)}</td>
            <td class="number">{percent(use(link, props.duration))}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

/** The hosts that are framed in the matrix; none if ranks are grouped. */
function hostsOf(entry: Entry, replay: Replay): number[] {
  const host = entry.topology?.host;
  return host && replay.ranks <= MOST_SQUARES ? unique(host.slice(0, replay.ranks)) : [];
}

/** Bytes from rank to rank so far: rows send, columns receive. More than 64 ranks are grouped into blocks. */
function drawMatrix(entry: Entry, replay: Replay, step: number, width: number): Drawn {
  const side = Math.min(MOST_SQUARES, replay.ranks);
  const [left, top] = [64, 46];
  const cell = clamp(Math.floor((Math.min(width, 860) - left - 16) / side), 4, 22);
  const block = (rank: number): number => Math.floor((rank * side) / replay.ranks);
  const all = new Float64Array(side * side);
  const sofar = new Float64Array(side * side);
  const fresh = new Set<number>();
  const last = step === 0 ? replay.steps : step; // at the start, everything that is to come is shown, faintly
  for (let at = 0; at < replay.steps; at++) {
    for (const [, , source, destination] of replay.schedule.steps[at]) {
      if (source === destination) continue;
      const place = block(source) * side + block(destination);
      all[place]++;
      if (at < last) sofar[place]++;
      if (at === step - 1) fresh.add(place);
    }
  }
  const most = Math.max(...all, 1);
  const chunk = state.value.size / replay.schedule.chunks;
  const cells: ComponentChildren[] = [];
  for (let place = 0; place < all.length; place++) {
    const [row, column] = [Math.floor(place / side), place % side];
    if (!all[place]) continue;
    cells.push(
      <rect
        key={place}
        class={fresh.has(place) ? "pair fresh" : "pair"}
        data-r={`${row} ${column}`}
        x={left + column * cell}
        y={top + row * cell}
        width={cell - 1}
        height={cell - 1}
        fill={fullness(0.12 + 0.88 * (sofar[place] / most))}
        opacity={step === 0 ? 0.5 : sofar[place] ? 1 : 0.35}
      >
        <title>{`rank ${row} to rank ${column}: ${bytes(sofar[place] * chunk)} of ${bytes(all[place] * chunk)}`}</title>
      </rect>,
    );
  }
  const labelled = Math.ceil(16 / cell);
  const host = entry.topology?.host;
  const hosts = hostsOf(entry, replay);
  const content = (
    <>
      <rect class="ground" x={left} y={top} width={side * cell - 1} height={side * cell - 1} />
      {cells}
      {hosts.map((one) => {
        const first = host!.indexOf(one);
        const many = host!.slice(0, replay.ranks).filter((other) => other === one).length;
        return (
          <rect
            key={one}
            class="hostline"
            x={left + first * cell - 0.5}
            y={top + first * cell - 0.5}
            width={many * cell}
            height={many * cell}
          />
        );
      })}
      {every(side, labelled).map((row) => (
        <g key={row}>
          <text
            class="label hot"
            x={left - 8}
            y={top + row * cell + cell / 2 + 4}
            text-anchor="end"
            {...lights({ ranks: [row] })}
          >
            {Math.ceil((row * replay.ranks) / side)}
          </text>
          {row % (2 * labelled) === 0 && (
            <text
              class="label hot"
              x={left + row * cell + cell / 2}
              y={top - 8}
              text-anchor="middle"
              {...lights({ ranks: [row] })}
            >
              {Math.ceil((row * replay.ranks) / side)}
            </text>
          )}
        </g>
      ))}
      <text class="axis" x={left} y={top - 28}>
        to rank →, from rank ↓
      </text>
    </>
  );
  return { width: Math.max(width, left + side * cell + 8), height: top + side * cell + 10, content };
}
