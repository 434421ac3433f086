/** View 3, where the bytes go: the topology with links as wide as their traffic; a matrix of ranks if it is large. */

import type { JSX } from "preact";
import type { Entry, LinkJson } from "../document";
import { Key, lights, Picture, Scale, Twin, type Drawn } from "../picture";
import { colourOf, fullness, heat } from "../palette";
import type { Replay } from "../replay";
import { replayOf, routesOf } from "../source";
import { bytes, percent, seconds } from "../words";
import { cutSentence, Follow, followedCut, followedTree, TreePicture } from "./follow";
import { drawMatrix, hostsOf } from "./matrix";
import { placed, placesOf } from "./places";

const DRAWN = 16; // with more ranks than this, a matrix says more than a drawing,
const DRAWN_WIRED = 64; // unless they are wired to each other, which a matrix does not show
const UNUSED = 40; // more links than this that carry nothing would only be in the way
const LISTED = 8;

export function Bytes(props: { entry: Entry; step: number }): JSX.Element {
  const { entry, step } = props;
  const replay = replayOf(entry);
  const links = entry.links ?? [];
  const duration = entry.timeline?.duration ?? entry.modelled?.seconds ?? 0;
  const groups = alikeOf(links);
  const lines = [
    ...(entry.proof.ok ? [] : ["This schedule is wrong."]),
    ...(entry.bottleneck ? [entry.bottleneck.sentence] : []),
    ...groups
      .slice(0, LISTED)
      .map((alike) => `${namesOf(alike)} carries ${bytes(alike[0].bytes)}${inUse(alike[0], duration)}.`),
  ];
  const asMatrix = replay.ranks > (isWired(links) ? DRAWN_WIRED : DRAWN) || !entry.topology || !links.length;
  const cut = followedCut(entry);
  if (cut) lines.unshift(cutSentence(entry, cut));
  return (
    <>
      <Follow entry={entry} cut />
      {!entry.proof.ok && (
        <p class="bottleneck">This schedule is wrong. What it sends is drawn; how long it would take is not.</p>
      )}
      {cut ? (
        <p class="bottleneck cut">{cutSentence(entry, cut)}</p>
      ) : (
        entry.bottleneck && !followedTree(entry) && <p class="bottleneck">{entry.bottleneck.sentence}</p>
      )}
      <Picture
        name="bytes"
        least={asMatrix ? 0 : 26 * replay.ranks}
        label={`Where the bytes go. ${lines[0] ?? "Bytes between pairs of ranks."}`}
        draw={(width) =>
          (asMatrix ? null : drawTopology(entry, replay, step, duration, width)) ??
          drawMatrix(entry, replay, step, width)
        }
      />
      <TreePicture entry={entry} step={step} />
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
      {groups.length > 0 && <Busiest groups={groups} duration={duration} />}
      <Twin lines={lines} />
    </>
  );
}

/** Whether the network is cables between ranks: then its drawing says more than who sends to whom. */
const isWired = (links: LinkJson[]): boolean =>
  placed(links, "dimension").length > 0 || placed(links, "from").length > 0;

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
  const lit = litLinks(entry);
  const cut = followedCut(entry) !== null;
  const halo = new Set(followedCut(entry)?.ranks ?? [followedTree(entry)?.root ?? -1]);
  const narrowest = lit ? undefined : entry.bottleneck?.link;
  // Those that are just as busy are outlined just so.
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
            <title>{`${link.name}: ${bytes(link.bytes)}, busy ${seconds(link.seconds)} (${percent(use(link, duration))})`}</title>
            <path class="reach" d={shape.path} />
            <path
              class={link.bytes ? "link" : "link unused"}
              d={shape.path}
              stroke={heat(use(link, duration))}
              stroke-width={broad(link)}
            />
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
          <text class="inside" x={one.x} y={one.y} font-size={Math.max(8, one.r * 0.95)}>
            {one.rank}
          </text>
        </g>
      ))}
    </>
  );
  return { width, height: drawing.height, content };
}

/** The names of the links of the followed cut or tree; null if nothing is followed. */
function litLinks(entry: Entry): Set<string> | null {
  const cut = followedCut(entry);
  if (cut) return new Set(cut.links);
  const tree = followedTree(entry);
  if (!tree) return null;
  const routes = routesOf(entry);
  return new Set(
    tree.branches.flatMap((one) => routes?.(one.source, one.destination) ?? []).map((link) => entry.links![link].name),
  );
}

/** The links that the moves of a step take. */
function linksOf(entry: Entry, replay: Replay, step: number): Set<number> {
  const routes = routesOf(entry);
  return new Set(replay.moves(step - 1).flatMap((move) => routes?.(move.source, move.destination) ?? []));
}

/** Links that carry something, the busiest first; those of a kind that are equally busy together. */
function alikeOf(links: LinkJson[]): LinkJson[][] {
  const groups = new Map<string, LinkJson[]>();
  for (const link of links) {
    if (!link.bytes) continue;
    const key = `${link.kind} ${link.bytes.toPrecision(9)} ${link.seconds.toPrecision(9)}`;
    groups.set(key, [...(groups.get(key) ?? []), link]);
  }
  return [...groups.values()].sort((a, b) => b[0].seconds - a[0].seconds);
}

/** `rank 0 out and 7 like it`. */
const namesOf = (alike: LinkJson[]): string =>
  alike.length > 1 ? `${alike[0].name} and ${alike.length - 1} like it` : alike[0].name;

const inUse = (link: LinkJson, duration: number): string =>
  duration > 0 ? `, in use for ${percent(use(link, duration))} of the time` : "";

function Busiest(props: { groups: LinkJson[][]; duration: number }): JSX.Element {
  const { groups, duration } = props;
  const shown = groups.slice(0, LISTED);
  const left = groups.slice(LISTED).flat().length;
  const most = Math.max(...shown.map(([link]) => link.seconds), 1e-30);
  return (
    <table class="busiest">
      <caption>The links that are busy longest{left ? `; ${left} more are less busy` : ""}</caption>
      <tbody>
        {shown.map((alike) => {
          const [link] = alike;
          const isLimit = duration > 0 && link.seconds >= most * (1 - 1e-9);
          return (
            <tr
              key={link.name}
              class={isLimit ? "is" : ""}
              {...lights(alike.length === 1 ? { link: link.name } : { links: alike.map((one) => one.name) })}
            >
              <th scope="row">{namesOf(alike)}</th>
              <td>
                <i
                  style={{
                    width: `${(100 * link.seconds) / most}%`,
                    background: heat(duration > 0 ? use(link, duration) : 0.5),
                  }}
                />
              </td>
              <td class="number">{alike.length > 1 ? `${bytes(link.bytes)} each` : bytes(link.bytes)}</td>
              <td class="number">{seconds(link.seconds)}</td>
              {duration > 0 && <td class="number">{percent(use(link, duration))}</td>}
            </tr>
          );
        })}
      </tbody>
    </table>
  );
}
