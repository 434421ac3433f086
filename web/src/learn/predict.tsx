/** Predictions: a number to commit to before the answer is shown. It is written into the learner's file. */

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { numberIn, type Lesson, type Predicted } from "./data";
import type { Desk } from "./desk";

export function Predictions(props: { lesson: Lesson; desk: Desk }): JSX.Element {
  const { desk, lesson } = props;
  const found = desk.work.value!.predictions ?? [];
  const first = desk.work.value!.progress.predicted;
  return (
    <section class="predictions" aria-label="Predictions">
      <h2>Predict first</h2>
      <p class="soft">Think, then commit to a number; a wrong one costs nothing. Then the answer is computed.</p>
      <ol>
        {lesson.predictions.map(({ name, question }) => {
          const typed = found.find((one) => one.name === name);
          // What is not written as a plain number is known when the file has run.
          const ran = desk.verdict.value?.predictions.find((one) => one.name === name);
          const shown = typed?.given == null && ran ? ran : typed;
          return (
            <li key={name}>
              <Prediction question={question} found={shown} first={first[name]} desk={desk} name={name} />
            </li>
          );
        })}
      </ol>
    </section>
  );
}

function Prediction(props: {
  name: string;
  question: string;
  found: Predicted | undefined;
  first: boolean | undefined;
  desk: Desk;
}): JSX.Element {
  const { name, question, found, desk } = props;
  const [typed, setTyped] = useState<string | null>(null);
  const [refused, setRefused] = useState(false);
  const value = typed ?? found?.given ?? "";
  const commit = async (): Promise<void> => {
    const number = numberIn(value);
    setRefused(number === null);
    if (number === null) return;
    await desk.act("predict", "judging", { name, number });
    setTyped(null);
  };
  const judged = found?.answer != null;
  return (
    <form
      class="prediction"
      data-name={name}
      data-right={judged ? String(found.right) : undefined}
      onSubmit={(event) => {
        event.preventDefault();
        void commit();
      }}
    >
      <label for={`predict-${name}`}>{question}</label>
      <input
        id={`predict-${name}`}
        type="text"
        inputMode="decimal"
        autocomplete="off"
        value={value}
        onInput={(event) => setTyped(event.currentTarget.value)}
      />
      <button type="submit" disabled={value.trim() === "" || (judged && typed === null) || desk.busy.value !== null}>
        commit
      </button>
      {refused && (
        <p class="alarm" role="alert">
          “{value}” is not a number. Write 14, 1.75 or 7/4.
        </p>
      )}
      {judged && (
        <p class={found.right ? "answer right" : "answer"} role="status">
          <b>{found.right ? `✓ ${found.answer}, as you said.` : `≠ You said ${found.given}; it is ${found.answer}.`}</b>{" "}
          {found.because}
          {found.right && props.first === false && " Your first number was different, and that one counts."}
        </p>
      )}
    </form>
  );
}
