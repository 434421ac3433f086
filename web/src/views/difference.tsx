/** Bytes of two schedules as a difference: each link in the colour of the one that sends more over it. */

import type { ComponentChildren, JSX } from "preact";
import { clamp, every } from "../numbers";
import { colourOf, hueOf, inkOn } from "../palette";
import { glows, Key, Picture, type Drawn } from "../picture";
import { remembered } from "../remembered";
import type { Entry } from "../document";
import { replayOf } from "../source";
import { state } from "../state";
import { bytes, plural } from "../words";
import type { Side } from "../why";
import { placesOf } from "./places";

const DRAWN = 64; // ranks; with more, and on different networks, a matrix of ranks

const hueOfSide = (side: Side): string => hueOf(side.entry.schedule.algorithm);

/** What crosses each link of both, most different first. */
interface Crossing {
  name: string;
  values: [number, number];
}

export function BytesDifference(props: { one: Side; other: Side }): JSX.Element {
  const { one, other } = props;
  const same = one.entry.topology && one.entry.topology.name === other.entry.topology?.name;
  const rows = same ? crossings(one.entry, other.entry) : [];
  const differ = rows.filter(({ values: [a, b] }) => Math.abs(a - b) > 1e-6 * Math.max(a, b));
  return (
    <>
      <Picture
        name="difference"
        label={`Bytes of ${one.name} and ${other.name} as a difference: ${plural(differ.length, "link")} carry different amounts`}
        draw={(width) => (same ? drawLinks(one, other, width) : null) ?? drawPairs(one, other, width)}
      />
      <p class="legend">
        <Key sign="dot" colour={hueOfSide(one)}>
          {one.name} sends more
        </Key>
        <Key sign="dot" colour={hueOfSide(other)}>
          {other.name} sends more
        </Key>
        <span>grey: both send the same, or nothing; the broader, the larger the difference</span>
      </p>
      {same && (
        <table class="counts versus-facts">
          <caption>{differ.length ? "Links that differ most" : "All links carry the same bytes."}</caption>
          <thead>
            <tr>
              <th />
              <th>{one.name}</th>
              <th>{other.name}</th>
              <th>difference</th>
            </tr>
          </thead>
          <tbody>
            {grouped(differ)
              .slice(0, 10)
              .map(({ name, values: [a, b] }) => (
                <tr key={name}>
                  <th scope="row">{name}</th>
                  <td>{a < b ? <b>{bytes(a)}</b> : bytes(a)}</td>
                  <td>{b < a ? <b>{bytes(b)}</b> : bytes(b)}</td>
                  <td>
                    {b > a ? "+" : "−"}
                    {bytes(Math.abs(b - a))}
                  </td>
                </tr>
              ))}
          </tbody>
        </table>
      )}
    </>
  );
}

function crossings(one: Entry, other: Entry): Crossing[] {
  const known = new Map<string, [number, number]>();
  for (const link of one.links ?? []) known.set(link.name, [link.bytes, 0]);
  for (const link of other.links ?? []) known.set(link.name, [known.get(link.name)?.[0] ?? 0, link.bytes]);
  return [...known].map(([name, values]) => ({ name, values }));
}

/** Links that differ alike are one row. */
function grouped(rows: Crossing[]): Crossing[] {
  const groups = new Map<string, Crossing[]>();
  for (const row of rows) {
    const key = row.values.map((value) => value.toPrecision(9)).join(" ");
    groups.set(key, [...(groups.get(key) ?? []), row]);
  }
  return [...groups.values()]
    .map(([first, ...more]) => ({
      ...first,
      name: more.length ? `${first.name} and ${more.length} more` : first.name,
    }))
    .sort((a, b) => Math.abs(b.values[1] - b.values[0]) - Math.abs(a.values[1] - a.values[0]));
}

