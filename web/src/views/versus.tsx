/** Two schedules beside each other, in every view: one clock, their difference, and a sentence that says why. */

import type { JSX } from "preact";
import { hueOf } from "../palette";
import { useLayoutEffect, useMemo } from "preact/hooks";
import { useComputed, useSignal, type ReadonlySignal } from "@preact/signals";
import type { Entry } from "../document";
import { every } from "../numbers";
import { Quiet } from "../picture";
import { pause, raceAt, stops } from "../player";
import { opponent, replayOf } from "../source";
import { Save } from "../take_along";
import { go } from "../state";
import { plural, seconds } from "../words";
import { factsOf, whyFaster } from "../why";
import { CodeDiff } from "./code_diff";
import { BytesDifference } from "./difference";
import { Holds } from "./holds";
import { pairOf, placeAt, type Pair, type Runs } from "./pair";
import { Sending } from "./sending";
import { SpaceTime } from "./spacetime";
import { happeningOf } from "./time";
import type { View } from "./view";
import type { Window } from "./window";

/** The pair that is compared; null if nothing is, or while the other is not there. */
export function comparedWith(entry: Entry): Pair | null {
  const other = opponent.value;
  return other && pairOf(entry, other, happeningOf);
}

export function Versus(props: { entry: Entry; pair: Pair; view: View }): JSX.Element {
  const { pair, view } = props;
  useLayoutEffect(() => {
    pause();
    raceAt.value = 0;
    stops.value = pair.stops;
    return () => void (stops.value = []);
  }, [pair.key]);
  const [one, other] = pair.sides;
  const Draw = view.draw;
  return (
    <section class="versus" id={`view-${view.name}`} role="tabpanel" aria-labelledby={`tab-${view.name}`}>
      <header>
        <p class="reason" role="status">
          {whyFaster(one, other)}
        </p>
        <div class="along">
          <Save
            entry={props.entry}
            id={`view-${view.name}`}
            file={`${one.name}-and-${other.name}-${view.name}`}
            caption={`${props.entry.schedule.collective}: ${one.name} and ${other.name}`}
            films={view.plays !== "nothing"}
          />
          <Quiet onClick={() => go({ against: null })}>stop comparing</Quiet>
        </div>
      </header>
      {view.name === "holds" ? (
        <div class="sides">
          {pair.sides.map((side, i) => (
            <Grid key={`${pair.key} ${i}`} side={side} pair={pair} />
          ))}
        </div>
      ) : view.name === "time" ? (
        <Bands key={pair.key} pair={pair} />
      ) : one.entry === other.entry && (view.name === "bytes" || view.name === "code") ? (
        <Same pair={pair} view={view} />
      ) : view.name === "bytes" ? (
        <BytesDifference one={one} other={other} />
      ) : view.name === "code" ? (
        <CodeDiff one={one} other={other} />
      ) : (
        <Draw entry={props.entry} step={0} />
      )}
      {view.name !== "code" && view.name !== "wins" && <FactColumns pair={pair} />}
    </section>
  );
}

/** What a simulation and a recording of one schedule share: its bytes, its code. It follows the simulation. */
function Same(props: { pair: Pair; view: View }): JSX.Element {
  const [one, other] = props.pair.sides;
  const { step } = usePlace(one, props.pair);
  const Draw = props.view.draw;
  return (
    <>
      <p class="note">
        {props.view.name === "bytes"
          ? "A recording says nothing about links. The run sends what the simulation sends: nothing differs."
          : `The code is the same, ${one.name} or ${other.name}.`}
      </p>
      <Draw entry={one.entry} step={step} />
    </>
  );
}

function Title(props: { side: Runs; pair: Pair; step?: number }): JSX.Element {
  const { side, pair, step } = props;
  const { steps } = replayOf(side.entry);
  return (
    <h3>
      <i class="dot" style={{ background: hueOf(side.entry.schedule.algorithm) }} />
      {side.name}
      <small>
        {step !== undefined && `step ${step} of ${steps}, `}
        {pair.inSteps ? plural(side.duration, "step") : seconds(side.duration)}
      </small>
    </h3>
  );
}

/** Where a side stands, as signals: what reads only the step is not drawn again for every frame. */
function usePlace(side: Runs, pair: Pair): { step: number; moving: boolean; clock: ReadonlySignal<number> } {
  const at = useComputed(() => placeAt(side.what, raceAt.value * pair.longest));
  const clock = useComputed(() => at.value.part);
  const told = useComputed(() => at.value.done + (at.value.part > 0 ? 1 : 0));
  const moving = useComputed(() => at.value.part > 0);
  return { step: told.value, moving: moving.value, clock };
}

function Grid(props: { side: Runs; pair: Pair }): JSX.Element {
  const { side } = props;
  const { step, moving, clock } = usePlace(side, props.pair);
  return (
    <article class="side">
      <Title {...props} step={step} />
      <Holds entry={side.entry} step={step} moving={moving} clock={clock} compact />
      <div class="shape">
        <Sending entry={side.entry} step={step} moving={moving} clock={clock} />
      </div>
    </article>
  );
}

/** Two bands on one axis: zoomed and moved together. */
function Bands(props: { pair: Pair }): JSX.Element {
  const { pair } = props;
  const shown = useSignal<Window | null>(null);
  const now = useComputed(() => raceAt.value * pair.longest);
  return (
    <div class="bands">
      {pair.sides.map((side, i) => (
        <Band key={i} side={side} pair={pair} shown={shown} now={now} />
      ))}
      <p class="legend">
        <span>
          <i class="line critical" /> critical path
        </span>
        <span>
          <i class="line reduce" /> added on arrival
        </span>
        <span>
          <i class="line copy" /> copied
        </span>
      </p>
    </div>
  );
}

function Band(props: {
  side: Runs;
  pair: Pair;
  shown: ReturnType<typeof useSignal<Window | null>>;
  now: ReadonlySignal<number>;
}): JSX.Element {
  const { side, pair, shown, now } = props;
  const { step } = usePlace(side, pair);
  const saves = pair.longest - side.duration;
  const ends =
    saves > pair.longest * 1e-6
      ? `${side.name} ends ${pair.inSteps ? plural(saves, "step") : seconds(saves)} earlier`
      : null;
  const band = useMemo(() => ({ shown, now, span: pair.longest, ends, name: side.name }), [pair.key]);
  return (
    <article class="band">
      <Title side={side} pair={pair} step={step} />
      <SpaceTime
        entry={side.entry}
        what={side.what}
        step={step}
        moving={false}
        label={`Space and time of ${side.name}`}
        band={band}
      />
    </article>
  );
}

/** The figures of both in two columns, the better one bold. */
function FactColumns(props: { pair: Pair }): JSX.Element {
  const { sides } = props.pair;
  const facts = factsOf(...sides);
  return (
    <table class="counts versus-facts">
      <thead>
        <tr>
          <th />
          {sides.map((side) => (
            <th key={side.name}>{side.name}</th>
          ))}
        </tr>
      </thead>
      <tbody>
        {facts.map((fact) => (
          <tr key={fact.what}>
            <th scope="row">{fact.what}</th>
            {every(2).map((i) => (
              <td key={i}>{fact.better === i ? <b>{fact.values[i]}</b> : fact.values[i]}</td>
            ))}
          </tr>
        ))}
      </tbody>
    </table>
  );
}
