/** View 2, space and time: a lifeline a rank, each message a parallelogram, on one of three clocks. */

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import type { Clock, Entry } from "../document";
import { Picture, Twin } from "../picture";
import { inStudio, measure, replayOf } from "../source";
import { go, state } from "../state";
import { percent, plural, seconds } from "../words";
import { drawCrowd, drawLifelines, LIFELINES } from "./lifelines";
import { clocksOf, happening, type Happening, type Transfer } from "./transfers";

const drawn = new WeakMap<Entry, Map<Clock, Happening>>();

/** Kept, since it does not change from step to step. */
export function happeningOf(entry: Entry, clock: Clock): Happening {
  let known = drawn.get(entry);
  if (!known) drawn.set(entry, (known = new Map()));
  let found = known.get(clock);
  if (!found) known.set(clock, (found = happening(entry, replayOf(entry), clock)));
  return found;
}

export function Time(props: { entry: Entry; step: number }): JSX.Element {
  const { entry, step } = props;
  const what = happeningOf(entry, state.value.clock);
  const replay = replayOf(entry);
  const total = what.clock === "steps" ? plural(replay.steps, "step") : seconds(what.duration);
  const idle = what.idle.reduce((sum, one) => sum + one.end - one.start, 0) / (what.duration * replay.ranks || 1);
  const critical = what.transfers.filter((one) => one.critical);
  const lines = [
    `${plural(replay.ranks, "rank")} over ${total}; ranks are idle for ${percent(idle)} of the time.`,
    ...(critical.length ? [`The critical path goes ${pathInWords(critical)}.`] : []),
    step
      ? `Step ${step - 1} is done at ${what.clock === "steps" ? step : seconds(what.doneAt[step])}.`
      : "Nothing has been sent yet.",
  ];
  const crowd = replay.ranks > LIFELINES;
  return (
    <>
      <Clocks entry={entry} shown={what.clock} />
      <Picture
        name="time"
        label={`Space and time: ${lines[0]}`}
        least={Math.min(760, 12 * replay.steps)}
        draw={(width) =>
          crowd ? drawCrowd(what, replay.ranks, step, width) : drawLifelines(what, replay.ranks, step, width)
        }
      />
      <p class="legend">
        {!crowd && what.clock !== "measured" && (
          <>
            <span>
              <i class="slant reduce" /> to be combined
            </span>
            <span>
              <i class="slant copy" /> copied
            </span>
            <span>
              <i class="swatch combine" /> combining
            </span>
          </>
        )}
        {!crowd && what.clock === "measured" && (
          <>
            <span>
              <i class="swatch combine" /> combining
            </span>
            <span>
              <i class="swatch copying" /> copying
            </span>
            <span>
              <i class="line pull" /> from another rank's memory
            </span>
          </>
        )}
        {!crowd && critical.length > 0 && (
          <span>
            <i class="swatch critical" /> critical path
          </span>
        )}
        <span>
          {!crowd && <i class="swatch hatched" />} {what.clock === "measured" ? "waiting" : "idle"}, {percent(idle)}
        </span>
      </p>
      <Twin lines={lines} />
    </>
  );
}

function Clocks(props: { entry: Entry; shown: Clock }): JSX.Element {
  const there = clocksOf(props.entry);
  const [busy, setBusy] = useState(false);
  const [failed, setFailed] = useState<string | null>(null);
  const take = async (): Promise<void> => {
    setBusy(true);
    setFailed(null);
    try {
      await measure();
      go({ clock: "measured" });
    } catch (error) {
      setFailed(error instanceof Error ? error.message : String(error));
    }
    setBusy(false);
  };
  return (
    <div class="clocks" role="radiogroup" aria-label="Clock">
      {(["steps", "modelled", "measured"] as Clock[]).map((clock) => (
        <button
          key={clock}
          type="button"
          role="radio"
          aria-checked={props.shown === clock}
          disabled={!there.includes(clock)}
          title={
            there.includes(clock)
              ? undefined
              : clock === "measured"
                ? "no recording of a real run is here"
                : "not simulated"
          }
          onClick={() => go({ clock })}
        >
          {clock}
        </button>
      ))}
      {inStudio() && (
        <button type="button" class="quiet" disabled={busy} onClick={() => void take()}>
          {busy ? "running …" : "measure now"}
        </button>
      )}
      {failed && <span class="soft">{failed}</span>}
    </div>
  );
}

function pathInWords(critical: Transfer[]): string {
  const hops = [...critical].sort((a, b) => a.end - b.end).map((one) => `${one.source}→${one.destination}`);
  return hops.length > 12
    ? `${hops.slice(0, 6).join(", ")}, …, ${hops.slice(-3).join(", ")} (${hops.length} messages)`
    : hops.join(", ");
}
