/** The course in the studio: the list of lessons, or one of them. */

import type { ComponentChildren, JSX } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { Starting } from "../site/front";
import { inBrowser, request } from "../source";
import { ThemeButton, useTheme } from "../theme";
import { messageOf } from "../words";
import type { Lesson, LessonList, Listed } from "./data";
import { Desk } from "./desk";
import { Exercises } from "./exercises";
import { Explore } from "./explore";
import { lessonHash } from "./place";
import { Predictions } from "./predict";
import { Text } from "./text";
import "./learn.css";

export function Learn(props: { place: string }): JSX.Element {
  useTheme();
  const pane = useRef<HTMLDivElement>(null);
  useEffect(() => void pane.current?.scrollTo(0, 0), [props.place]);
  return (
    <div class="shell">
      <div class="pane" ref={pane}>
        <div class="page course">{props.place === "" ? <List /> : <One key={props.place} name={props.place} />}</div>
      </div>
    </div>
  );
}

/** What the studio answers to a question, or the sentence why not. */
function useAnswer<T>(path: string): { answer: T | null; error: string | null } {
  const [found, setFound] = useState<{ answer: T | null; error: string | null }>({ answer: null, error: null });
  useEffect(() => {
    let wanted = true;
    request<T>(path).then(
      (answer) => wanted && setFound({ answer, error: null }),
      (error) => wanted && setFound({ answer: null, error: messageOf(error) }),
    );
    return () => void (wanted = false);
  }, [path]);
  return found;
}

function Top(props: { title: string; children?: ComponentChildren }): JSX.Element {
  return (
    <header class="top">
      <span class="name">allfold</span>
      <h1>{props.title}</h1>
      {props.children}
      <span class="tools">
        <a href="#view=holds">all algorithms</a>
        <ThemeButton />
      </span>
    </header>
  );
}

function Alarm(props: { text: string }): JSX.Element {
  return (
    <p class="alarm" role="alert">
      {props.text}
    </p>
  );
}

function List(): JSX.Element {
  const { answer, error } = useAnswer<LessonList>("/api/lessons");
  return (
    <>
      <Top title="Lessons" />
      <p class="intro">
        A course on collective communication, for people who know Python and have never heard of MPI. A lesson is a
        short text with pictures, predictions to commit to, and code that is proved, not just tested.
      </p>
      {error && <Alarm text={error} />}
      {answer && (
        <>
          <ol class="lessons">
            {answer.lessons.map((one) => (
              <li key={one.name} class={one.passed ? "passed" : one.name === answer.current ? "current" : ""}>
                <a href={lessonHash(one.name)}>
                  <span class="number">{one.passed ? "✓" : one.number}</span>
                  <b>{one.title}</b>
                  <span class="about">{one.about}</span>
                  <span class="state">{stateOf(one)}</span>
                </a>
              </li>
            ))}
          </ol>
          <p class="note">
            {inBrowser() ? (
              <>
                Your code and your progress stay in this browser. With allfold installed (
                <code>pip install allfold</code>
                ), <code>allfold learn</code> has the same lessons, and also runs what you write between processes.
              </>
            ) : (
              <>
                Your files and your progress are in {answer.folder}. <code>allfold learn</code> in a terminal shows the
                same lessons, with the same files.
              </>
            )}
          </p>
        </>
      )}
    </>
  );
}

function stateOf(one: Listed): string {
  if (one.passed) return `passed, ${one.predicted} of ${one.predictions} predicted`;
  if (one.started) return `${one.solved} of ${one.exercises} solved`;
  return `${one.minutes} minutes`;
}

