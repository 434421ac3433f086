/** Code and picture: the source beside the grid, with the current lines highlighted; editable in the studio. */

import type { ComponentChildren, JSX } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { CodeFile, Entry } from "../document";
import { draft, draftKey } from "../draft";
import { Quiet, ShowWhere } from "../picture";
import { every } from "../numbers";
import { inLines } from "../python";
import { remembered } from "../remembered";
import { word, type Replay } from "../replay";
import { edited, inBrowser, inStudio, outdated, proveEdited, Refusal, replayOf } from "../source";
import { state } from "../state";
import { verdictOf } from "../story";
import { messageOf } from "../words";
import { Holds } from "./holds";
import type { View } from "./view";

export const view: View = {
  name: "code",
  title: "Code and picture",
  summary: "the lines that made the moves of a step",
  key: "6",
  draw: Code,
  needs: ["schedule", "code", "sources", "lines"],
  plays: "steps",
  broad: true,
};

// Milliseconds without a key press before the text is proved: the studio's server starts a process for it, Python in the page
// is there, and of several questions that wait it takes the last.
const PAUSE = { server: 150, page: 20 };

function Code(props: { entry: Entry; step: number; moving?: boolean }): JSX.Element {
  const { entry, step } = props;
  const replay = replayOf(entry);
  const old = outdated.value !== null;
  const lit = old ? NO_LINES : litLines(entry, step);
  const files = [entry.code, ...(entry.also ?? [])].filter((one): one is CodeFile => one !== null);
  const made = [...lit.sites].join(", ");
  return (
    <div class="codeview">
      <div class="codes">
        {inStudio() && entry.code ? (
          <Editor
            key={draftKey()}
            file={entry.code}
            lit={lit.lines(entry.code.file)}
            wrong={old ? null : wrongLine(entry, entry.code.file)}
          />
        ) : (
          files.map((file) => (
            <Listing key={file.file} file={file} lit={lit.lines(file.file)} wrong={wrongLine(entry, file.file)} />
          ))
        )}
        {!files.length && (
          <>
            <Listing file={movesAsLines(replay)} lit={new Set(step ? [step] : [])} wrong={null} />
            <p class="note">
              There is no code: the schedule was found by a search or read from a file. These are its moves, one step
              per line: <code>3:0→1</code> copies chunk 3 of rank 0 to rank 1, <code>+3:0→1</code> adds it there.
            </p>
          </>
        )}
      </div>
      {old ? (
        <div class="beside">
          <Old>
            <Holds entry={entry} step={step} compact />
          </Old>
          <p class="note" role="status">
            {outdated.value === "being proved"
              ? "Proving …"
              : "The code does not run. This is the picture from before the edit."}
          </p>
        </div>
      ) : (
        <div class="beside">
          <Holds entry={entry} step={step} moving={props.moving} compact />
          <p class="note">
            {step === 0
              ? "No step has been made yet."
              : made && files.length
                ? `Step ${step} was made at ${made}.`
                : ""}
            {replay.steps > 0 && step === 0 && " Press play, and the line that makes each step lights up."}
          </p>
          {!entry.proof.ok && (
            <p class="alarm" role="alert">
              {verdictOf(replay, entry.proof)}
              <ShowWhere proof={entry.proof} step={step} />
            </p>
          )}
          {entry.proof.ok && edited.value && <p class="good">{entry.proof.message}</p>}
        </div>
      )}
    </div>
  );
}

/** A picture of the code before the edit: it stays until there is another, so that nothing jumps. */
export function Old(props: { children: ComponentChildren }): JSX.Element {
  return (
    <div class="old" inert>
      {props.children}
    </div>
  );
}

const SHOWN = 64; // moves of a step

/** The schedule itself, where no code made it: line k is step k. */
export const movesAsLines = remembered((replay: Replay): CodeFile => {
  const lines = every(replay.steps).map((step) => {
    const moves = replay.moves(step);
    const more = moves.length > SHOWN ? ` and ${moves.length - SHOWN} more` : "";
    return moves.slice(0, SHOWN).map(word).join("  ") + more;
  });
  return { file: `the steps of ${replay.schedule.algorithm}`, first: 1, text: lines.join("\n") };
});

interface Lit {
  sites: Set<string>;
  lines: (file: string) => Set<number>;
}

const NO_LINES: Lit = { sites: new Set(), lines: () => new Set() };

/** The line of a file that made the move at which the schedule goes wrong. */
function wrongLine(entry: Entry, file: string): number | null {
  const source = entry.proof.ok ? undefined : entry.sources.find((one) => one.site === entry.proof.site);
  return source?.file === file ? source.line : null;
}

/** The lines of this step's moves; and the algorithm's own line, if they were made in functions it calls. */
function litLines(entry: Entry, step: number): Lit {
  const sites = new Set(
    replayOf(entry)
      .moves(step - 1)
      .map((move) => entry.schedule.sites[move.site]),
  );
  const own = step > 0 ? entry.lines?.[step - 1] : undefined;
  const lines = (file: string): Set<number> => {
    const found = new Set<number>();
    for (const source of entry.sources) if (source.file === file && sites.has(source.site)) found.add(source.line);
    if (own !== undefined && entry.code?.file === file) found.add(own);
    return found;
  };
  return { sites, lines };
}

function Listing(props: { file: CodeFile; lit: Set<number>; wrong: number | null }): JSX.Element {
  const { file, lit } = props;
  const box = useRef<HTMLDivElement>(null);
  useKeptInSight(box, lit, file.first);
  return (
    <figure class="listing">
      <figcaption>{file.file}</figcaption>
      <div class="scroll" ref={box} tabIndex={0} data-lines>
        <Lines text={file.text} first={file.first} lit={lit} wrong={props.wrong} />
      </div>
    </figure>
  );
}

