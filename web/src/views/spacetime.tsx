/** The space-time drawing, and how it is moved: zoomed, dragged, pointed at, by mouse, touch and keyboard. */

import type { JSX } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { ReadonlySignal, Signal } from "@preact/signals";
import { scaleLinear } from "d3-scale";
import type { Entry } from "../document";
import { clamp, every, tenth } from "../numbers";
import { anchorOf, lights, openStep, Picture, Quiet, type Drawn } from "../picture";
import { fraction, playing } from "../player";
import { remembered } from "../remembered";
import type { Replay } from "../replay";
import { replayOf } from "../source";
import { focus, hovered, state } from "../state";
import { ridesOf } from "../trees";
import { seconds } from "../words";
import { followedTree } from "./follow";
import { useGestures } from "./gestures";
import { bandOf, frameOf, heightFor, inWindow, layersOf, nearest, saying, type Frame } from "./lanes";
import * as selection from "./selection";
import { between, type Happening, type Transfer } from "./transfers";
import { waitInWords, waitsOfEntry } from "./waits";
import {
  centred,
  isWhole,
  limitsOf,
  moved,
  opened,
  reachable,
  reaching,
  spanOf,
  whole,
  zoomed,
  type Limits,
  type Window,
} from "./window";

const ridesOfChunk = remembered((replay: Replay, chunk: number) => ridesOf(replay, [chunk]));

/** Which messages stand out: those of the followed chunks, of the ranks and of the chunk in focus. */
function useLit(entry: Entry, replay: Replay): (one: Transfer) => boolean {
  const tree = followedTree(entry);
  const here = focus.value;
  return useMemo(() => {
    const rides = tree && ridesOf(replay, tree.chunks);
    const { chunk } = here ?? {};
    const carries = chunk !== undefined && chunk >= 0 ? ridesOfChunk(replay, chunk) : null;
    const ranks = here?.ranks?.length ? new Set(here.ranks) : null;
    const nameOf = (one: Transfer): string => `${one.step} ${one.source} ${one.destination}`;
    return (one) =>
      (!rides || rides.has(nameOf(one))) &&
      (!carries || one.chunk < 0 || carries.has(nameOf(one))) &&
      (!ranks || ranks.has(one.source) || ranks.has(one.destination));
  }, [tree, here, replay]);
}

/** One of two pictures on one axis: the part that both show, their clock, and how much earlier it ends. */
interface Band {
  shown: Signal<Window | null | undefined>;
  now: ReadonlySignal<number>;
  span: number;
  ends: string | null;
}

