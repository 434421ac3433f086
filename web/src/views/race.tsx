/** Race: up to four algorithms on one clock, with counters, the lower bound as a line, and a podium at the end. */

import type { JSX } from "preact";
import { dark, hueOf } from "../palette";
import { useLayoutEffect, useMemo } from "preact/hooks";
import { useComputed } from "@preact/signals";
import type { Clock, Entry } from "../document";
import { clamp } from "../numbers";
import { Key, Picture, Twin, type Drawn } from "../picture";
import { pause, raceAt } from "../player";
import { busiestPort, linksInUse, placesOf, runner, shareAt, type Placed, type Runner } from "../racing";
import { remembered } from "../remembered";
import { MOST_RIVALS, rivalsOf, type Rival } from "../rivals";
import { againstState, casesOf, choices, find, opponent, replayOf } from "../source";
import { go, state } from "../state";
import { percent, plural, seconds, timesS } from "../words";
import { blockLayers, blocksOf } from "./crowd";
import { drawCurves } from "./curves";
import { Holds } from "./holds";
import { placeAt } from "./pair";
import { drawPodium, resultOf } from "./podium";
import { happeningOf } from "./time";
import type { View } from "./view";

export const view: View = {
  name: "race",
  title: "Race",
  summary: "algorithms against each other, and the lower bound",
  key: "4",
  draw: Race,
  needs: ["schedule", "starts", "ends", "timeline", "modelled", "counts"],
  plays: "race",
  broad: true,
};

function Race(props: { entry: Entry; step: number }): JSX.Element {
  const rivals = rivalsHere();
  const found = rivals.map(({ name }) => find(state.value, name));
  const entries = [props.entry, ...found.flatMap((one) => (one.entry ? [one.entry] : []))];
  const modelled = entries.every((entry) => entry.timeline);
  const unsimulated = entries.filter((entry) => !entry.timeline);
  const clock = modelled ? "modelled" : "steps";
  const runners = entries.map((entry) => runnerOf(entry, clock));
  const recorded = modelled && opponent.value?.measured ? opponent.value.entry : null;
  if (recorded) runners.push(runnerOf(recorded, "measured"));
  const longest = Math.max(...runners.map((one) => one.what.duration), 1e-12);
  // Another field is another race.
  const field = runners.map((one) => `${one.entry.key} ${one.name}`).join(" ");
  useLayoutEffect(() => {
    pause();
    raceAt.value = 0;
  }, [field]);
  const now = raceAt.value * longest;
  const places = placesOf(
    runners.map((one) => ({ name: one.name, seconds: one.what.duration, ok: one.entry.proof.ok })),
  );
  const whyHere = (one: Runner): string => {
    if (one.what.clock === "measured") return "a real run";
    return one.entry === recorded ? "simulated" : (rivals.find(({ name }) => name === one.name)?.why ?? "");
  };
  const over = raceAt.value >= 1;
  // The bound on rounds is not a bound on steps: in one step a rank may send to all others.
  const least = modelled ? props.entry.modelled?.least : undefined;
  const say = (time: number): string => (modelled ? seconds(time) : plural(Math.round(time), "step"));
  const lines = [
    `After ${say(now)}:`,
    ...runners.map(
      (one) =>
        `${one.name} has made ${placeAt(one.what, now).done} of ${plural(one.replay.steps, "step")}, ${percent(shareAt(one, now))} has arrived; ${one.entry.proof.ok ? `in the end it takes ${say(one.what.duration)}` : "it is wrong and never finishes"}.`,
    ),
    ...(least !== undefined ? [`No algorithm takes less than ${say(least)}.`] : []),
    ...(over
      ? [
          resultOf(
            places,
            runners.filter((one) => !one.entry.proof.ok).map((one) => one.name),
          ),
        ]
      : []),
  ];
  return (
    <>
      <Rivals rivals={rivals} />
      {found.some((one) => one.waiting) && <p class="soft">Computing a rival …</p>}
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
          <Lane
            key={one.name}
            one={one}
            index={i}
            now={now}
            longest={longest}
            say={say}
            why={whyHere(one)}
            place={places.find((place) => place.name === one.name)}
          />
        ))}
      </div>
      <Picture
        name="race"
        label={lines.join(" ")}
        draw={(width) => drawCurves(runners, now, longest, least, say, width)}
      />
      <p class="legend">
        {runners.map((one) => (
          <Key key={one.name} sign="dot" colour={hueOf(one.name)}>
            {one.name}
          </Key>
        ))}
        {least !== undefined && <Key sign="line bound">no algorithm is faster</Key>}
      </p>
      {over && places.length > 1 && (
        <Picture
          name="podium"
          caption="The result"
          label={lines[lines.length - 1]}
          draw={(width) => drawPodium(places, hueOf, say, width)}
        />
      )}
      {over && <p class="result">{lines[lines.length - 1]}</p>}
      <p class="note">
        {modelled
          ? `Simulated on ${props.entry.topology?.name ?? "the topology"}, message by message, not cut into segments.`
          : `Counted in steps, since ${listedNames(unsimulated)} not simulated.`}{" "}
        Each curve is the share of the promised data that has arrived.
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