function drawLinks(one: Side, other: Side, width: number): Drawn | null {
  const { entry } = one;
  const links = entry.links ?? [];
  const { ranks } = replayOf(entry);
  if (ranks > DRAWN || !links.length) return null;
  const drawing = placesOf(entry.topology!, links, ranks, width);
  if (!drawing) return null;
  const rest = new Map((other.entry.links ?? []).map((link) => [link.name, link.bytes]));
  const differences = links.map((link) => (rest.get(link.name) ?? 0) - link.bytes);
  const most = Math.max(...differences.map(Math.abs)) || 1;
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
          {box.label && (
            <text class="axis" x={box.x + 10} y={box.y + box.height - 9}>
              {box.label}
            </text>
          )}
        </g>
      ))}
      {[...drawing.shapes]
        .sort((a, b) => Math.abs(differences[a.link]) - Math.abs(differences[b.link]))
        .map((shape) => {
          const [link, by] = [links[shape.link], differences[shape.link]];
          const nothing = Math.abs(by) <= 1e-9 * most;
          return (
            <g key={shape.link} {...glows({ link: link.name, ranks: shape.ranks })}>
              <title>{`${link.name}: ${bytes(link.bytes)} by ${one.name}, ${bytes(link.bytes + by)} by ${other.name}`}</title>
              <path
                class={nothing ? "link unused" : "link"}
                d={shape.path}
                stroke={nothing ? undefined : hueOfSide(by > 0 ? other : one)}
                stroke-width={nothing ? 1.2 : 1.4 + (drawing.widest - 1.4) * (Math.abs(by) / most)}
              />
            </g>
          );
        })}
      {drawing.ranks.map(({ rank, x, y, r }) => (
        <g key={rank}>
          <circle class="rank" cx={x} cy={y} r={r} fill={colourOf(rank, ranks)} />
          <text
            class="inside"
            style={{ fill: inkOn(colourOf(rank, ranks)) }}
            x={x}
            y={y}
            font-size={Math.max(8, r * 0.95)}
          >
            {rank}
          </text>
        </g>
      ))}
    </>
  );
  return { width, height: drawing.height, content };
}

const SIDE = 64; // squares of the matrix; more ranks are grouped

/** Chunks sent between ranks as shares of the buffer, in all steps. */
const sharesOf = remembered((entry: Entry): Float64Array => {
  const { ranks, chunks, steps } = entry.schedule;
  const side = Math.min(SIDE, ranks);
  const shares = new Float64Array(side * side);
  const block = (rank: number): number => Math.floor((rank * side) / ranks);
  for (const rows of steps)
    for (const [, , source, destination] of rows)
      if (source !== destination) shares[block(source) * side + block(destination)] += 1 / chunks;
  return shares;
});

/** From rank to rank: rows send, columns receive. */
function drawPairs(one: Side, other: Side, width: number): Drawn {
  const [a, b] = [sharesOf(one.entry), sharesOf(other.entry)];
  const side = Math.round(Math.sqrt(a.length));
  const [left, top] = [64, 40];
  const cell = clamp(Math.floor((Math.min(width, 860) - left - 16) / side), 4, 22);
  const sizes = [one, other].map(
    ({ entry }) => Number(entry.key.slice(entry.key.lastIndexOf("/") + 1)) || state.value.size,
  );
  const differences = Array.from(a, (share, i) => (b[i] ?? 0) * sizes[1] - share * sizes[0]);
  const most = Math.max(...differences.map(Math.abs)) || 1;
  const squares: ComponentChildren[] = differences.map((by, place) => {
    if (!a[place] && !b[place]) return null;
    const [row, column] = [Math.floor(place / side), place % side];
    return (
      <rect
        key={place}
        x={left + column * cell}
        y={top + row * cell}
        width={cell - 1}
        height={cell - 1}
        fill={by === 0 ? "var(--line)" : hueOfSide(by > 0 ? other : one)}
        fill-opacity={by === 0 ? 1 : 0.15 + 0.85 * (Math.abs(by) / most)}
      >
        <title>{`rank ${row} to rank ${column}: ${bytes(a[place] * sizes[0])} by ${one.name}, ${bytes((b[place] ?? 0) * sizes[1])} by ${other.name}`}</title>
      </rect>
    );
  });
  const content = (
    <>
      <rect class="ground" x={left} y={top} width={side * cell - 1} height={side * cell - 1} />
      {squares}
      <text class="axis" x={left} y={top - 22}>
        to rank →, from rank ↓
      </text>
      {every(side, Math.ceil(16 / cell)).map((row) => (
        <text key={row} class="label" x={left - 8} y={top + row * cell + cell / 2 + 4} text-anchor="end">
          {Math.ceil((row * one.entry.schedule.ranks) / side)}
        </text>
      ))}
    </>
  );
  return { width: Math.max(width, left + side * cell + 8), height: top + side * cell + 10, content };
}
