/** A network of hundreds of ranks: a strip per class of links, host by host; a click opens one host. */

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { signal } from "@preact/signals";
import type { Entry, LinkJson } from "../document";
import type { Layer } from "../layers";
import { clamp } from "../numbers";
import { heat } from "../palette";
import { glows, lights, Picture, Quiet, type Drawn } from "../picture";
import { remembered } from "../remembered";
import { hovered, togglePin } from "../state";
import { bytes, percent, plural, seconds } from "../words";
import { carriedSoFar, use } from "./busiest";
import {
  classesOf,
  columnsOf,
  hostAlone,
  hostsShown,
  linksOfHost,
  spreadInWords,
  spreadOf,
  type Alone,
  type LinkClass,
} from "./classes";

/** What of a large network is looked at: all classes, or one host. */
const opened = signal<{ key: string; host: number } | null>(null);

const classes = remembered((entry: Entry) =>
  classesOf(entry.topology!, entry.links!, entry.schedule.ranks).map((one) => ({
    ...one,
    ...columnsOf(one, hostsShown(entry.topology!, entry.schedule.ranks).length),
  })),
);

type Row = LinkClass & { at: number[]; wide: number };

/** The links as they are at a step. */
interface Traffic {
  sofar: number[];
  now: Set<number>;
  duration: number;
  /** The links of what is followed, by name; null if nothing is. */
  lit: Set<string> | null;
}

const HEAD = 20;
const STRIP = 24;
const PITCH = HEAD + STRIP + 14;
const LEFT = 4;
const SHADES = 12;
const NARROW = 16; // pixels of a host: its border would only be in the way

export function Network(props: { entry: Entry; traffic: Traffic; draw: DrawsHost }): JSX.Element {
  const { entry, traffic } = props;
  const hosts = hostsShown(entry.topology!, entry.schedule.ranks);
  const host = openedHost(entry);
  const [under, setUnder] = useState<number | null>(null);
  const word = wordOf(entry);
  const many = plural(hosts.length, word);
  return (
    <>
      <p class="inside-of">
        <label>
          look inside{" "}
          <select
            value={host === null ? "" : String(host)}
            onChange={(event) =>
              open(entry, event.currentTarget.value === "" ? null : Number(event.currentTarget.value))
            }
          >
            <option value="">all {many}</option>
            {hosts.map((one) => (
              <option key={one} value={String(one)}>
                {word} {one}
              </option>
            ))}
          </select>
        </label>
        {host !== null && <Quiet onClick={() => open(entry, null)}>‹ all {many}</Quiet>}
      </p>
      {host === null ? (
        <Picture
          name="bytes"
          label={`Where the bytes go, by class of link, in ${many}`}
          draw={(width) => drawClasses(entry, traffic, width, setUnder)}
        />
      ) : (
        <OneHost entry={entry} host={host} traffic={traffic} draw={props.draw} />
      )}
      {host === null && (
        <p class="told" aria-live="polite">
          {under === null
            ? "A strip is a class of links, a bar a link: the higher, the more bytes; the deeper its colour, the longer it is in use. Point at a bar, or click it to open its host."
            : linkInWords(entry.links![under], traffic.sofar[under], traffic.duration)}
        </p>
      )}
    </>
  );
}

/** Draws some links and ranks as a small network; null where their places are not known. */
type DrawsHost = (alone: Alone, width: number) => Drawn | null;

/** Where every rank is a host of its own, it is a rank that is opened. */
const wordOf = ({ topology, schedule }: Entry): string =>
  hostsShown(topology!, schedule.ranks).length === schedule.ranks ? "rank" : "host";

export const openedHost = (entry: Entry): number | null => (opened.value?.key === entry.key ? opened.value.host : null);

function open(entry: Entry, host: number | null): void {
  opened.value = host === null ? null : { key: entry.key, host };
  hovered.value = null;
}

const linkInWords = (link: LinkJson, sofar: number, duration: number): string =>
  `${link.name}: ${carriedSoFar(link, sofar)}${duration > 0 ? `, in use for ${seconds(link.seconds)}, ${percent(use(link, duration))} of the time` : ""}.`;

