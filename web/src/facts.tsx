/** Beside every view: what this step does, whether the schedule is right, and what it sends. */

import type { JSX } from "preact";
import type { Entry } from "./document";
import { changeInWords, changesOf } from "./amounts";
import { Quiet, ShowWhere, Steady } from "./picture";
import { plays } from "./player";
import { remembered } from "./remembered";
import { nameRanks, type Replay } from "./replay";
import { numbersFor, outdated, replayOf } from "./source";
import { pinned } from "./state";
import { sentencesOf, verdictOf } from "./story";
import { canBeNumbers } from "./views/cells";
import { Sending } from "./views/sending";
import { plural, seconds, stepLines, timesS } from "./words";

export function Facts(props: { entry: Entry; step: number; moving: boolean }): JSX.Element {
  const { entry, step } = props;
  const replay = replayOf(entry);
  const { right, all } = replay.progress(replay.at(props.moving ? step - 1 : step));
  const moves = replay.moves(step - 1).length;
  const sentences = sentencesOf(entry);
  return (
    <aside class="facts">
      {pinned.value && (
        <p class="pinned">
          {pinned.value.ranks?.length ? `${nameRanks(pinned.value.ranks)} ` : ""}
          {pinned.value.chunk !== undefined && `chunk ${pinned.value.chunk} `}
          {pinned.value.link !== undefined && `${pinned.value.link} `}
          {pinned.value.links && `${plural(pinned.value.links.length, "link")} `}
          selected
          <Quiet onClick={() => (pinned.value = null)} aria-label="Clear the selection">
            ×
          </Quiet>
        </p>
      )}
      {plays.value === "steps" && (
        <section>
          <h3>
            {step === 0 ? "At the start" : `Step ${step} of ${replay.steps}`}
            {step > 0 && <small>{plural(moves, "move")}</small>}
          </h3>
          <Sending entry={entry} step={step} moving={props.moving} />
          {sentences.told.length > 0 && (
            <Steady
              class="sentence"
              texts={sentences.told.map((one) => (
                <>
                  {entry.phases.length > 1 && <b>{one.phase.name}: </b>}
                  {one.sentence}
                </>
              ))}
              at={sentences.at(step)}
            />
          )}
          <ul class="moves" tabIndex={0} style={{ "--lines": Math.min(MOST_LINES, busiest(replay)) }}>
            {(canBeNumbers(replay) ? changeLines(replay, step) : stepLines(replay, step)).map((line) => (
              <li key={line}>{line}</li>
            ))}
          </ul>
          <p class="progress" style={{ "--done": `${all ? (100 * right) / all : 100}%` }}>
            <b>{right}</b> of {plural(all, "cell")} as promised
          </p>
        </section>
      )}
      <Verdict entry={entry} step={step} />
      <Counted entry={entry} />
    </aside>
  );
}

/** The list scrolls beyond this many lines; it has room for the busiest step, so that what is below it does not jump. */
const MOST_LINES = 8;
const busiest = remembered((replay: Replay) => Math.max(1, ...replay.schedule.steps.map((step) => step.length)));

/** The numbers that a step moves, and what they make. */
function changeLines(replay: Replay, step: number): string[] {
  if (step === 0) return stepLines(replay, step);
  const { numbers } = numbersFor(replay);
  return changesOf(numbers, replay, step).map((one) => changeInWords(replay, one));
}

function Verdict(props: { entry: Entry; step: number }): JSX.Element {
  const { proof } = props.entry;
  if (outdated.value) {
    return (
      <section class="verdict">
        <h3>{outdated.value === "being proved" ? "Proving …" : "Not proved"}</h3>
        <p>
          {outdated.value === "being proved"
            ? "The code has been edited."
            : "The edited code does not run. The picture shows the schedule before the edit."}
        </p>
      </section>
    );
  }
  return (
    <section class={proof.ok ? "verdict ok" : "verdict not"}>
      <h3>{proof.ok ? "Proved" : "Wrong"}</h3>
      <p>{verdictOf(replayOf(props.entry), proof)}</p>
      {proof.facts.length > 0 && (
        <ul>
          {proof.facts.map((fact) => (
            <li key={fact}>{fact}</li>
          ))}
        </ul>
      )}
      <ShowWhere proof={proof} step={props.step} />
    </section>
  );
}

function Counted(props: { entry: Entry }): JSX.Element {
  const { counts, bounds, modelled, timeline } = props.entry;
  const rows: [string, string, string][] = [
    ["steps", String(counts.steps), ""],
    ["rounds", String(counts.rounds), String(bounds.rounds)],
    ["messages", String(counts.messages), String(bounds.messages)],
    ["bytes in all", timesS(counts.bytes), timesS(bounds.bytes)],
    ["busiest port", timesS(counts.busiest_port_bytes), timesS(bounds.busiest_port_bytes)],
  ];
  if (modelled) {
    const cut = modelled.segments > 1 ? ` in ${modelled.segments} segments` : "";
    rows.push([`planned time${cut}`, seconds(modelled.seconds), seconds(modelled.least)]);
  }
  if (timeline) rows.push(["simulated in one segment", seconds(timeline.duration), ""]);
  return (
    <section>
      <h3>What it takes</h3>
      <table class="counts">
        <thead>
          <tr>
            <th />
            <th>counted</th>
            <th>at least</th>
          </tr>
        </thead>
        <tbody>
          {rows.map(([what, is, least]) => (
            <tr key={what}>
              <th scope="row">{what}</th>
              <td>{is}</td>
              <td class="soft">{least}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}