function One(props: { name: string }): JSX.Element {
  const { answer: lesson, error } = useAnswer<Lesson>(`/api/lesson?${new URLSearchParams({ name: props.name })}`);
  const desk = useMemo(() => new Desk(props.name), [props.name]);
  useEffect(() => desk.open(), [desk]);
  if (!lesson) {
    return (
      <>
        <Top title="Lessons">
          <a href="#lessons">all lessons</a>
        </Top>
        {error && <Alarm text={error} />}
      </>
    );
  }
  const work = desk.work.value;
  return (
    <>
      <Top title={`${lesson.number}. ${lesson.title}`}>
        <a href="#lessons">all lessons</a>
        {work && <span class="soft">{soFar(lesson, desk)}</span>}
      </Top>
      <Starting />
      <main class="lesson">
        <div class="read">
          <Text blocks={lesson.blocks} />
          <Words lesson={lesson} />
        </div>
        <aside class="aside">
          {work === null ? (
            desk.trouble.value && <Alarm text={desk.trouble.value} />
          ) : work.started ? (
            <Predictions lesson={lesson} desk={desk} />
          ) : (
            <Start lesson={lesson} desk={desk} />
          )}
          <Explore of={lesson.explore} title="Change it yourself" />
        </aside>
        {work?.started && <Exercises key={lesson.name} lesson={lesson} desk={desk} />}
        {work?.after && <After lesson={lesson} desk={desk} />}
      </main>
    </>
  );
}

function soFar(lesson: Lesson, desk: Desk): string {
  const { progress, started } = desk.work.value!;
  if (progress.passed) return "passed";
  if (!started) return `${lesson.minutes} minutes`;
  const predicted = Object.keys(progress.predicted).length;
  return `${predicted} of ${lesson.predictions.length} predicted, ${progress.solved.length} of ${lesson.exercises.length} solved`;
}

function Start(props: { lesson: Lesson; desk: Desk }): JSX.Element {
  const { lesson, desk } = props;
  const file = desk.work.value!.file;
  return (
    <section class="start" aria-label="Start">
      <h2>{lesson.minutes} minutes</h2>
      <p>
        Read, predict {lesson.predictions.length} numbers, and write{" "}
        {lesson.exercises.map((one, i) => (
          <span key={one.function}>
            {i > 0 && (i === lesson.exercises.length - 1 ? " and " : ", ")}
            <code>{one.function}</code>
          </span>
        ))}
        .
      </p>
      <button type="button" class="main" onClick={() => void desk.act("start", "starting")}>
        Start
      </button>
      <p class="soft">
        {inBrowser() ? (
          "Your code stays in this browser. Python is loaded when you write or check for the first time."
        ) : (
          <>
            This writes {file}, a plain Python file that you can also open in your own editor. In a terminal:{" "}
            <code>allfold learn check {lesson.number}</code>
          </>
        )}
      </p>
      {desk.trouble.value && <Alarm text={desk.trouble.value} />}
    </section>
  );
}

function Words(props: { lesson: Lesson }): JSX.Element {
  return (
    <details class="words">
      <summary>All words so far</summary>
      <dl>
        {props.lesson.words.map((one) => (
          <div key={one.word}>
            <dt>{one.word}</dt>
            <dd>{one.meaning}</dd>
          </div>
        ))}
      </dl>
    </details>
  );
}

function After(props: { lesson: Lesson; desk: Desk }): JSX.Element {
  const { lesson, desk } = props;
  return (
    <section class="after" aria-label="Afterwards">
      <p class="good" role="status">
        Lesson {lesson.number} is passed.
      </p>
      {desk.verdict.value?.exercises.map(
        (one) =>
          one.race && (
            <div key={one.function} class="built">
              <Explore of={one.race} title="What you built:" own={one.function} races />
            </div>
          ),
      )}
      <Text blocks={desk.work.value!.after!} />
      {lesson.next ? (
        <p class="next">
          <a class="main" href={lessonHash(lesson.next.name)}>
            Next: {lesson.next.title}
          </a>
          <span class="soft">{lesson.next.about}</span>
        </p>
      ) : (
        <p class="next">
          That was the last lesson. <a href="#view=holds">All algorithms</a> are there for you to explore and change.
        </p>
      )}
    </section>
  );
}
