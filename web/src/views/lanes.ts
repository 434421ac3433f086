/** Space and time as lines: a lane per rank, a sloped line per message from its sending to its arrival. Pure. */

import type { Layer } from "../layers";
import { clamp, sum } from "../numbers";
import { seconds } from "../words";
import type { Happening, Interval, Transfer } from "./transfers";
import type { Window } from "./window";

export interface Frame {
  left: number;
  right: number;
  top: number;
  bottom: number;
  /** Pixels per rank, and how much of them the lane itself takes. */
  pitch: number;
  band: number;
  shown: Window;
  x: (time: number) => number;
  y: (rank: number) => number;
  timeAt: (x: number) => number;
  /** The rank at a height, with the part of its lane: 2.5 is the middle of the lane of rank 2. */
  rankAt: (y: number) => number;
}

const TOP = 18;

/** As high as the window leaves room for, but not higher than the lanes need. */
export function heightFor(ranks: number, room: number): number {
  return Math.min(ranks * (ranks <= 8 ? 52 : 40), clamp(room - 450, 300, 620));
}

export function frameOf(shown: Window, width: number, high: number): Frame {
  const [left, right] = [width < 560 ? 40 : 76, width - 14];
  const perTime = (right - left) / (shown.to - shown.from || 1);
  const pitch = high / (shown.last - shown.first || 1);
  return {
    left,
    right,
    top: TOP,
    bottom: TOP + high,
    pitch,
    band: clamp(pitch * 0.18, 1, 9),
    shown,
    x: (time) => left + (time - shown.from) * perTime,
    y: (rank) => TOP + (rank + 0.5 - shown.first) * pitch,
    timeAt: (x) => shown.from + (x - left) / perTime,
    rankAt: (y) => shown.first + (y - TOP) / pitch,
  };
}

/** The messages of which a part is in the window. */
export function inWindow(transfers: Transfer[], shown: Window): Transfer[] {
  return transfers.filter((one) => {
    if (one.end < shown.from || one.start > shown.to) return false;
    const [low, high] = one.source < one.destination ? [one.source, one.destination] : [one.destination, one.source];
    return high + 1 > shown.first && low < shown.last;
  });
}

const LANES = 9; // pixels per rank from which lanes, idle times and combining have room
const DASHED = 600; // up to this many lines dashes can be told apart

interface Told {
  /** Steps that are done; the messages of the last one stand out, later ones are faint. */
  done: number;
  /** Whether a message carries what is followed or pointed at; all do if nothing is. */
  lit: (one: Transfer) => boolean;
}

/** The lanes first, then messages: faint ones below, those of this step and the critical path on top. */
export function layersOf(what: Happening, visible: Transfer[], frame: Frame, ranks: number, told: Told): Layer[] {
  const { shown, pitch, band } = frame;
  const layers: Layer[] = [];
  const bars = (intervals: Interval[]): number[] =>
    intervals.flatMap(({ rank, start, end }) =>
      end < shown.from || start > shown.to || rank + 1 < shown.first || rank > shown.last
        ? []
        : [frame.x(Math.max(start, shown.from)), frame.y(rank), frame.x(Math.min(end, shown.to)), frame.y(rank)],
    );
  if (pitch >= 4) {
    const lanes = Array.from({ length: ranks }, (_, rank) => ({ rank, start: 0, end: what.duration }));
    layers.push({ lines: bars(lanes), colour: "--lane", width: pitch >= LANES ? band : 1, opacity: 1 });
  }
  if (pitch >= LANES) {
    layers.push({ lines: bars(what.idle), colour: "--surface", width: band - 1.5, opacity: 1 });
    const combining = visible.filter((one) => one.end > one.landed);
    const spans = combining.map(({ destination, landed, end, step }) => ({
      rank: destination,
      start: landed,
      end,
      step,
    }));
    for (const coming of [true, false]) {
      const isThen = ({ step }: { step: number }): boolean => (told.done > 0 && step >= told.done) === coming;
      const opacity = coming ? 0.3 : 0.9;
      layers.push({ lines: bars(spans.filter(isThen)), colour: "--reduce", width: band, opacity });
      for (const reduces of [true, false]) {
        const work = what.work.filter((one) => one.reduces === reduces && isThen(one));
        layers.push({ lines: bars(work), colour: reduces ? "--reduce" : "--copy", width: band * 1.6, opacity });
      }
    }
  }
  return [...layers, ...messages(visible, frame, told)];
}

