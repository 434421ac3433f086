/** Where the bytes go: the topology with links as wide as their traffic; a matrix of ranks if it is large. */

import type { JSX } from "preact";
import { signal } from "@preact/signals";
import type { Entry, LinkJson } from "../document";
import { Key, lights, Picture, Scale, Twin, type Drawn } from "../picture";
import { colourOf, fullness, heat, inkOn } from "../palette";
import { remembered } from "../remembered";
import type { Replay } from "../replay";
import { replayOf, routesOf } from "../source";
import { go, state } from "../state";
import { bytes, percent, seconds } from "../words";
import { alikeOf, Busiest, carriedSoFar, inUse, LISTED, namesOf, use } from "./busiest";
import { numberedAs, type Alone } from "./classes";
import { placed, type Drawing } from "./drawing";
import { cutSentence, Follow, followedChunks, followedCut, followedTree, TreePicture } from "./follow";
import { drawMatrix, hostsOf } from "./matrix";
import { Network, openedHost } from "./network";
import { placesOf } from "./places";
import type { View } from "./view";

export const view: View = {
  name: "bytes",
  title: "Where the bytes go",
  summary: "the topology, and what crosses each of its links",
  key: "3",
  draw: Bytes,
  needs: ["schedule", "topology", "links", "pairs", "bottleneck", "cut"],
  plays: "steps",
  keys: [
    {
      key: "c",
      says: "the limiting cut in the network",
      press: (entry) => entry.cut && go({ view: "bytes", follow: "cut" }),
    },
  ],
};

const DRAWN = 16; // with more ranks than this, links are shown by class,
const DRAWN_WIRED = 64; // unless ranks are wired to each other, which classes do not show
/** How a large network is shown: by class of link, or as the pairs of ranks that send. */
const shownAs = signal<"classes" | "pairs">("classes");
const UNUSED = 40; // more links than this that carry nothing would only be in the way

function Bytes(props: { entry: Entry; step: number }): JSX.Element {
  const { entry, step } = props;
  const replay = replayOf(entry);
  const links = entry.links ?? [];
  const part = carriesData(entry) ? state.value.size / replay.schedule.chunks : 0;
  const duration = entry.timeline?.duration ?? entry.modelled?.seconds ?? 0;
  const groups = groupsOf(entry);
  const sofar = sofarOf(entry, step);
  const [sent, inAll] = [sentOf(replay)[step], sentOf(replay)[replay.steps]];
  const growing = `${step ? `After step ${step}: ` : "In total, "}${bytes((step ? sent : inAll) * part)}${step ? ` of ${bytes(inAll * part)} sent` : " is sent between ranks"}.`;
  const lines = [
    ...(entry.proof.ok ? [] : ["This schedule is wrong."]),
    growing,
    ...(entry.bottleneck ? [entry.bottleneck.sentence] : []),
    ...groups
      .slice(0, LISTED)
      .map((alike) => `${namesOf(alike)} carries ${bytes(alike[0].bytes)}${inUse(alike[0], duration)}.`),
  ];
  const known = Boolean(entry.topology) && links.length > 0;
  const isLarge = known && replay.ranks > (isWired(links) ? DRAWN_WIRED : DRAWN);
  const byClass = isLarge && shownAs.value === "classes";
  const asMatrix = !known || (isLarge && !byClass);
  const cut = followedCut(entry);
  if (cut) lines.unshift(cutSentence(entry, cut));
  return (
    <>
      <Follow entry={entry} cut />
      {!entry.proof.ok && (
        <p class="bottleneck">
          This schedule is wrong. The picture shows what it sends, but not how long that would take.
        </p>
      )}
      {cut ? (
        <p class="bottleneck cut">{cutSentence(entry, cut)}</p>
      ) : (
        entry.bottleneck && !followedTree(entry) && <p class="bottleneck">{entry.bottleneck.sentence}</p>
      )}
      <p class="growing">{growing}</p>
      {isLarge && <ShownAs />}
      {byClass ? (
        <Network
          entry={entry}
          traffic={{ sofar, now: linksOf(entry, replay, step), duration, lit: litLinks(entry) }}
          draw={(alone, width) => drawTopology(entry, replay, step, duration, width, alone)}
        />
      ) : (
        <Picture
          name="bytes"
          least={asMatrix ? 0 : 26 * replay.ranks}
          label={`Where the bytes go. ${lines[0] ?? "Bytes between pairs of ranks."}`}
          draw={(width) =>
            (asMatrix ? null : drawTopology(entry, replay, step, duration, width)) ??
            drawMatrix(entry, replay, step, width)
          }
        />
      )}
      <TreePicture entry={entry} step={step} />
      <p class="legend">
        {asMatrix ? (
          <>
            <Scale
              from={step ? "no bytes so far" : "no bytes"}
              to="the most in the end"
              colours={[fullness(0.12), fullness(1)]}
            />
            {hostsOf(entry, replay).length > 1 && <Key sign="swatch host">pairs within a host</Key>}
            {step > 0 && <Key sign="swatch fresh">used in this step</Key>}
          </>
        ) : byClass && openedHost(entry) === null ? (
          <>
            <Key sign="wedge">height: bytes{step ? " so far" : ""}, per class</Key>
            {step > 0 && <Key sign="swatch coming">still to come</Key>}
            {duration > 0 && <Scale from="idle" to="in use all the time" colours={[0, 0.33, 0.66, 1].map(heat)} />}
            {step > 0 && <Key sign="line flowing">used in this step</Key>}
            {litLinks(entry) && (
              <Key sign="line crossing">{cut ? "links of the cut" : "links of what is followed"}</Key>
            )}
          </>
        ) : (
          <>
            <Key sign="wedge">width: bytes{step ? " so far" : ""}</Key>
            {step > 0 && <Key sign="swatch coming">still to come</Key>}
            {duration > 0 && <Scale from="idle" to="in use all the time" colours={[0, 0.33, 0.66, 1].map(heat)} />}
            {cut ? (
              <>
                <Key sign="line crossing">links of the cut</Key>
                <Key sign="ring">ranks that {cut.receives ? "receive" : "send"} through them</Key>
              </>
            ) : (
              duration > 0 && !followedTree(entry) && <Key sign="swatch outlined">bottleneck</Key>
            )}
            <Key sign="line flowing">used in this step</Key>
          </>
        )}
      </p>
      {!entry.topology && <p class="note">No topology was given, so no links are known.</p>}
      {groups.length > 0 && (
        <Busiest groups={groups} duration={duration} sofar={new Map(links.map((link, i) => [link.name, sofar[i]]))} />
      )}
      <Twin lines={lines} />
    </>
  );
}

