/** Space and time: one lifeline per rank, each message a line, on one of three clocks. */

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import type { Clock, Entry } from "../document";
import { Key, Quiet, Twin } from "../picture";
import { remembered } from "../remembered";
import { inBrowser, inStudio, measure, replayOf } from "../source";
import { CLOCKS, go, state } from "../state";
import { messageOf, percent, plural, seconds } from "../words";
import { Follow } from "./follow";
import { idleShare } from "./lanes";
import { SpaceTime } from "./spacetime";
import { clocksOf, happening, type Happening, type Transfer } from "./transfers";
import type { View } from "./view";

export const view: View = {
  name: "time",
  title: "Space and time",
  summary: "every message between two ranks, on one of three clocks",
  key: "2",
  draw: Time,
  needs: ["schedule", "timeline"],
  plays: "steps",
  keys: [{ key: "+ − 0", says: "zoom in, zoom out, fit; up and down choose a message" }],
};

/** Memoised, since it does not change from step to step. */
export const happeningOf = remembered((entry: Entry, clock: Clock) => happening(entry, replayOf(entry), clock));

const summaryOf = remembered((what: Happening, ranks: number) => ({
  idle: idleShare(what, ranks),
  critical: what.transfers.filter((one) => one.critical),
}));

function Time(props: { entry: Entry; step: number; moving?: boolean }): JSX.Element {
  const { entry, step } = props;
  const what = happeningOf(entry, state.value.clock);
  const replay = replayOf(entry);
  const measured = what.clock === "measured";
  const total = what.clock === "steps" ? plural(replay.steps, "step") : seconds(what.duration);
  const { idle, critical } = summaryOf(what, replay.ranks);
  const lines = [
    `${plural(replay.ranks, "rank")} over ${total}; ranks are idle for ${percent(idle)} of the time.`,
    ...(critical.length ? [`The critical path goes ${pathInWords(critical)}.`] : []),
    step
      ? `Step ${step} is done at ${what.clock === "steps" ? step : seconds(what.doneAt[step])}.`
      : "Nothing has been sent yet.",
  ];
  return (
    <>
      <Clocks entry={entry} shown={what.clock} />
      <SpaceTime
        key={`${entry.key} ${what.clock}`}
        entry={entry}
        what={what}
        step={step}
        moving={props.moving ?? false}
        label={`Space and time: ${lines[0]}`}
      />
      <p class="legend">
        <Key sign="line reduce">{measured ? "read and added" : "a message, added on arrival"}</Key>
        <Key sign="line copy">{measured ? "read and copied" : "a message, copied"}</Key>
        {critical.length > 0 && <Key sign="line critical">critical path</Key>}
        <Key sign="swatch combine">{measured ? "adding" : "combining"}</Key>
        {measured && <Key sign="swatch copying">copying</Key>}
        <Key sign="swatch idle">
          {measured ? "waiting" : "idle"}, {percent(idle)}
        </Key>
        {new Set(entry.topology?.host).size > 1 && <Key sign="line border">between hosts</Key>}
      </p>
      <Follow entry={entry} />
      <Twin lines={lines} />
    </>
  );
}

/** Why a clock cannot be chosen, and what to do about it. */
const WHY_NOT: Record<Clock, (entry: Entry) => string> = {
  steps: () => "",
  modelled: (entry) =>
    entry.proof.ok
      ? `Not simulated: ${entry.topology ? "it has too many messages" : "no topology was given"}.`
      : "Not simulated, because the schedule is wrong.",
  measured: () =>
    inStudio() && !inBrowser()
      ? "Not measured yet: “measure now” runs it here."
      : "Not measured: allfold show … --measure --html FILE includes a recording.",
};

function Clocks(props: { entry: Entry; shown: Clock }): JSX.Element {
  const there = clocksOf(props.entry);
  const missing = CLOCKS.filter((clock) => !there.includes(clock)).map((clock) => WHY_NOT[clock](props.entry));
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
          onClick={() => go({ clock })}
        >
          {clock}
        </button>
      ))}
      {inStudio() && !inBrowser() && (
        <Quiet disabled={busy} onClick={() => void take()}>
          {busy ? "running …" : "measure now"}
        </Quiet>
      )}
      {failed && <span class="soft">{failed}</span>}
      {missing.length > 0 && <p class="missing">{missing.join(" ")}</p>}
    </div>
  );
}

function pathInWords(critical: Transfer[]): string {
  const hops = [...critical].sort((a, b) => a.end - b.end).map((one) => `${one.source}→${one.destination}`);
  return hops.length > 12
    ? `${hops.slice(0, 6).join(", ")}, …, ${hops.slice(-3).join(", ")} (${hops.length} messages)`
    : hops.join(", ");
}
