/** A picture that the reader changes: the numbers of its sentence can be dragged, and everything follows. */

import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { timeOf } from "../model";
import { clamp } from "../numbers";
import { hueOf } from "../palette";
import { stillMotion } from "../player";
import { bytes, plural, rate, seconds, timesS } from "../words";
import type { Explorable } from "./data";
import { Film } from "./film";

const SIZES = Array.from({ length: 28 }, (_, i) => 2 ** (i + 3)); // 8 B to 1 GiB
const steps = (from: number, to: number): number[] =>
  Array.from({ length: to - from + 1 }, (_, i) => [1, 2, 5].map((digit) => digit * 10 ** (from + i))).flat();
const LATENCIES = steps(-7, -4);
const BANDWIDTHS = steps(7, 11);
const DRAGGED = 14; // pixels from one value to the next
const RACE = 3000; // milliseconds that the slowest takes

/** `races`: once, when it appears. `own`: the name of the learner's function. */
export function Explore(props: { of: Explorable; title: string; own?: string; races?: boolean }): JSX.Element {
  const { of } = props;
  const [algorithm, setAlgorithm] = useState(of.algorithms[0]);
  const [ranks, setRanks] = useState(of.ranks.includes(of.at) ? of.at : of.ranks[of.ranks.length - 1]);
  const [size, setSize] = useState(of.size);
  const [latency, setLatency] = useState(of.latency);
  const [bandwidth, setBandwidth] = useState(of.bandwidth);
  const entry = of.entries[`${algorithm}/${ranks}`] ?? null;
  const figures = { latency, bandwidth, reduction: Infinity };
  const times = of.algorithms.flatMap((name) => {
    const flat = of.flats[`${name}/${ranks}`];
    return flat ? [{ name, time: timeOf(flat, size, figures) }] : [];
  });
  return (
    <section class="explore" aria-label={props.title}>
      <h2>
        {props.title} {props.own && <code>{props.own}</code>}
      </h2>
      <p class="asks">
        {of.collective} by{" "}
        <select value={algorithm} aria-label="Algorithm" onChange={(event) => setAlgorithm(event.currentTarget.value)}>
          {of.algorithms.map((name) => (
            <option key={name}>{name}</option>
          ))}
        </select>{" "}
        between{" "}
        <Dragged name="Ranks" value={ranks} values={of.ranks} say={(many) => plural(many, "rank")} set={setRanks} />
        {entry && (
          <>
            : {plural(entry.counts.steps, "step")}, {plural(entry.counts.messages, "message")}, and{" "}
            {timesS(entry.counts.busiest_port_bytes)} through the busiest port
          </>
        )}
        . A buffer has S = <Dragged name="S" value={size} values={SIZES} say={bytes} set={setSize} />. To start a
        message takes α = <Dragged name="α" value={latency} values={LATENCIES} say={seconds} set={setLatency} />, and a
        port carries <Dragged name="Bandwidth" value={bandwidth} values={BANDWIDTHS} say={rate} set={setBandwidth} />.
      </p>
      <Times times={times} chosen={algorithm} choose={setAlgorithm} races={props.races ?? false} />
      {of.say && <p class="soft">{of.say}</p>}
      {entry ? (
        <Film key={entry.key} entry={entry} plays={props.races} />
      ) : (
        <p class="note">
          {algorithm} has no schedule for {plural(ranks, "rank")}.
        </p>
      )}
    </section>
  );
}

/** A number in a sentence: drag it, or use the arrow keys. */
function Dragged(props: {
  name: string;
  value: number;
  values: number[];
  say: (value: number) => string;
  set: (value: number) => void;
}): JSX.Element {
  const { values, value, say, set } = props;
  const from = useRef<{ x: number; place: number } | null>(null);
  // A value between two of them goes to its neighbours.
  const place = values.reduce((best, one, i) => (Math.abs(one - value) < Math.abs(values[best] - value) ? i : best), 0);
  const to = (wanted: number): void => set(values[clamp(wanted, 0, values.length - 1)]);
  const keys: Record<string, number> = {
    ArrowRight: place + 1,
    ArrowUp: place + 1,
    ArrowLeft: place - 1,
    ArrowDown: place - 1,
    Home: 0,
    End: values.length - 1,
  };
  return (
    <span
      class="dragged"
      role="slider"
      tabIndex={0}
      aria-label={props.name}
      aria-valuemin={0}
      aria-valuemax={values.length - 1}
      aria-valuenow={place}
      aria-valuetext={say(value)}
      title="drag, or use the arrow keys"
      onKeyDown={(event) => {
        if (!(event.key in keys)) return;
        event.preventDefault();
        event.stopPropagation();
        to(keys[event.key]);
      }}
      onPointerDown={(event) => {
        event.currentTarget.setPointerCapture(event.pointerId);
        event.currentTarget.focus();
        event.preventDefault();
        from.current = { x: event.clientX, place };
      }}
      onPointerMove={(event) => {
        if (from.current) to(from.current.place + Math.round((event.clientX - from.current.x) / DRAGGED));
      }}
      onPointerUp={() => (from.current = null)}
      onPointerCancel={() => (from.current = null)}
    >
      {say(value)}
    </span>
  );
}

/** How long each algorithm takes, as bars; in a race they grow by the clock. */
function Times(props: {
  times: { name: string; time: number }[];
  chosen: string;
  choose: (name: string) => void;
  races: boolean;
}): JSX.Element {
  const { times } = props;
  const longest = Math.max(...times.map((one) => one.time));
  const least = Math.min(...times.map((one) => one.time));
  const { part, start } = useRace(props.races);
  const now = part * longest;
  return (
    <div class="times">
      <ul>
        {times.map(({ name, time }) => (
          <li key={name} class={name === props.chosen ? "chosen" : ""}>
            <button type="button" onClick={() => props.choose(name)}>
              {name}
            </button>
            <span class="length">
              <span style={{ width: `${(100 * Math.min(now, time)) / longest}%`, background: hueOf(name) }} />
            </span>
            <span class="time">
              {now >= time ? seconds(time) + (time === least && times.length > 1 ? " ★" : "") : "…"}
            </span>
          </li>
        ))}
      </ul>
      {times.length > 1 && (
        <button type="button" class="race" onClick={start}>
          Race
        </button>
      )}
    </div>
  );
}

/** A clock from 0 to 1; 1 while nobody races. */
function useRace(races: boolean): { part: number; start: () => void } {
  const [part, setPart] = useState(races && !stillMotion() ? 0 : 1);
  const frame = useRef(0);
  const start = (): void => {
    cancelAnimationFrame(frame.current);
    if (stillMotion()) return setPart(1);
    const begun = performance.now();
    const tick = (now: number): void => {
      const done = Math.min(1, (now - begun) / RACE);
      setPart(done);
      if (done < 1) frame.current = requestAnimationFrame(tick);
    };
    frame.current = requestAnimationFrame(tick);
  };
  useEffect(() => {
    if (races) start();
    return () => cancelAnimationFrame(frame.current);
  }, []);
  return { part, start };
}
