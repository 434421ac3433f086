/** Play, pause, step, scrub, speed; in the race the scrubber is the race's clock. */

import type { JSX } from "preact";
import type { Entry, Phase } from "./document";
import {
  fraction,
  jumpTo,
  jumpToEdge,
  pause,
  playing,
  plays,
  raceAt,
  speed,
  SPEEDS,
  stepBy,
  still,
  told,
  toggle,
} from "./player";
import { outdated } from "./source";
import { moment, percent } from "./words";

export function Bar(props: { entry: Entry }): JSX.Element | null {
  if (plays.value === "nothing") return null;
  const racing = plays.value === "race";
  const steps = props.entry.schedule.steps.length;
  const step = Math.min(told.value, steps);
  const off = outdated.value === "does not run"; // there is no schedule to play
  return (
    <footer class="bar" role="group" aria-label="Player">
      <Round off={off} says="To the start" d="M5 4v12M16 4 8 10l8 6z" onClick={() => jumpToEdge(false)} />
      <Round off={off} says="One step back" d="M13 4 6 10l7 6z" onClick={() => stepBy(-1)} />
      {playing.value ? (
        <Round says="Pause" d="M6 4v12M14 4v12" kind="round play" heavy onClick={toggle} />
      ) : (
        <Round off={off} says="Play" d="M6 3.5 16 10 6 16.5z" kind="round play" onClick={toggle} />
      )}
      <Round off={off} says="One step forward" d="M7 4l7 6-7 6z" onClick={() => stepBy(1)} />
      {racing ? (
        <input
          type="range"
          min={0}
          max={1000}
          value={Math.round(raceAt.value * 1000)}
          aria-label="Race time"
          onInput={(event) => {
            pause();
            raceAt.value = Number(event.currentTarget.value) / 1000;
          }}
        />
      ) : (
        <Scrubber entry={props.entry} steps={steps} step={step} off={off} />
      )}
      <output class="where">
        {off ? "–" : racing ? percent(raceAt.value) : step === 0 ? "start" : `step ${step} of ${steps}`}
      </output>
      <label class="speed">
        <span class="unseen">Speed</span>
        <select value={String(speed.value)} onChange={(event) => (speed.value = Number(event.currentTarget.value))}>
          {SPEEDS.map((one) => (
            <option key={one} value={String(one)}>
              {one}×
            </option>
          ))}
        </select>
      </label>
    </footer>
  );
}

/** Its own component, so that a moving thumb redraws nothing else. */
function Scrubber(props: { entry: Entry; steps: number; step: number; off: boolean }): JSX.Element {
  const { steps, step } = props;
  return (
    <div class="scrubber">
      {!props.off && <Phases phases={props.entry.phases} steps={steps} step={step} />}
      <input
        type="range"
        disabled={props.off}
        min={0}
        max={Math.max(1, steps)}
        step="any"
        value={still.value ? step : step - 1 + fraction.value}
        aria-label="Step"
        aria-valuetext={step ? `${moment(step)} of ${steps}` : moment(step)}
        onInput={(event) => jumpTo(Math.round(Number(event.currentTarget.value)))}
        onKeyDown={(event) => {
          // With step="any" the browser's own arrows would move by hundredths.
          const by =
            event.key === "ArrowRight" || event.key === "ArrowUp"
              ? 1
              : event.key === "ArrowLeft" || event.key === "ArrowDown"
                ? -1
                : 0;
          if (!by) return;
          event.preventDefault();
          stepBy(by);
        }}
      />
    </div>
  );
}

/** The parts of the algorithm above the scrubber; a click goes to the first step of one. */
function Phases(props: { phases: Phase[]; steps: number; step: number }): JSX.Element | null {
  const { phases, steps, step } = props;
  if (phases.length < 2 || phases.length > 8) return null;
  return (
    <div class="phases">
      {phases.map((one) => (
        <button
          key={one.first}
          type="button"
          class={step > one.first && step <= one.first + one.steps ? "is" : ""}
          style={{ width: `${(100 * one.steps) / steps}%` }}
          title={`${one.name}: steps ${one.first + 1} to ${one.first + one.steps}`}
          onClick={() => jumpTo(one.first + 1)}
        >
          {one.name}
        </button>
      ))}
    </div>
  );
}

function Round(props: {
  says: string;
  d: string;
  kind?: string;
  heavy?: boolean;
  off?: boolean;
  onClick: () => void;
}): JSX.Element {
  return (
    <button
      type="button"
      class={props.kind ?? "round"}
      disabled={props.off}
      onClick={props.onClick}
      aria-label={props.says}
    >
      <svg viewBox="0 0 20 20" width="18" height="18" aria-hidden="true">
        <path
          d={props.d}
          fill={props.heavy ? "none" : "currentColor"}
          stroke="currentColor"
          stroke-width={props.heavy ? 3.4 : 1.6}
          stroke-linejoin="round"
          stroke-linecap="round"
        />
      </svg>
    </button>
  );
}
