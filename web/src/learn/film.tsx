/** A schedule in a text, with a player of its own: several of them can stand on one page. */

import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { useSignal } from "@preact/signals";
import type { Entry } from "../document";
import { stillMotion } from "../player";
import { replayOf } from "../source";
import { opening, phaseAt, verdictOf } from "../story";
import { Holds } from "../views/holds";
import { Sending } from "../views/sending";
import { plural, stepSentence } from "../words";

const STEP = 1100; // milliseconds, at the end of which it rests
const REST = 250;

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
  /** How far the step is that is under way; 0 while none is. */
  const clock = useSignal(0);
  const [moving, setMoving] = useState(false);
  const frame = useRef(0);
  const done = Math.min(at, replay.steps);
  const step = moving ? done + 1 : done;
  /** Play the step between two states, forwards or backwards. */
  const run = (from: number, by: 1 | -1): void => {
    const start = performance.now();
    setAt(by > 0 ? from : from - 1);
    setMoving(true);
    const tick = (now: number): void => {
      const part = (now - start) / (STEP - REST);
      if (part >= 1) {
        stop();
        setAt(from + by);
        return;
      }
      clock.value = Math.max(1e-3, by > 0 ? part : 1 - part);
      frame.current = requestAnimationFrame(tick);
    };
    clock.value = by > 0 ? 1e-3 : 1;
    frame.current = requestAnimationFrame(tick);
  };
  const stop = (): void => {
    cancelAnimationFrame(frame.current);
    clock.value = 0;
    setMoving(false);
  };
  useEffect(() => stop, []);
  useEffect(() => {
    if (!playing || moving) return;
    if (done >= replay.steps) return setPlaying(false);
    const timer = setTimeout(() => (stillMotion() ? setAt(done + 1) : run(done, 1)), stillMotion() ? STEP : REST);
    return () => clearTimeout(timer);
  }, [playing, moving, done, replay]);
  const go = (to: number): void => {
    setPlaying(false);
    stop();
    const wanted = Math.max(0, Math.min(replay.steps, to));
    if (Math.abs(wanted - done) === 1 && !moving && !stillMotion()) run(done, wanted > done ? 1 : -1);
    else setAt(wanted);
  };
  const play = (): void => {
    if (playing && moving) {
      stop();
      setAt(step);
    } else if (!playing && step >= replay.steps) setAt(0);
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
          <Holds entry={entry} step={step} moving={moving} clock={clock} compact />
        </div>
        <div>
          <Sending entry={entry} step={step} moving={moving} clock={clock} />
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
