/** View 4, race: two or three algorithms on one clock, with counters, and the lower bound as a line. */

import type { JSX } from "preact";
import { useEffect } from "preact/hooks";
import { scaleLinear } from "d3-scale";
import type { Entry } from "../document";
import { clamp, tenth } from "../numbers";
import { anchorOf, Picture, Twin, type Drawn } from "../picture";
import { raceAt } from "../player";
import { busiestPort, linksInUse, runner, shareAt, stepsDone, type Runner } from "../racing";
import { remembered } from "../remembered";
import { choices, find, hueOf, replayOf } from "../source";
import { go, state } from "../state";
import { percent, plural, seconds, timesS } from "../words";
import { blocksOf } from "./crowd";
import { happeningOf } from "./time";

export function Race(props: { entry: Entry; step: number }): JSX.Element {
  const found = state.value.rivals.map((name) => find(state.value, name));
  const entries = [props.entry, ...found.flatMap((one) => (one.entry ? [one.entry] : []))];
  const modelled = entries.every((entry) => entry.timeline);
  const unsimulated = entries.filter((entry) => !entry.timeline);
  const clock = modelled ? "modelled" : "steps";
  const runners = entries.map((entry) => runnerOf(entry, clock));
  const longest = Math.max(...runners.map((one) => one.what.duration), 1e-12);
  const shortest = Math.min(...runners.map((one) => one.what.duration));
  // Until the user moves the clock, it stands where the first algorithm finishes: the most informative still.
  useEffect(() => {
    raceAt.value ??= shortest / longest;
  });
  const now = (raceAt.value ?? shortest / longest) * longest;
  // The bound on rounds is not a bound on steps: in one step a rank may send to all others.
  const least = modelled ? props.entry.modelled?.least : undefined;
  const say = (time: number): string => (modelled ? seconds(time) : plural(Math.round(time), "step"));
  const lines = [
    `After ${say(now)}:`,
    ...runners.map(
      (one) =>
        `${one.replay.schedule.algorithm} has made ${stepsDone(one, now)} of ${plural(one.replay.steps, "step")}, ${percent(shareAt(one, now))} has arrived; ${one.entry.proof.ok ? `in the end it takes ${say(one.what.duration)}` : "it is wrong, and never gets there"}.`,
    ),
    ...(least !== undefined ? [`No algorithm takes less than ${say(least)}.`] : []),
  ];
  return (
    <>
      <Rivals />
      {found.some((one) => one.waiting) && <p class="soft">A rival is being computed …</p>}
      {found.map(
        (one, i) =>
          one.error && (
            <p key={i} class="alarm">
              {one.error}
            </p>
          ),
      )}
      <div class="lanes">
        {runners.map((one, i) => (
          <Lane key={one.replay.schedule.algorithm} one={one} index={i} now={now} say={say} />
        ))}
      </div>
      <Picture
        name="race"
        label={lines.join(" ")}
        draw={(width) => drawCurves(runners, now, longest, least, say, width)}
      />
      <p class="note">
        {modelled
          ? `Simulated on ${props.entry.topology?.name ?? "the topology"}, message by message.`
          : `On the clock of steps, since ${listedNames(unsimulated)} not simulated.`}{" "}
        The curve of an algorithm is the share of what must arrive that has arrived.
      </p>
      <Twin lines={lines} />
    </>
  );
}

/** `cut_short is wrong and was`: who was not simulated, and why. */
function listedNames(entries: Entry[]): string {
  const names = entries.map((entry) => `${entry.schedule.algorithm}${entry.proof.ok ? "" : " is wrong and"}`);
  return `${names.join(", ")} ${entries.length === 1 || entries.some((entry) => !entry.proof.ok) ? "was" : "were"}`;
}

const runnerOf = remembered((entry: Entry, clock: "modelled" | "steps") =>
  runner(entry, replayOf(entry), happeningOf(entry, clock)),
);

/** The contenders: the chosen algorithm, and up to two others. */
function Rivals(): JSX.Element {
  const { algorithm, rivals } = state.value;
  const others = choices(state.value).algorithms.filter((name) => name !== algorithm);
  const toggle = (name: string): void => {
    raceAt.value = null;
    go({ rivals: rivals.includes(name) ? rivals.filter((one) => one !== name) : [...rivals, name].slice(-2) });
  };
  return (
    <div class="chips" role="group" aria-label="Rivals">
      <span class="soft">{algorithm} against</span>
      {others.map((name) => (
        <button key={name} type="button" aria-pressed={rivals.includes(name)} onClick={() => toggle(name)}>
          {name}
        </button>
      ))}
      {!others.length && <span class="soft">nobody: this file holds no other algorithm</span>}
    </div>
  );
}

