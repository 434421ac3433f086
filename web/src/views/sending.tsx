/** Who sends to whom: the ranks in the shape of the algorithm, and the moves of the step between them. */

import type { JSX } from "preact";
import type { ReadonlySignal } from "@preact/signals";
import type { Entry } from "../document";
import { tenth } from "../numbers";
import { colourOf, inkOn } from "../palette";
import { glows, lights, Picture, type Drawn } from "../picture";
import { fraction } from "../player";
import { remembered } from "../remembered";
import type { Move, Replay } from "../replay";
import { replayOf } from "../source";
import { point, type Point } from "../svg";
import { plural, sentence } from "../words";
import { followedChunks } from "./follow";
import { bowOf, MOST_DRAWN, nameAt, neighboursOf, pairsOf, shapeOf } from "./shape";
import { flightAt } from "./travel";

const MOST_PAIRS = 300; // more lines than this only blacken the picture
const pairsOfReplay = remembered((replay: Replay) => pairsOf(neighboursOf(replay)));

export function Sending(props: {
  entry: Entry;
  step: number;
  moving?: boolean;
  /** How far the step is; the player's, if the picture has no clock of its own. */
  clock?: ReadonlySignal<number>;
}): JSX.Element | null {
  const replay = replayOf(props.entry);
  if (replay.ranks < 2 || replay.ranks > MOST_DRAWN) return null;
  return (
    <Picture
      name="shape"
      caption="Who sends to whom"
      label={`Who sends to whom, between ${plural(replay.ranks, "rank")}`}
      draw={(width) => draw(props.entry, replay, props.step, props.moving ? (props.clock ?? fraction) : null, width)}
    />
  );
}

function draw(entry: Entry, replay: Replay, step: number, clock: ReadonlySignal<number> | null, width: number): Drawn {
  const host = entry.topology?.host.slice(0, replay.ranks);
  const { kind, spots, radius, height, boxes } = shapeOf(replay, width, host);
  const pairs = pairsOfReplay(replay);
  const chunks = followedChunks(entry);
  const followed = chunks && new Set(chunks);
  const trail = followed ? trailOf(replay, followed, step) : [];
  const content = (
    <>
      {boxes.map((box) => (
        <g key={box.host}>
          <rect class="place host" x={box.x} y={box.y} width={box.width} height={box.height} rx={10}>
            <title>{`host ${box.host}`}</title>
          </rect>
        </g>
      ))}
      {pairs.length <= MOST_PAIRS &&
        pairs.map(([one, other]) => (
          <path key={`${one} ${other}`} class="acquainted" d={`M${point(spots[one])}L${point(spots[other])}`} />
        ))}
      {trail.map(([source, destination]) => (
        <path key={`t${source} ${destination}`} class="trail" d={arrow(spots, source, destination, radius).path} />
      ))}
      <Arrows replay={replay} step={step} clock={clock} spots={spots} radius={radius} followed={followed} />
      {boxes.length <= 16 &&
        boxes
          .filter((box) => box.width > 56)
          .map((box) => {
            const under = { x: box.x + box.width / 2, y: box.y + box.height - 5, anchor: "middle" as const };
            const at = kind === "hosts" ? under : nameAt(box, spots);
            return (
              <text key={`n${box.host}`} class="axis named" x={at.x} y={at.y} text-anchor={at.anchor}>
                {`host ${box.host}`}
              </text>
            );
          })}
      {spots.map((spot, rank) => (
        <g key={rank} class="hot" {...lights({ ranks: [rank] })}>
          <circle class="rank" cx={tenth(spot.x)} cy={tenth(spot.y)} r={radius} fill={colourOf(rank, replay.ranks)} />
          {radius >= 7 ? (
            <text
              class="inside"
              style={{ fill: inkOn(colourOf(rank, replay.ranks)) }}
              x={tenth(spot.x)}
              y={tenth(spot.y)}
              font-size={Math.max(8, radius * 0.9)}
            >
              {rank}
            </text>
          ) : (
            <title>{`rank ${rank}`}</title>
          )}
        </g>
      ))}
    </>
  );
  return { width, height, content };
}