const groupsOf = remembered((entry: Entry) => alikeOf(entry.links ?? []));

/** Moves between ranks so far, after every step. */
const sentOf = remembered((replay: Replay): number[] => {
  const sent = [0];
  for (const rows of replay.schedule.steps)
    sent.push(sent[sent.length - 1] + rows.filter(([, , source, destination]) => source !== destination).length);
  return sent;
});

/** Whether the network is cables between ranks: then its drawing says more than who sends to whom. */
const isWired = (links: LinkJson[]): boolean =>
  placed(links, "dimension").length > 0 || placed(links, "from").length > 0;

function ShownAs(): JSX.Element {
  return (
    <div class="clocks" role="radiogroup" aria-label="Shown as">
      {(["classes", "pairs"] as const).map((one) => (
        <button
          key={one}
          type="button"
          role="radio"
          aria-checked={shownAs.value === one}
          onClick={() => (shownAs.value = one)}
        >
          {one === "classes" ? "network by class" : "pairs of ranks"}
        </button>
      ))}
    </div>
  );
}

/** The whole network, or one host of it alone. */
function drawTopology(
  entry: Entry,
  replay: Replay,
  step: number,
  duration: number,
  width: number,
  alone?: Alone,
): Drawn | null {
  const links = entry.links!;
  const drawing: Drawing | null = alone
    ? numberedAs(alone, placesOf(alone.topology, alone.links, alone.ranks.length, width))
    : placesOf(entry.topology!, links, replay.ranks, width);
  if (!drawing) return null;
  const most = Math.max(...(alone?.links ?? links).map((link) => link.bytes)) || 1;
  const now = linksOf(entry, replay, step);
  const sofar = sofarOf(entry, step);
  const wide = (bytes: number): number => (bytes ? 1.4 + (drawing.widest - 1.4) * (bytes / most) : 1);
  const broad = (link: LinkJson): number => wide(link.bytes);
  // Thin lines over thick ones, the bottleneck on top.
  const unused = drawing.shapes.filter((shape) => !links[shape.link].bytes).length;
  const order = drawing.shapes
    .filter((shape) => links[shape.link].bytes || unused <= UNUSED)
    .sort((a, b) => links[b.link].bytes - links[a.link].bytes);
  const lit = litLinks(entry);
  const cut = followedCut(entry) !== null;
  const halo = new Set(followedCut(entry)?.ranks ?? [followedTree(entry)?.root ?? -1]);
  const narrowest = lit ? undefined : entry.bottleneck?.link;
  // Those that are just as busy are outlined just so; where that is more than a third of all, an outline says nothing.
  const limit = limitOf(links, narrowest);
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
            stroke-width={broad(links[shape.link]) + 4}
          />
        ))}
      {order.map((shape) => {
        const link = links[shape.link];
        return (
          <g
            key={shape.link}
            class={lit?.has(link.name) === false ? "hot unlit" : "hot"}
            {...lights({ link: link.name, ranks: shape.ranks })}
          >
            <title>{`${link.name}: ${carriedSoFar(link, sofar[shape.link])}, busy ${seconds(link.seconds)} (${percent(use(link, duration))})`}</title>
            <path class="reach" d={shape.path} />
            {sofar[shape.link] < link.bytes && <path class="link coming" d={shape.path} stroke-width={broad(link)} />}
            {(sofar[shape.link] > 0 || !link.bytes) && (
              <path
                class={link.bytes ? "link" : "link unused"}
                d={shape.path}
                stroke={heat(use(link, duration))}
                stroke-width={wide(sofar[shape.link])}
              />
            )}
            {lit?.has(link.name) && (
              <path class={cut ? "lit" : "lit tree"} d={shape.path} stroke-width={Math.max(3, broad(link))} />
            )}
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
          {halo.has(one.rank) && <circle class={cut ? "halo" : "halo tree"} cx={one.x} cy={one.y} r={one.r + 5} />}
          <circle class="rank" cx={one.x} cy={one.y} r={one.r} fill={colourOf(one.rank, replay.ranks)} />
          <text
            class="inside"
            style={{ fill: inkOn(colourOf(one.rank, replay.ranks)) }}
            x={one.x}
            y={one.y}
            font-size={Math.max(8, one.r * 0.95)}
          >
            {one.rank}
          </text>
        </g>
      ))}
    </>
  );
  return { width, height: drawing.height, content };
}