export function SpaceTime(props: {
  entry: Entry;
  what: Happening;
  step: number;
  moving: boolean;
  label: string;
  band?: Band;
}): JSX.Element {
  const { entry, what, step, band } = props;
  const replay = replayOf(entry);
  const [own, setOwn] = useState<Window | null>(null);
  const chosen = band ? (band.shown.value ?? null) : own;
  const setChosen = band ? (shown: Window | null): void => void (band.shown.value = shown) : setOwn;
  const [pointed, setPicked] = useState<Transfer | null>(null);
  /** The message that was clicked: it stays while nothing else is pointed at. */
  const [held, setHeld] = useState<Transfer | null>(null);
  const picked = pointed ?? held;
  /** The part that is measured, and whether a drag selects it. */
  const [part, setPart] = useState<Window | null>(null);
  const [selects, setSelects] = useState(false);
  const waits = waitsOfEntry(entry, what);
  const frame = useRef<Frame | null>(null);
  const visible = useRef<Transfer[]>([]);
  const high = band ? Math.max(120, heightFor(replay.ranks, innerHeight) * 0.6) : heightFor(replay.ranks, innerHeight);
  const limits = limitsOf(band ? band.span : what.duration, replay.ranks, replay.steps, high);
  const lit = useLit(entry, replay);
  const now = what.doneAt[step] ?? 0;
  useEffect(() => {
    if (frame.current && !band) setChosen(reaching(frame.current.shown, now, limits));
  }, [step]);
  const point = (one: Transfer | null): void => {
    setPicked(one);
    hovered.value = one && { ...(one.chunk >= 0 && { chunk: one.chunk }), ranks: [one.source, one.destination] };
  };
  const zoom = (factor: number, at = middleOf(frame.current!, now)): void =>
    setChosen(zoomed(frame.current!.shown, factor, limits, at));
  const pan = (time: number, ranks: number): void => setChosen(moved(frame.current!.shown, time, ranks, limits));
  const handlers = useGestures({
    frame,
    limits,
    show: setChosen,
    point: (x, y, reach) => point(nearest(visible.current, frame.current!, x, y, reach)),
    leave: () => point(null),
    open: () => {
      setHeld(pointed);
      if (pointed && !band) openStep(pointed.step + 1);
    },
    zoom,
    pan,
    selects,
    select: (one, other) => setPart(selection.between(one, other, limits)),
    grow: (time, ranks) => {
      const { shown } = frame.current!;
      const begin = clamp(now, shown.from, shown.to - spanOf(shown) / 40);
      const { first, last } = { first: Math.ceil(shown.first), last: Math.floor(shown.last) };
      setPart(
        selection.grown(
          part ?? { from: begin, to: begin, first, last: Math.max(first + 1, last) },
          time,
          ranks,
          limits,
        ),
      );
    },
    next: (by) => {
      const order = [...visible.current].sort((a, b) => a.start - b.start || a.source - b.source);
      const place = picked ? order.indexOf(picked) + by : order.findIndex((one) => one.step >= step - 1);
      point(order[Math.max(0, Math.min(order.length - 1, place))] ?? null);
    },
  });
  const layers = useLayers();
  const draw = (width: number): Drawn => {
    // It opens where the player stands, with that moment in the middle.
    const shown = chosen ?? centred(opened(limits, replay.steps, entry.counts.messages, width - 90), now, limits);
    const here = (frame.current = layers.frame([shown, width, high], () => frameOf(shown, width, high)));
    const seen = (visible.current = layers.seen([what, here], () =>
      inWindow(between(what, replay, shown.from, shown.to), shown),
    ));
    const drawn = layers.lines([seen, step, lit], () => layersOf(what, seen, here, replay.ranks, { done: step, lit }));
    const content = (
      <>
        <g data-messages={seen.length} />
        <Rulers entry={entry} what={what} frame={here} width={width} />
        {part && <Part part={part} frame={here} says={what.clock === "steps" ? null : seconds(spanOf(part))} />}
        {picked && <Picked one={picked} frame={here} />}
        {band && band.ends && <Earlier from={what.duration} to={band.span} says={band.ends} frame={here} />}
        {band ? (
          <Playhead frame={here} at={band.now} />
        ) : (
          <Now what={what} frame={here} step={step} moving={props.moving} />
        )}
        {!isWhole(shown, limits) && <Overview entry={entry} frame={here} limits={limits} show={setChosen} />}
      </>
    );
    return { width, height: here.bottom + (isWhole(shown, limits) ? 30 : 50), content, layers: drawn };
  };
  const all = chosen !== null && isWhole(chosen, limits);
  const inWords = useMemo(() => {
    if (!part) return "";
    const found = selection.measure(what, between(what, replay, part.from, part.to), part);
    const chunk = entry.promise.carries_data ? state.value.size / entry.schedule.chunks : 0;
    return selection.measureInWords(what, found, part, chunk);
  }, [part, what, entry]);
  const wait = picked && waits ? waits[what.transfers.indexOf(picked)] : undefined;
  const follow = (message: number | null | undefined): void => {
    if (message === null || message === undefined) return;
    const one = what.transfers[message];
    setPicked(null);
    setHeld(one);
    hovered.value = null;
    setChosen(reaching(frame.current!.shown, (one.start + one.end) / 2, limits));
  };
  return (
    <>
      <div class="zoom" role="group" aria-label="Zoom">
        <Quiet aria-label="Zoom in" title="Zoom in (+)" onClick={() => zoom(1.6)}>
          +
        </Quiet>
        <Quiet aria-label="Zoom out" title="Zoom out (−)" onClick={() => zoom(1 / 1.6)}>
          −
        </Quiet>
        <Quiet aria-label="Earlier" title="Earlier" onClick={() => pan(-spanOf(frame.current!.shown) / 3, 0)}>
          ◀
        </Quiet>
        <Quiet aria-label="Later" title="Later" onClick={() => pan(spanOf(frame.current!.shown) / 3, 0)}>
          ▶
        </Quiet>
        <Quiet disabled={all} title="Fit (0)" onClick={() => setChosen(whole(limits))}>
          all
        </Quiet>
        <Quiet
          aria-pressed={selects}
          title="A drag selects a part and measures it (also with Shift)"
          onClick={() => setSelects(!selects)}
        >
          measure
        </Quiet>
      </div>
      <Picture
        name="time"
        label={props.label}
        draw={draw}
        frame={{
          ...handlers,
          tabIndex: 0,
          role: "group",
          class: "frame spacetime",
          "aria-label": "Messages in space and time. Up and down choose a message, plus and minus zoom.",
        }}
      />
      {part && (
        <p class="measured" role="status">
          {inWords} <Quiet onClick={() => setChosen(reachable(part, limits))}>zoom to it</Quiet>
          <Quiet onClick={() => setPart(null)} aria-label="Clear the selection">
            ×
          </Quiet>
        </p>
      )}
      <p class="told" aria-live={playing.value ? "off" : "polite"}>
        {picked ? (
          <>
            {saying(picked, what)}
            {wait && ` ${waitInWords(wait, what.transfers)}`}
            {wait && held && (
              <span class="chain">
                <Quiet disabled={!wait.before} onClick={() => follow(wait.before?.of)}>
                  ← what it waited for
                </Quiet>
                <Quiet disabled={wait.after === null} onClick={() => follow(wait.after)}>
                  what waited for it →
                </Quiet>
              </span>
            )}
          </>
        ) : (
          "Point at a line, or tap it. Drag to move, with Shift to measure; pinch, + and −, or Ctrl with the wheel to zoom."
        )}
      </p>
    </>
  );
}