const runnerOf = remembered((entry: Entry, clock: Clock) => runner(entry, replayOf(entry), happeningOf(entry, clock)));

/** Those that were chosen, or those that the times of all algorithms suggest. */
function rivalsHere(): Rival[] {
  const { collective, topology, algorithm, ranks, rivals, size } = state.value;
  const others = choices(state.value).algorithms.filter((name) => name !== algorithm);
  const suggested = rivalsOf(
    algorithm,
    others,
    casesOf(collective, topology).find((one) => one.ranks === ranks) ?? null,
    size,
  );
  if (!rivals && opponent.value?.measured) return []; // its recording is the rival
  const against = againstState(state.value);
  const opponents = against && others.includes(against.algorithm) ? [{ name: against.algorithm, why: "" }] : [];
  if (!rivals && opponents.length) return opponents;
  if (!rivals) return suggested;
  return rivals.map((name) => suggested.find((one) => one.name === name) ?? { name, why: "" });
}

/** The contenders: the chosen algorithm, and up to three others. */
function Rivals(props: { rivals: Rival[] }): JSX.Element {
  const { algorithm } = state.value;
  const rivals = props.rivals.map(({ name }) => name);
  const others = choices(state.value).algorithms.filter((name) => name !== algorithm);
  const toggle = (name: string): void =>
    go({
      rivals: rivals.includes(name) ? rivals.filter((one) => one !== name) : [...rivals, name].slice(-MOST_RIVALS),
    });
  return (
    <div class="chips" role="group" aria-label="Rivals">
      <span class="soft">{algorithm} against</span>
      {others.map((name) => (
        <button key={name} type="button" aria-pressed={rivals.includes(name)} onClick={() => toggle(name)}>
          {name}
        </button>
      ))}
      {!others.length && <span class="soft">nothing: this file has no other algorithm</span>}
    </div>
  );
}

type Counter = [what: string, now: string | number, all?: string | number];

function Lane(props: {
  one: Runner;
  index: number;
  now: number;
  longest: number;
  say: (time: number) => string;
  why: string;
  place?: Placed;
}): JSX.Element {
  const { one, index, now, say, why, place } = props;
  const { done } = placeAt(one.what, now);
  // Between two steps it is the same element: nothing is drawn again.
  const { name } = one;
  const small = useMemo(
    () => (
      <Picture
        name={`lane-${index}`}
        caption={name}
        label={`${name}: who holds how much after ${plural(done, "step")}`}
        draw={(width) => drawSmall(one, done, hueOf(name), width)}
      />
    ),
    [one, index, done, dark.value],
  );
  const finished = now >= one.what.duration * (1 - 1e-9);
  const counters: Counter[] = [
    ["steps", done, one.replay.steps],
    // A recording says when ranks read from each other, not what passes through ports and links.
    ...(one.what.clock === "measured"
      ? []
      : ([
          ["busiest port", timesS(busiestPort(one, now)), timesS(one.entry.counts.busiest_port_bytes)],
          ["links in use", percent(linksInUse(one, now))],
        ] as Counter[])),
    ["arrived", percent(shareAt(one, now))],
  ];
  return (
    <article class="lane">
      <h3>
        <i class="dot" style={{ background: hueOf(name) }} />
        {name}
        {!one.entry.proof.ok ? (
          <small class="is-wrong">wrong</small>
        ) : (
          finished && (
            <small>
              {place && <b>{place.tied ? `${place.place}. (tie) ` : `${place.place}. `}</b>}
              {say(one.what.duration)}
            </small>
          )
        )}
      </h3>
      <p class="why">{why}</p>
      {isLive(one) ? <Live one={one} longest={props.longest} /> : small}
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

/** Whether there is room for numbers that travel. */
const isLive = ({ replay }: Runner): boolean => replay.ranks <= 8 && replay.width <= 8 && innerWidth > 900;

/** The grid itself, on the clock of the race. */
function Live(props: { one: Runner; longest: number }): JSX.Element {
  const { one, longest } = props;
  const at = useComputed(() => placeAt(one.what, raceAt.value * longest));
  const clock = useComputed(() => at.value.part);
  const { done, part } = at.value;
  return <Holds entry={one.entry} step={done + (part > 0 ? 1 : 0)} moving={part > 0} clock={clock} compact quiet />;
}

/** A small version of the grid: the fuller a cell, the darker it is. */
function drawSmall(one: Runner, done: number, colour: string, width: number): Drawn {
  const { replay } = one;
  const blocks = blocksOf(replay, replay.at(done), 32);
  const { rows, columns, shares } = blocks;
  const high = clamp(Math.floor(150 / rows), 3, 14);
  const wide = width / columns;
  const height = rows * high;
  // Blocks of several ranks have nothing that lights up.
  if (rows < replay.ranks) {
    const lies = { left: 0, top: 0, pitchX: wide, pitchY: high, cellX: Math.max(1, wide - 1), cellY: high - 1 };
    const layers = blockLayers(blocks, lies, (share) => ({ colour, opacity: 0.1 + 0.9 * share }));
    return { width, height, content: null, layers };
  }
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
  return { width, height, content: cells };
}