function drawClasses(entry: Entry, traffic: Traffic, width: number, point: (link: number | null) => void): Drawn {
  const rows: Row[] = classes(entry);
  const height = rows.length * PITCH + 34;
  const layers = layersOf(rows, entry.links!, traffic, width - 2 * LEFT);
  return { width, height, content: contentOf(entry, `${width} ${traffic.duration}`)(point), layers };
}

/** What does not change from step to step; the same elements are drawn once. */
const contentOf = remembered((entry: Entry, measures: string) => {
  const [width, duration] = measures.split(" ").map(Number);
  let made: { point: unknown; content: JSX.Element } | null = null;
  return (point: (link: number | null) => void): JSX.Element => {
    if (made?.point !== point) made = { point, content: strips(entry, duration, width, point) };
    return made.content;
  };
});

function strips(entry: Entry, duration: number, width: number, point: (link: number | null) => void): JSX.Element {
  const links = entry.links!;
  const rows: Row[] = classes(entry);
  const hosts = hostsShown(entry.topology!, entry.schedule.ranks);
  const wide = width - 2 * LEFT;
  const word = wordOf(entry);
  const each = wide / hosts.length;
  const height = rows.length * PITCH + 34;
  const linkAt = (row: Row, x: number): number | null => {
    const part = (x - LEFT) / wide;
    let best: number | null = null;
    row.at.forEach((from, i) => {
      if (part >= from && part < from + row.wide) best = row.links[i];
    });
    return best;
  };
  const labelled = Math.ceil(52 / each);
  return (
    <>
      {hosts.map((host, i) => (
        <g key={host} class="hot" {...lights({ ranks: ranksOf(entry, host) }, () => open(entry, host))}>
          <title>{`open ${word} ${host}`}</title>
          <rect
            class={each < NARROW ? "host-column bare" : "host-column"}
            x={LEFT + i * each}
            y={0}
            width={each}
            height={height - 4}
          />
          {i % labelled === 0 && (each > 52 || i * each < wide - 52) && (
            <text
              class="axis"
              x={LEFT + (i + (each > 52 ? 0.5 : 0)) * each + (each > 52 ? 0 : 2)}
              y={height - 12}
              text-anchor={each > 52 ? "middle" : "start"}
            >
              {`${word} ${host}`}
            </text>
          )}
        </g>
      ))}
      {rows.map((row, i) => {
        const top = i * PITCH;
        const says = sayings(entry, duration)[i];
        return (
          <g key={row.name} class="link-class" data-class={row.name}>
            <title>{says}</title>
            <text class="label" x={LEFT} y={top + 14}>
              {fitting(says, wide)}
            </text>
            <rect class="strip" x={LEFT} y={top + HEAD} width={wide} height={STRIP} />
            <rect
              class="over"
              x={LEFT}
              y={top + HEAD - 2}
              width={wide}
              height={STRIP + 6}
              fill="transparent"
              onPointerMove={(event) => {
                const svg = (event.currentTarget as SVGElement).ownerSVGElement!.getBoundingClientRect();
                const link = linkAt(row, event.clientX - svg.left);
                point(link);
                hovered.value = link === null ? null : { link: links[link].name };
                event.stopPropagation();
              }}
              onPointerLeave={() => {
                point(null);
                hovered.value = null;
              }}
              onClick={(event) => {
                const svg = (event.currentTarget as SVGElement).ownerSVGElement!.getBoundingClientRect();
                const link = linkAt(row, event.clientX - svg.left);
                if (link === null) return;
                const owner = row.owners[row.links.indexOf(link)];
                if (owner >= 0) open(entry, hosts[owner]);
                else togglePin({ link: links[link].name });
              }}
            />
          </g>
        );
      })}
    </>
  );
}

/** `64 × ports of ranks, out: 2 MiB each; in use 48 % each`. */
const sayings = remembered((entry: Entry, duration: number) =>
  classes(entry).map((row) => {
    const own = row.links.map((link) => entry.links![link]);
    const busy = spreadOf(own.map((link) => use(link, duration)));
    const used = duration > 0 ? `; in use ${spreadInWords(busy, percent)}` : "";
    return `${row.links.length} × ${row.name}: ${spreadInWords(spreadOf(own.map((link) => link.bytes)), bytes)}${used}`;
  }),
);