/** Where zooming by keys and buttons goes to: the player's moment if it is in sight, in the middle of the ranks. */
function middleOf({ shown }: Frame, now: number): { time: number; rank: number } {
  const time = now > shown.from && now < shown.to ? now : (shown.from + shown.to) / 2;
  return { time, rank: (shown.first + shown.last) / 2 };
}

/** Each value is made again only when what it is made from changes: a moving playhead redraws no line. */
function useLayers(): Record<"frame" | "seen" | "lines", <Made>(from: unknown[], make: () => Made) => Made> {
  const kept = useRef(new Map<string, { from: unknown[]; made: unknown }>()).current;
  const keep =
    (name: string) =>
    <Made,>(from: unknown[], make: () => Made): Made => {
      const known = kept.get(name);
      if (known && known.from.every((one, i) => one === from[i])) return known.made as Made;
      const made = make();
      kept.set(name, { from, made });
      return made;
    };
  return { frame: keep("frame"), seen: keep("seen"), lines: keep("lines") };
}

/** Names of ranks, ticks of the clock, and where one host ends. */
function Rulers(props: { entry: Entry; what: Happening; frame: Frame; width: number }): JSX.Element {
  const { entry, what, frame, width } = props;
  const { shown, left, right, top, bottom, pitch } = frame;
  const inSteps = what.clock === "steps";
  const ticks = scaleLinear([shown.from, shown.to], [0, 1]).ticks(
    Math.max(2, Math.min(inSteps ? shown.to - shown.from : 8, Math.floor(width / 110))),
  );
  const ranks = every(entry.schedule.ranks, Math.max(1, 2 ** Math.ceil(Math.log2(13 / pitch)))).filter(
    (rank) => frame.y(rank) > top && frame.y(rank) < bottom,
  );
  const hosts = entry.topology?.host ?? [];
  const borders = every(entry.schedule.ranks).filter((rank) => rank && hosts[rank] !== hosts[rank - 1]);
  return (
    <>
      <g class="ruler">
        {ticks.map((tick) => (
          <g key={tick}>
            <line class="hair" x1={tenth(frame.x(tick))} x2={tenth(frame.x(tick))} y1={top} y2={bottom} />
            <text class="axis" x={tenth(frame.x(tick))} y={bottom + 18} text-anchor={anchorOf(frame.x(tick), width)}>
              {inSteps ? (Number.isInteger(tick) ? tick : "") : seconds(tick)}
            </text>
          </g>
        ))}
        {pitch >= 3 &&
          borders.map((rank) => {
            const y = tenth(frame.y(rank) - pitch / 2);
            return y > top && y < bottom && <line key={rank} class="border" x1={left - 4} x2={right} y1={y} y2={y} />;
          })}
      </g>
      {ranks.map((rank) => (
        <g key={rank} class="hot" {...lights({ ranks: [rank] })}>
          <text class="label" x={left - 12} y={tenth(frame.y(rank) + 4)} text-anchor="end">
            {width < 560 || pitch < 18 ? rank : `rank ${rank}`}
          </text>
        </g>
      ))}
    </>
  );
}

/** The part that is measured, with how long it is. */
function Part(props: { part: Window; frame: Frame; says: string | null }): JSX.Element | null {
  const { part, frame } = props;
  const [from, to] = [part.from, part.to].map((time) => tenth(clamp(frame.x(time), frame.left, frame.right)));
  const [top, bottom] = [part.first, part.last].map((rank) =>
    tenth(clamp(frame.y(rank - 0.5), frame.top, frame.bottom)),
  );
  if (bottom <= top) return null;
  return (
    <g class="span">
      <rect x={from} y={top} width={Math.max(1, to - from)} height={bottom - top} />
      {props.says && (
        <text class="label" x={(from + to) / 2} y={top + 14} text-anchor="middle">
          {props.says}
        </text>
      )}
    </g>
  );
}