/** The seconds from which a link is outlined as the bottleneck. */
function limitOf(links: LinkJson[], narrowest: string | undefined): number {
  const limit = links.find((link) => link.name === narrowest)?.seconds || Infinity;
  const used = links.filter((link) => link.bytes);
  const alike = used.filter((link) => link.seconds >= limit * (1 - 1e-9));
  return alike.length > Math.max(4, used.length / 3) ? Infinity : limit;
}

/** The names of the links of the followed cut or chunks; null if nothing is followed. */
function litLinks(entry: Entry): Set<string> | null {
  const cut = followedCut(entry);
  if (cut) return new Set(cut.links);
  const chunks = followedChunks(entry);
  if (!chunks) return null;
  const [routes, followed] = [routesOf(entry), new Set(chunks)];
  const pairs = new Map<string, [number, number]>();
  for (const rows of entry.schedule.steps)
    for (const [, chunk, source, destination] of rows)
      if (followed.has(chunk)) pairs.set(`${source} ${destination}`, [source, destination]);
  return new Set([...pairs.values()].flatMap((pair) => routes?.(...pair) ?? []).map((link) => entry.links![link].name));
}

/** The bytes that links have carried after some steps: playing goes on from there. */
const carriedOf = remembered((entry: Entry) => ({ done: 0, moves: entry.links!.map(() => 0) }));

function carriedAfter(entry: Entry, step: number): number[] {
  const routes = routesOf(entry);
  const carried = carriedOf(entry);
  if (carried.done > step) {
    carried.moves.fill(0);
    carried.done = 0;
  }
  for (; carried.done < step; carried.done++)
    for (const [, , source, destination] of entry.schedule.steps[carried.done])
      for (const link of routes?.(source, destination) ?? []) carried.moves[link]++;
  const size = carriesData(entry) ? state.value.size / entry.schedule.chunks : 0;
  return carried.moves.map((moves) => moves * size);
}

const carriesData = (entry: Entry): boolean => entry.promise.carries_data;

/** What the links have carried so far; at the start, and where routes are unknown, what they carry in all. */
function sofarOf(entry: Entry, step: number): number[] {
  return step > 0 && routesOf(entry) ? carriedAfter(entry, step) : (entry.links ?? []).map((link) => link.bytes);
}

/** The links that the moves of a step take. */
function linksOf(entry: Entry, replay: Replay, step: number): Set<number> {
  const routes = routesOf(entry);
  const used = new Set<number>();
  for (const [, , source, destination] of replay.schedule.steps[step - 1] ?? [])
    for (const link of routes?.(source, destination) ?? []) used.add(link);
  return used;
}
