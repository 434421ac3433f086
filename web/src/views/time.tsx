/** View 2, space and time: one lifeline per rank, each message a parallelogram, on one of three clocks. */

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import type { Clock, Entry } from "../document";
import { sum } from "../numbers";
import { Key, Picture, Quiet, Twin } from "../picture";
import { remembered } from "../remembered";
import { inStudio, measure, replayOf } from "../source";
import { CLOCKS, go, state } from "../state";
import { ridesOf } from "../trees";
import { messageOf, percent, plural, seconds } from "../words";
import { followedTree } from "./follow";
import { drawCrowd, drawLifelines, LIFELINES } from "./lifelines";
import { clocksOf, happening, type Transfer } from "./transfers";

/** Memoised, since it does not change from step to step. */
export const happeningOf = remembered((entry: Entry, clock: Clock) => happening(entry, replayOf(entry), clock));

export function Time(props: { entry: Entry; step: number }): JSX.Element {
  const { entry, step } = props;
  const what = happeningOf(entry, state.value.clock);
  const replay = replayOf(entry);
  const total = what.clock === "steps" ? plural(replay.steps, "step") : seconds(what.duration);
  const idle = sum(what.idle.map((one) => one.end - one.start)) / (what.duration * replay.ranks || 1);
  const critical = what.transfers.filter((one) => one.critical);
  const lines = [
    `${plural(replay.ranks, "rank")} over ${total}; ranks are idle for ${percent(idle)} of the time.`,
    ...(critical.length ? [`The critical path goes ${pathInWords(critical)}.`] : []),
    step
      ? `Step ${step} is done at ${what.clock === "steps" ? step : seconds(what.doneAt[step])}.`
      : "Nothing has been sent yet.",
  ];
  const crowd = replay.ranks > LIFELINES;
  const tree = followedTree(entry);
  const rides = tree && ridesOf(replay, tree);
  const lit = (one: Transfer): boolean => !rides || rides.has(`${one.step} ${one.source} ${one.destination}`);
  return (
    <>
      <Clocks entry={entry} shown={what.clock} />
      <Picture
        name="time"
        label={`Space and time: ${lines[0]}`}
        least={Math.min(760, 12 * replay.steps)}
        draw={(width) =>
          crowd ? drawCrowd(what, replay.ranks, step, width) : drawLifelines(what, replay.ranks, step, width, lit)
        }
      />
      <p class="legend">
        {!crowd && what.clock !== "measured" && (
          <>
            <Key sign="slant reduce">to be combined</Key>
            <Key sign="slant copy">copied</Key>
            <Key sign="swatch combine">combining</Key>
          </>
        )}
        {!crowd && what.clock === "measured" && (
          <>
            <Key sign="swatch combine">combining</Key>
            <Key sign="swatch copying">copying</Key>
            <Key sign="line pull">from another rank's memory</Key>
          </>
        )}
        {!crowd && critical.length > 0 && <Key sign="swatch critical">critical path</Key>}
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
      setFailed(messageOf(error));
    }
    setBusy(false);
  };
  return (
    <div class="clocks" role="radiogroup" aria-label="Clock">
      {CLOCKS.map((clock) => (
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
        <Quiet disabled={busy} onClick={() => void take()}>
          {busy ? "running …" : "measure now"}
        </Quiet>
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
