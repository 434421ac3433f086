/** The exercises: the learner's code beside the picture of what it does, and what the check says. */

import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import type { Entry } from "../document";
import { Quiet } from "../picture";
import { inBrowser, request, Refusal, rooted } from "../source";
import { Field, Old } from "../views/code";
import { messageOf } from "../words";
import { codeBegins, type Exercise, type Lesson, type Verdict } from "./data";
import type { Desk } from "./desk";
import { Film } from "./film";
import { Code, Rows } from "./text";

export function Exercises(props: { lesson: Lesson; desk: Desk }): JSX.Element {
  const { lesson, desk } = props;
  const work = desk.work.value!;
  const [chosen, choose] = useState(lesson.exercises[0].function);
  const exercise = lesson.exercises.find((one) => one.function === chosen)!;
  const [ranks, setRanks] = useState(4);
  const failed = desk.verdict.value?.exercises.find((one) => !one.passed);
  useEffect(() => {
    // The picture shows what went wrong, with the number of ranks for which it did.
    if (failed) choose(failed.function);
    if (failed?.ranks) setRanks(failed.ranks);
  }, [desk.verdict.value]);
  return (
    <section class="exercises" aria-label="Exercises">
      <h2>Then write it</h2>
      <ol class="tasks">
        {lesson.exercises.map((one) => (
          <li key={one.function}>
            <button type="button" aria-pressed={one.function === chosen} onClick={() => choose(one.function)}>
              <i>{work.progress.solved.includes(one.function) ? "✓" : ""}</i>
              <code>{one.function}</code>
            </button>
            <span>
              {one.task}
              {one.between_ranks && inBrowser() && (
                <em class="elsewhere">
                  {" "}
                  This one is run between ranks, which a browser cannot do: <code>pip install allfold</code>, then{" "}
                  <code>allfold learn check {lesson.number}</code>.
                </em>
              )}
            </span>
          </li>
        ))}
      </ol>
      <div class="desk">
        <div class="write">
          <Editor desk={desk} />
          <Buttons desk={desk} lesson={lesson} />
          <Found desk={desk} lesson={lesson} />
        </div>
        <div class="watch">
          {exercise.collective === null ? (
            <p class="note">
              {exercise.function} is a program, not a schedule, so there is no picture of it. The check runs it.
            </p>
          ) : (
            <Live
              key={exercise.function}
              exercise={exercise}
              collective={exercise.collective}
              text={desk.text}
              file={`${lesson.name}.py`}
              ranks={ranks}
              root={failed?.function === chosen ? failed.root : null}
              onRanks={setRanks}
            />
          )}
        </div>
      </div>
    </section>
  );
}

function Editor(props: { desk: Desk }): JSX.Element {
  const { desk } = props;
  const text = desk.text;
  const verdict = desk.verdict.value;
  const wrong = verdict?.line ?? verdict?.exercises.find((one) => !one.passed)?.line ?? null;
  const cut = codeBegins(text);
  const before = text.slice(0, cut).split("\n").length;
  // A line above the code may be the one that is wrong: then all is shown.
  const whole = cut === 0 || (wrong !== null && wrong < before);
  const [head, code, first] = whole ? ["", text, 1] : [text.slice(0, cut), text.slice(cut), before];
  const state = desk.conflict.value ? "not saved" : desk.draft.value === null ? "saved" : "…";
  return (
    <figure class="listing">
      <figcaption>
        {desk.work.value!.file}
        <span class="save" role="status">
          {state}
        </span>
      </figcaption>
      <Field
        text={code}
        first={first}
        lit={new Set()}
        wrong={wrong}
        label="Your code"
        onText={(changed) => desk.type(head + changed)}
        onEnter={() => void desk.act("check", "checking")}
      />
      {desk.conflict.value && (
        <p class="alarm" role="alert">
          The file was changed elsewhere while you were typing.
          <button type="button" onClick={() => desk.keep(false)}>
            Use the file’s text
          </button>
          <button type="button" onClick={() => desk.keep(true)}>
            Keep mine
          </button>
        </p>
      )}
    </figure>
  );
}

function Buttons(props: { desk: Desk; lesson: Lesson }): JSX.Element {
  const { desk } = props;
  const [sure, setSure] = useState(false);
  const busy = desk.busy.value !== null || desk.conflict.value;
  const reset = async (): Promise<void> => {
    setSure(false);
    await desk.act("reset", "resetting");
  };
  return (
    <div class="acts">
      <button type="button" class="main" disabled={busy} onClick={() => void desk.act("check", "checking")}>
        {desk.busy.value === "checking" ? "checking …" : "Check"}
      </button>
      <button type="button" disabled={busy} onClick={() => void desk.act("hint", "hinting")}>
        Hint
      </button>
      {desk.solution.value === null ? (
        <button type="button" disabled={busy} onClick={() => void desk.act("solution", "looking")}>
          Solution
        </button>
      ) : (
        <button type="button" onClick={() => (desk.solution.value = null)}>
          Hide the solution
        </button>
      )}
      {sure ? (
        <span class="sure">
          Go back to the original file and clear your progress in this lesson? Your file is kept under another name.
          <button type="button" disabled={busy} onClick={() => void reset()}>
            Yes, reset
          </button>
          <Quiet onClick={() => setSure(false)}>no</Quiet>
        </span>
      ) : (
        <button type="button" disabled={busy} onClick={() => setSure(true)}>
          Reset
        </button>
      )}
    </div>
  );
}