function Lane(props: { one: Runner; index: number; now: number; say: (time: number) => string }): JSX.Element {
  const { one, index, now, say } = props;
  const done = stepsDone(one, now);
  const finished = now >= one.what.duration * (1 - 1e-9);
  const counters: [what: string, now: string | number, all?: string | number][] = [
    ["steps", done, one.replay.steps],
    ["busiest port", timesS(busiestPort(one, now)), timesS(one.entry.counts.busiest_port_bytes)],
    ["links in use", percent(linksInUse(one, now))],
    ["arrived", percent(shareAt(one, now))],
  ];
  return (
    <article class="lane">
      <h3>
        <i class="dot" style={{ background: hueOf(one.replay.schedule.algorithm) }} />
        {one.replay.schedule.algorithm}
        {!one.entry.proof.ok ? (
          <small class="is-wrong">wrong</small>
        ) : (
          finished && <small>{say(one.what.duration)}</small>
        )}
      </h3>
      <Picture
        name={`lane-${index}`}
        caption={one.replay.schedule.algorithm}
        label={`${one.replay.schedule.algorithm}: who holds how much after ${plural(done, "step")}`}
        draw={(width) => drawSmall(one, done, hueOf(one.replay.schedule.algorithm), width)}
      />
      <dl>
        {counters.map(([what, now, all]) => (
          <div key={what}>
            <dt>{what}</dt>
            <dd>
              {now}
              {all !== undefined && <small> of {all}</small>}
            </dd>
          </div>
        ))}
      </dl>
    </article>
  );
}

/** A small version of the grid: the fuller a cell, the darker it is. */
function drawSmall(one: Runner, done: number, colour: string, width: number): Drawn {
  const { replay } = one;
  const { rows, columns, shares } = blocksOf(replay, replay.at(done), 32);
  const high = clamp(Math.floor(150 / rows), 3, 14);
  const wide = width / columns;
  const cells = shares.map((share, block) => {
    const [row, column] = [Math.floor(block / columns), block % columns];
    return (
      <rect
        key={block}
        data-r={rows === replay.ranks ? row : undefined}
        x={column * wide}
        y={row * high}
        width={Math.max(1, wide - 1)}
        height={Math.max(1, high - 1)}
        rx={1}
        fill={colour}
        fill-opacity={0.1 + 0.9 * share}
      />
    );
  });
  return { width, height: rows * high, content: cells };
}

/** Where a wrong algorithm ends: not at 100 %. */
function WrongEnd(props: { x: number; y: number }): JSX.Element {
  const { x, y } = props;
  return (
    <g class="wrong-end">
      <path d={`M${x - 5} ${y - 5}l10 10m0 -10l-10 10`} />
      <text x={x - 10} y={y - 10} text-anchor="end">
        wrong
      </text>
    </g>
  );
}

function drawCurves(
  runners: Runner[],
  now: number,
  longest: number,
  least: number | undefined,
  say: (time: number) => string,
  width: number,
): Drawn {
  const [left, right, top, high] = [50, 24, 30, 220];
  const x = scaleLinear([0, Math.max(longest, least ?? 0)], [left, width - right]);
  const y = scaleLinear([0, 1], [top + high, top]);
  const ticks = x.ticks(Math.max(2, Math.floor(width / 140)));
  const points = (one: Runner): string =>
    one.curve.map(({ time, share }, i) => `${i ? "L" : "M"}${tenth(x(time))} ${tenth(y(share))}`).join("");
  const content = (
    <>
      <defs>
        <clipPath id="sofar">
          <rect x={0} y={0} width={x(now)} height={top + high + 10} />
        </clipPath>
      </defs>
      {[0, 0.5, 1].map((share) => (
        <g key={share}>
          <line class="hair" x1={left} x2={width - right} y1={y(share)} y2={y(share)} />
          <text class="axis" x={left - 8} y={y(share) + 4} text-anchor="end">
            {percent(share)}
          </text>
        </g>
      ))}
      {ticks.map((tick) => (
        <text key={tick} class="axis" x={x(tick)} y={top + high + 20} text-anchor={anchorOf(x(tick), width)}>
          {say(tick)}
        </text>
      ))}
      {runners.map((one, i) => (
        <g key={i} fill="none" stroke={hueOf(one.replay.schedule.algorithm)}>
          <path class="curve ghost" d={points(one)} />
          <path class="curve" d={points(one)} clip-path="url(#sofar)" />
          {one.entry.proof.ok ? (
            <circle
              cx={x(one.what.duration)}
              cy={y(1)}
              r={4}
              fill={now >= one.what.duration * (1 - 1e-9) ? hueOf(one.replay.schedule.algorithm) : "none"}
            />
          ) : (
            <WrongEnd x={x(one.what.duration)} y={y(one.curve[one.curve.length - 1].share)} />
          )}
        </g>
      ))}
      {least !== undefined && (
        <g class="least">
          <line x1={x(least)} x2={x(least)} y1={top - 8} y2={top + high} />
          <text
            x={x(least) + (x(least) > width - 190 ? -6 : 6)}
            y={top - 12}
            text-anchor={x(least) > width - 190 ? "end" : "start"}
          >
            {`lower bound ${say(least)}`}
          </text>
        </g>
      )}
      <g class="playhead">
        <line x1={x(now)} x2={x(now)} y1={top - 2} y2={top + high} />
      </g>
    </>
  );
  return { width, height: top + high + 32, content };
}
