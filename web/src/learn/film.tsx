/** A schedule in a text, with a player of its own: several of them can stand on one page. */

import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import type { Entry } from "../document";
import { stillMotion } from "../player";
import { replayOf } from "../source";
import { opening, phaseAt, verdictOf } from "../story";
import { Holds } from "../views/holds";
import { Sending } from "../views/sending";
import { plural, stepSentence } from "../words";

const STEP = 1100; // milliseconds

/** `quiet`: without its verdict. `plays`: at once, or without motion at its end. */
export function Film(props: {
  entry: Entry;
  titled?: boolean;
  begin?: number;
  quiet?: boolean;
  plays?: boolean;
}): JSX.Element {
  const { entry } = props;
  const replay = replayOf(entry);
  const ends = props.plays && stillMotion();
  const [at, setAt] = useState(ends ? replay.steps : (props.begin ?? 0));
  const [playing, setPlaying] = useState(props.plays === true && !ends);
  const step = Math.min(at, replay.steps);
  useEffect(() => {
    if (!playing) return;
    if (step >= replay.steps) return setPlaying(false);
    const timer = setTimeout(() => setAt(step + 1), STEP);
    return () => clearTimeout(timer);
  }, [playing, step, replay]);
  const go = (to: number): void => {
    setPlaying(false);
    setAt(Math.max(0, Math.min(replay.steps, to)));
  };
  const play = (): void => {
    if (!playing && step >= replay.steps) setAt(0);
    setPlaying(!playing);
  };
  const { collective, algorithm, ranks } = entry.schedule;
  const now = phaseAt(entry, step);
  return (
    <figure class="film" data-step={step}>
      {props.titled && (
        <figcaption>
          {collective} by <b>{algorithm}</b>, {plural(ranks, "rank")}
        </figcaption>
      )}
      <div class="scene">
        <div>
          <Holds entry={entry} step={step} compact />
        </div>
        <div>
          <Sending entry={entry} step={step} />
        </div>
      </div>
      <p class="tells" aria-live={playing ? "off" : "polite"}>
        {step === 0 ? opening(entry) || "No step has been made yet." : (now?.sentence ?? stepSentence(replay, step))}
      </p>
      <div class="player" role="group" aria-label={`Player of ${algorithm}`}>
        <button type="button" onClick={() => go(step - 1)} disabled={step === 0} aria-label="One step back">
          ‹
        </button>
        <button type="button" onClick={play} aria-label={playing ? "Pause" : "Play"}>
          {playing ? "❚❚" : "▶"}
        </button>
        <button
          type="button"
          onClick={() => go(step + 1)}
          disabled={step >= replay.steps}
          aria-label="One step forward"
        >
          ›
        </button>
        <input
          type="range"
          min={0}
          max={Math.max(1, replay.steps)}
          value={step}
          aria-label="Step"
          onInput={(event) => go(Number(event.currentTarget.value))}
        />
        <output>{step === 0 ? "start" : `step ${step} of ${replay.steps}`}</output>
      </div>
      {!entry.proof.ok && !props.quiet && (
        <p class="alarm" role="alert">
          {verdictOf(replay, entry.proof)}
        </p>
      )}
    </figure>
  );
}