export function Lines(props: { text: string; first: number; lit: Set<number>; wrong: number | null }): JSX.Element {
  const lines = useMemo(() => inLines(props.text.replace(/\n$/, "")), [props.text]);
  return (
    <pre class="lines">
      {lines.map((words, i) => {
        const number = props.first + i;
        const kind = `${props.lit.has(number) ? "lit" : ""}${props.wrong === number ? " bad" : ""}`;
        return (
          <div key={i} class={kind} data-line={number} data-text={words.map((word) => word.text).join("")}>
            <span class="number">{number}</span>
            <code>
              {words.length
                ? words.map((word, j) =>
                    word.kind === "plain" ? (
                      word.text
                    ) : (
                      <span key={j} class={`py-${word.kind}`}>
                        {word.text}
                      </span>
                    ),
                  )
                : " "}
            </code>
          </div>
        );
      })}
    </pre>
  );
}

function Editor(props: { file: CodeFile; lit: Set<number>; wrong: number | null }): JSX.Element {
  const key = draftKey();
  if (draft.value?.key !== key) draft.value = { key, original: props.file, text: props.file.text, own: false };
  const { original, text, own } = draft.value;
  const setText = (code: string): void => void (draft.value = { key, original, text: code, own });
  const [refusal, setRefusal] = useState<{ message: string; line: number | null } | null>(null);
  const [busy, setBusy] = useState(false);
  const timer = useRef(0);
  const asked = useRef(0);
  const prove = async (code: string): Promise<void> => {
    const number = ++asked.current;
    setBusy(true);
    try {
      await proveEdited(code, original.file, () => number === asked.current);
      if (number === asked.current) setRefusal(null);
    } catch (error) {
      if (number !== asked.current) return; // an error of an older text
      const line = error instanceof Refusal ? error.line : null;
      setRefusal({ message: messageOf(error), line });
      outdated.value = "does not run";
    } finally {
      if (number === asked.current) setBusy(false);
    }
  };
  /** Back to what the file makes. */
  const forget = (): void => {
    setBusy(false);
    edited.value = null;
    outdated.value = null;
  };
  const change = (code: string): void => {
    setText(code);
    // What was said and drawn belongs to the text before.
    asked.current++;
    setRefusal(null);
    clearTimeout(timer.current);
    if (code === original.text && !own) return forget();
    outdated.value = "being proved";
    timer.current = window.setTimeout(() => void prove(code), inBrowser() ? PAUSE.page : PAUSE.server);
  };
  useEffect(() => () => clearTimeout(timer.current), []);
  // Edited code is proved again for another number of ranks, root or size.
  const { ranks, root, topology, size } = state.value;
  useEffect(() => {
    const changed = draft.value!.own || draft.value!.text !== original.text;
    if (!changed || edited.value) return;
    outdated.value = "being proved";
    void prove(draft.value!.text);
  }, [ranks, root, topology, size, original]);
  return (
    <figure class="listing">
      <figcaption>
        {original.file}
        <span class="save">
          {busy && <span class="soft">proving …</span>}
          <Quiet
            disabled={text === original.text && (own || !edited.value)}
            onClick={() => {
              clearTimeout(timer.current);
              asked.current++;
              setText(original.text);
              setRefusal(null);
              forget();
              if (own) void prove(original.text);
            }}
          >
            undo all
          </Quiet>
        </span>
      </figcaption>
      <Field
        text={text}
        first={original.first}
        lit={props.lit}
        wrong={refusal?.line ?? props.wrong}
        label="Source of the algorithm"
        onText={change}
        onEnter={() => {
          clearTimeout(timer.current);
          void prove(text);
        }}
      />
      {/* Below, so that the text stays where it is under the caret. */}
      {refusal && (
        <p class="alarm" role="alert">
          {refusal.line !== null && `line ${refusal.line}: `}
          {refusal.message}
        </p>
      )}
    </figure>
  );
}

/** Editable source: the coloured lines lie under a text field with the same text in transparent letters. */
export function Field(props: {
  text: string;
  first: number;
  lit: Set<number>;
  wrong: number | null;
  label: string;
  onText: (text: string) => void;
  /** Ctrl-Enter. */
  onEnter: () => void;
}): JSX.Element {
  const box = useRef<HTMLDivElement>(null);
  useKeptInSight(box, props.lit, props.first);
  return (
    <div class="scroll" ref={box} data-lines>
      <div class="editor">
        <Lines text={props.text} first={props.first} lit={props.lit} wrong={props.wrong} />
        <textarea
          spellcheck={false}
          autocapitalize="off"
          autocomplete="off"
          aria-label={props.label}
          value={props.text}
          onInput={(event) => props.onText(event.currentTarget.value)}
          onKeyDown={(event) => {
            if (event.key === "Tab" && !event.shiftKey) {
              event.preventDefault();
              const field = event.currentTarget;
              field.setRangeText("    ", field.selectionStart, field.selectionEnd, "end");
              props.onText(field.value);
            } else if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) props.onEnter();
          }}
        />
      </div>
    </div>
  );
}

/** Scroll the box, never the page, so that the lit lines can be read; never under the caret of somebody who types. */
function useKeptInSight(box: { current: HTMLDivElement | null }, lit: Set<number>, first: number): void {
  const line = Math.min(...lit);
  useEffect(() => {
    const row = box.current?.querySelector<HTMLElement>(`[data-line="${line}"]`);
    if (!box.current || !row || !isFinite(line) || box.current.contains(document.activeElement)) return;
    const above = row.offsetTop - box.current.scrollTop;
    if (above < 20 || above > box.current.clientHeight - 40)
      box.current.scrollTop = row.offsetTop - box.current.clientHeight / 3;
  }, [line, first]);
}