/** What the check found, the hints that were taken, and the solution. */
function Found(props: { desk: Desk; lesson: Lesson }): JSX.Element {
  const { desk, lesson } = props;
  const { hints, progress } = desk.work.value!;
  const open = hints.filter((one) => !progress.solved.includes(one.function));
  return (
    <div class="found" aria-live="polite">
      {desk.trouble.value && (
        <p class="alarm" role="alert">
          {desk.trouble.value}
        </p>
      )}
      {desk.says.value && <p class="notice">{desk.says.value}</p>}
      {desk.verdict.value && <Judgement verdict={desk.verdict.value} lesson={lesson} />}
      {open.map((one) => (
        <p key={one.say} class="hint">
          <b>
            Hint for <code>{one.function}</code>:
          </b>{" "}
          <Ticked text={one.say} />
        </p>
      ))}
      {desk.solution.value !== null && (
        <div class="solution">
          <h3>One solution</h3>
          <Code language="python" text={desk.solution.value} />
        </div>
      )}
    </div>
  );
}

function Judgement(props: { verdict: Verdict; lesson: Lesson }): JSX.Element {
  const { verdict } = props;
  const waiting = verdict.predictions.filter((one) => one.answer == null).length;
  return (
    <div class="judgement">
      {verdict.printed && (
        <>
          <p class="soft">Your file printed</p>
          <pre class="plain">{verdict.printed}</pre>
        </>
      )}
      {verdict.error !== null && (
        <p class="alarm" role="alert">
          ✗ {verdict.line !== null && `line ${verdict.line}: `}
          {verdict.error}
        </p>
      )}
      {verdict.exercises.map((one) => (
        <p key={one.function} class={one.passed ? "good" : "alarm"} role={one.passed ? undefined : "alert"}>
          {one.passed ? `✓ ${one.function}: ${one.message}` : `✗ ${one.message}`}
        </p>
      ))}
      {verdict.error === null && waiting > 0 && (
        <p class="notice">
          {waiting === 1 ? "One prediction is" : `${waiting} predictions are`} still to be made, above. Then the lesson
          can be passed.
        </p>
      )}
      {verdict.exercises.map(
        (one) =>
          one.run && (
            <div key={one.function} class="ran">
              <p>{one.run[1].length ? `${one.run[0]}:` : one.run[0]}</p>
              {one.run[1].length > 0 && <Rows rows={one.run[1]} />}
            </div>
          ),
      )}
    </div>
  );
}

/** A sentence with `code` in it. */
function Ticked(props: { text: string }): JSX.Element {
  return <>{props.text.split("`").map((part, i) => (i % 2 ? <code key={i}>{part}</code> : part))}</>;
}

const PAUSE = 250; // milliseconds without a key press before the picture is drawn again
const MOST = 17; // ranks: as many as the check tries

/** What the code does with some ranks, as far as it is right. The same prover as for the check says so. */
function Live(props: {
  exercise: Exercise;
  collective: string;
  text: string;
  file: string;
  ranks: number;
  root: number | null;
  onRanks: (ranks: number) => void;
}): JSX.Element {
  const { exercise, collective, text, file, ranks } = props;
  const root = rooted(collective) ? Math.min(props.root ?? 0, ranks - 1) : null;
  const [made, setMade] = useState<{ entry?: Entry; refusal?: string; of: string } | null>(null);
  const of = JSON.stringify([text, ranks, root]);
  useEffect(() => {
    let wanted = true;
    const draw = async (): Promise<void> => {
      const question = { collective, algorithm: exercise.function, ranks, root, code: text, file };
      try {
        const entry = await request<Entry>("/api/edit", { ...question, topology: "none", size: 1 << 20 });
        if (wanted) setMade({ entry, of });
      } catch (error) {
        const line = error instanceof Refusal && error.line !== null ? `line ${error.line}: ` : "";
        if (wanted) setMade((old) => ({ refusal: line + messageOf(error), entry: old?.entry, of }));
      }
    };
    const timer = setTimeout(() => void draw(), PAUSE);
    return () => {
      wanted = false;
      clearTimeout(timer);
    };
  }, [of]);
  const entry = made?.entry;
  const old = made !== null && (made.of !== of || made.refusal !== undefined);
  return (
    <div class="live" aria-busy={made?.of !== of}>
      <label class="ranks">
        {exercise.function} with
        <select value={String(ranks)} onChange={(event) => props.onRanks(Number(event.currentTarget.value))}>
          {Array.from({ length: MOST }, (_, i) => (
            <option key={i} value={String(i + 1)}>
              {i + 1}
            </option>
          ))}
        </select>
        {ranks === 1 ? "rank" : "ranks"}
      </label>
      {entry &&
        (old ? (
          <Old>
            <Film key={entry.key} entry={entry} begin={begin(entry)} quiet />
          </Old>
        ) : (
          <Film key={of} entry={entry} begin={begin(entry)} />
        ))}
      {made?.of !== of ? (
        <p class="note">Drawing …</p>
      ) : made.refusal !== undefined ? (
        <p class="alarm" role="alert">
          Nothing to draw: {made.refusal}
        </p>
      ) : (
        entry?.proof.ok && (
          <p class="good">
            {entry.proof.message} The check also tries other numbers of ranks, and the goals of the task.
          </p>
        )
      )}
    </div>
  );
}

/** A wrong schedule is shown where it goes wrong. */
const begin = (entry: Entry): number =>
  entry.proof.ok ? 0 : Math.min((entry.proof.step ?? 0) + 1, entry.schedule.steps.length);