function messages(visible: Transfer[], frame: Frame, { done, lit }: Told): Layer[] {
  const groups = new Map<string, Layer & { order: number }>();
  // The more lines share a pixel, the fainter each is, so that the picture shows how dense they are.
  const crowded = (2 * visible.length * frame.pitch) / ((frame.right - frame.left) * (frame.bottom - frame.top));
  const plain = clamp(0.9 - crowded * 4, 0.3, 0.9);
  for (const one of visible) {
    if (one.source === one.destination) continue;
    const when = done === 0 ? "plain" : one.step === done - 1 ? "now" : one.step < done ? "past" : "future";
    const shines = lit(one);
    const key = `${one.reduces} ${when} ${one.critical} ${shines}`;
    let group = groups.get(key);
    if (!group) {
      const opacity = !shines ? 0.08 : when === "future" ? 0.3 * plain : when === "now" ? 1 : plain;
      const strong = shines && when === "now" && frame.pitch >= 6 ? 0.8 : 0;
      group = {
        lines: [],
        colour: one.critical ? "--warm" : one.reduces ? "--reduce" : "--copy",
        width: clamp(frame.pitch * 0.12, 0.7, 1.6) + strong + (one.critical && shines ? 0.9 : 0),
        opacity: one.critical && shines ? Math.max(0.5, opacity) : opacity,
        dashes: one.reduces || visible.length > DASHED ? undefined : [5, 3],
        order: Number(shines) * 4 + Number(one.critical) * 2 + Number(when === "now"),
      };
      groups.set(key, group);
    }
    const [ax, ay, bx, by] = endsOf(one, frame);
    const cut = cutTo(frame, ax, ay, bx, by);
    if (cut) group.lines.push(...cut);
  }
  return [...groups.values()].sort((a, b) => a.order - b.order);
}

const endsOf = (one: Transfer, frame: Frame): [number, number, number, number] => [
  frame.x(one.start),
  frame.y(one.source),
  frame.x(one.arrived),
  frame.y(one.destination),
];

/** The part of a line that lies within the frame (after Liang and Barsky). */
export function cutTo(frame: Frame, ax: number, ay: number, bx: number, by: number): number[] | null {
  const [dx, dy] = [bx - ax, by - ay];
  let [from, to] = [0, 1];
  const sides = [
    [-dx, ax - frame.left],
    [dx, frame.right - ax],
    [-dy, ay - frame.top],
    [dy, frame.bottom - ay],
  ];
  for (const [outwards, room] of sides) {
    if (outwards === 0 && room < 0) return null;
    if (outwards < 0) from = Math.max(from, room / outwards);
    if (outwards > 0) to = Math.min(to, room / outwards);
  }
  return from < to ? [ax + from * dx, ay + from * dy, ax + to * dx, ay + to * dy] : null;
}

/** The band of a message: the slope is the latency, the width the time that its bytes take. */
export function bandOf(one: Transfer, frame: Frame): string {
  const at = (time: number, rank: number): string => `${frame.x(time).toFixed(1)} ${frame.y(rank).toFixed(1)}`;
  const { start, sent, first, arrived, source, destination } = one;
  return `M${at(start, source)}L${at(sent, source)}L${at(arrived, destination)}L${at(first, destination)}z`;
}

/** The message whose line is nearest to a point, if it is within `reach` pixels. */
export function nearest(visible: Transfer[], frame: Frame, x: number, y: number, reach: number): Transfer | null {
  let [best, least] = [null as Transfer | null, reach];
  for (const one of visible) {
    if (one.source === one.destination) continue;
    const [ax, ay, bx, by] = endsOf(one, frame);
    const [dx, dy] = [bx - ax, by - ay];
    const along = clamp(((x - ax) * dx + (y - ay) * dy) / (dx * dx + dy * dy || 1), 0, 1);
    const far = Math.hypot(x - ax - along * dx, y - ay - along * dy);
    if (far < least) [best, least] = [one, far];
  }
  return best;
}

/** `step 3: rank 1 sends chunk 2 to rank 2, where it is added; sent from 3 µs to 5 µs, there at 6 µs`. */
export function saying(one: Transfer, what: Happening): string {
  if (what.clock === "measured") {
    const work = one.reduces ? "adds" : "copies";
    return `Step ${one.step + 1}: rank ${one.destination} ${work} from the memory of rank ${one.source}, for ${seconds(one.end - one.start)}.`;
  }
  const carries = one.moves === 1 ? `chunk ${one.chunk}` : `chunk ${one.chunk} and ${one.moves - 1} more`;
  const added = one.reduces ? ", where it is added" : "";
  const when =
    what.clock === "steps"
      ? ""
      : ` It starts at ${seconds(one.start)}, arrives at ${seconds(one.arrived)}${one.end > one.landed ? ` and is added at ${seconds(one.end)}` : ""}.`;
  const limits = one.critical ? " It is on the critical path." : "";
  return `Step ${one.step + 1}: rank ${one.source} sends ${carries} to rank ${one.destination}${added}.${when}${limits}`;
}

/** The share of the time of all ranks in which they are idle. */
export function idleShare(what: Happening, ranks: number): number {
  return sum(what.idle.map((one) => one.end - one.start)) / (what.duration * ranks || 1);
}