/** The message that is pointed at: its band, and when it is combined. */
function Picked(props: { one: Transfer; frame: Frame }): JSX.Element {
  const { one, frame } = props;
  const kind = one.reduces ? "reduce" : "copy";
  return (
    <g class="picked" clip-path="url(#plot)">
      <clipPath id="plot">
        <rect x={frame.left} y={frame.top} width={frame.right - frame.left} height={frame.bottom - frame.top} />
      </clipPath>
      <path class={`bytes ${kind}`} d={bandOf(one, frame)} />
      <line
        class={`arc ${kind}`}
        x1={tenth(frame.x(one.start))}
        y1={tenth(frame.y(one.source))}
        x2={tenth(frame.x(one.arrived))}
        y2={tenth(frame.y(one.destination))}
      />
      {one.end > one.landed && (
        <rect
          class="combine"
          x={frame.x(one.landed)}
          y={frame.y(one.destination) - frame.band / 2 - 1.5}
          width={Math.max(1, frame.x(one.end) - frame.x(one.landed))}
          height={frame.band + 3}
        />
      )}
    </g>
  );
}

/** Where the player stands: at the end of the step, or on the way there. */
function Now(props: { what: Happening; frame: Frame; step: number; moving: boolean }): JSX.Element | null {
  const { what, frame, step, moving } = props;
  const end = what.doneAt[step] ?? 0;
  const begin = what.doneAt[step - 1] ?? 0;
  const x = tenth(frame.x(moving ? begin + (end - begin) * fraction.value : end));
  if (x < frame.left - 1 || x > frame.right + 1) return null;
  return (
    <g class="playhead">
      <line x1={x} x2={x} y1={frame.top - 6} y2={frame.bottom} />
      <path d={`M${x - 5} ${frame.top - 12}h10l-5 7z`} />
    </g>
  );
}

/** The same on a clock that two pictures share. */
function Playhead(props: { frame: Frame; at: ReadonlySignal<number> }): JSX.Element | null {
  const { frame } = props;
  const x = tenth(frame.x(props.at.value));
  if (x < frame.left - 1 || x > frame.right + 1) return null;
  return (
    <g class="playhead">
      <line x1={x} x2={x} y1={frame.top - 6} y2={frame.bottom} />
      <path d={`M${x - 5} ${frame.top - 12}h10l-5 7z`} />
    </g>
  );
}

/** How much earlier this one ends than the other. */
function Earlier(props: { from: number; to: number; says: string; frame: Frame }): JSX.Element {
  const { frame, says } = props;
  const [from, to] = [props.from, props.to].map((time) => tenth(clamp(frame.x(time), frame.left, frame.right)));
  const y = frame.top + 8;
  const left = to - from < 8 * says.length;
  return (
    <g class="earlier">
      <path d={`M${from} ${y - 5}v10M${from} ${y}H${to}M${to} ${y - 5}v10`} />
      <text
        class="label"
        x={left ? from - 8 : (from + to) / 2}
        y={left ? y + 4 : y + 18}
        text-anchor={left ? "end" : "middle"}
      >
        {says}
      </text>
    </g>
  );
}

/** All of the time, with the part that is shown; a click or a drag goes there. */
function Overview(props: { entry: Entry; frame: Frame; limits: Limits; show: (shown: Window) => void }): JSX.Element {
  const { entry, frame, limits, show } = props;
  const { shown, left, right, bottom } = frame;
  const per = (right - left) / limits.duration;
  const y = bottom + 28;
  const goTo = (event: PointerEvent): void => {
    if (!(event.buttons & 1)) return;
    const svg = (event.currentTarget as SVGElement).ownerSVGElement!.getBoundingClientRect();
    const time = (event.clientX - svg.left - left) / per;
    show(moved(shown, time - (shown.from + shown.to) / 2, 0, limits));
  };
  const share = ((shown.last - shown.first) / limits.ranks) * 10;
  return (
    <g class="overview" onPointerDown={goTo} onPointerMove={goTo}>
      <title>{`the part of ${entry.schedule.algorithm} that is shown`}</title>
      <rect class="ground" x={left} y={y} width={right - left} height={12} rx={3} />
      <rect
        class="shown"
        x={tenth(left + shown.from * per)}
        y={tenth(y + 1 + (shown.first / limits.ranks) * 10)}
        width={tenth(Math.max(4, (shown.to - shown.from) * per))}
        height={tenth(Math.max(3, share))}
        rx={2}
      />
      <rect x={left} y={y - 8} width={right - left} height={28} fill="transparent" />
    </g>
  );
}