const LETTER = 7.4; // pixels of the mean letter
const fitting = (says: string, wide: number): string =>
  says.length * LETTER <= wide ? says : `${says.slice(0, Math.floor(wide / LETTER) - 1)}…`;

const ranksOf = (entry: Entry, host: number): number[] =>
  entry.topology!.host.slice(0, entry.schedule.ranks).flatMap((one, rank) => (one === host ? [rank] : []));

/** A bar per link: what is still to come is pale; a dash below it says that this step uses it. */
function layersOf(rows: Row[], links: LinkJson[], { sofar, now, duration, lit }: Traffic, wide: number): Layer[] {
  const colours = Array.from({ length: SHADES + 1 }, (_, shade) => heat(shade / SHADES));
  return rows.flatMap((row, i) => {
    const bottom = i * PITCH + HEAD + STRIP;
    const most = Math.max(...row.links.map((link) => links[link].bytes)) || 1;
    const cell = row.wide * wide;
    const width = clamp(cell - (cell > 3 ? 1 : 0), 0.8, 40);
    const layer = (colour: string, opacity: number): Layer => ({ lines: [], colour, width, opacity });
    const [there, coming, unlit] = [1, 0.25, 0.1].map((opacity) => colours.map((colour) => layer(colour, opacity)));
    const frame = { ...layer("--accent", 1), width: 3 };
    const used = { ...layer("--warm", 1), width: 2 };
    row.links.forEach((number, k) => {
      const link = links[number];
      const x = LEFT + row.at[k] * wide + cell / 2;
      const high = (value: number): number => bottom - Math.max(1.5, (STRIP * value) / most);
      const shade = Math.round(use(link, duration) * SHADES);
      if (lit && !lit.has(link.name)) {
        if (link.bytes > 0) unlit[shade].lines.push(x, bottom, x, high(link.bytes));
        return;
      }
      if (lit) frame.lines.push(x - width / 2, bottom - STRIP, x + width / 2, bottom - STRIP);
      if (sofar[number] < link.bytes) coming[shade].lines.push(x, bottom, x, high(link.bytes));
      if (sofar[number] > 0) there[shade].lines.push(x, bottom, x, high(sofar[number]));
      if (now.has(number)) used.lines.push(x - width / 2, bottom + 3, x + width / 2, bottom + 3);
    });
    return [...unlit, ...coming, ...there, used, frame].filter((one) => one.lines.length);
  });
}

const LISTED = 24;

/** One host: its drawing, and its links one by one. */
function OneHost(props: { entry: Entry; host: number; traffic: Traffic; draw: DrawsHost }): JSX.Element {
  const { entry, host, traffic } = props;
  const links = entry.links!;
  const alone = hostAlone(entry.topology!, links, entry.schedule.ranks, host);
  const own = linksOfHost(entry.topology!, links, host).sort((a, b) => links[b].seconds - links[a].seconds || a - b);
  const drawn = alone.links.length > 0 && props.draw(alone, 400) !== null;
  return (
    <>
      {drawn && (
        <Picture
          name="bytes"
          label={`Where the bytes go in host ${host}`}
          draw={(width) => props.draw(alone, width)!}
        />
      )}
      <table class="busiest">
        <caption>
          The links of {wordOf(entry)} {host}
          {alone.ranks.length > 1 && `, ranks ${alone.ranks[0]} to ${alone.ranks[alone.ranks.length - 1]}`}
          {own.length > LISTED ? `; ${own.length - LISTED} more are less busy` : ""}
        </caption>
        <tbody>
          {own.slice(0, LISTED).map((number) => {
            const link = links[number];
            return (
              <tr key={link.name} {...glows({ link: link.name })}>
                <th scope="row">{link.name}</th>
                <td class="number">{carriedSoFar(link, traffic.sofar[number])}</td>
                <td class="number">{seconds(link.seconds)}</td>
                {traffic.duration > 0 && <td class="number">{percent(use(link, traffic.duration))}</td>}
              </tr>
            );
          })}
        </tbody>
      </table>
    </>
  );
}