interface Sent {
  replay: Replay;
  step: number;
  clock: ReadonlySignal<number> | null;
  spots: Point[];
  radius: number;
  followed: Set<number> | null;
}

function Arrows({ replay, step, clock, spots, radius, followed }: Sent): JSX.Element {
  const arrows = new Map<string, Move>();
  for (const move of replay.moves(step - 1)) {
    const key = `${move.source} ${move.destination}`;
    // Of several chunks that go the same way, the arrow is that of the followed one.
    if (move.source === move.destination || (arrows.has(key) && !followed?.has(move.chunk))) continue;
    arrows.set(key, move);
  }
  const drawn = [...arrows].map(([key, move]) => ({
    key,
    move,
    look: `${move.reduces ? "reduce" : "copy"}${followed && !followed.has(move.chunk) ? " unlit" : ""}`,
    ...arrow(spots, move.source, move.destination, radius),
  }));
  return (
    <g>
      {drawn.map(({ key, move, look, path, head }) => (
        <g key={key} {...glows({ chunk: move.chunk, ranks: [move.source, move.destination] })}>
          <title>{sentence(move)}</title>
          <path class={`arc ${look}`} d={path} />
          {!clock && <path class={`head ${look}`} d={head} />}
        </g>
      ))}
      {clock && <Travellers arrows={drawn} clock={clock} />}
    </g>
  );
}

/** A component of its own, since it moves with every frame: one path for each look. */
function Travellers(props: {
  arrows: { look: string; at: (part: number) => Point }[];
  clock: ReadonlySignal<number>;
}): JSX.Element {
  const { way } = flightAt(props.clock.value);
  const looks = new Map<string, string>();
  for (const { look, at } of props.arrows) {
    const { x, y } = at(way);
    looks.set(look, `${looks.get(look) ?? ""}M${point({ x: x - 4, y })}a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z`);
  }
  return (
    <>
      {[...looks].map(([look, path]) => (
        <path key={look} class={`traveller ${look}`} d={path} />
      ))}
    </>
  );
}

/** The ways that chunks have gone so far, from rank to rank. */
function trailOf(replay: Replay, chunks: Set<number>, step: number): [number, number][] {
  const ways = new Map<string, [number, number]>();
  for (const rows of replay.schedule.steps.slice(0, step))
    for (const [, chunk, source, destination] of rows)
      if (chunks.has(chunk) && source !== destination) ways.set(`${source} ${destination}`, [source, destination]);
  return [...ways.values()];
}

/** From the edge of one rank to the edge of another, bent a little, so that both directions can be seen, and around others. */
function arrow(
  spots: Point[],
  source: number,
  destination: number,
  radius: number,
): { path: string; head: string; at: (part: number) => Point } {
  const [from, to] = [spots[source], spots[destination]];
  const [dx, dy] = [to.x - from.x, to.y - from.y];
  const far = Math.hypot(dx, dy) || 1;
  const [ux, uy] = [dx / far, dy / far];
  const bow = bowOf(spots, source, destination, radius);
  const start = { x: from.x + ux * radius, y: from.y + uy * radius };
  const end = { x: to.x - ux * (radius + 2), y: to.y - uy * (radius + 2) };
  const middle = { x: (start.x + end.x) / 2 - uy * bow, y: (start.y + end.y) / 2 + ux * bow };
  const between = (part: number, a: number, b: number, c: number): number =>
    (1 - part) ** 2 * a + 2 * part * (1 - part) * b + part * part * c;
  const [hx, hy] = [end.x - middle.x, end.y - middle.y];
  const long = Math.hypot(hx, hy) || 1;
  const [vx, vy] = [(hx / long) * 7, (hy / long) * 7];
  return {
    path: `M${point(start)}Q${point(middle)} ${point(end)}`,
    head: `M${point(end)}L${point({ x: end.x - vx - vy * 0.55, y: end.y - vy + vx * 0.55 })}L${point({ x: end.x - vx + vy * 0.55, y: end.y - vy - vx * 0.55 })}z`,
    at: (part) => ({ x: between(part, start.x, middle.x, end.x), y: between(part, start.y, middle.y, end.y) }),
  };
}
