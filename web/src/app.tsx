/** The page: what is shown, the view of it, the facts beside it, the player below. */

import type { JSX } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import type { Entry } from "./document";
import { Bar } from "./bar";
import { Choose } from "./choose";
import { Facts } from "./facts";
import { Help } from "./help";
import { dimming, Quiet, showText } from "./picture";
import { jumpToEdge, length, pause, plays, stepBy, still, toggle, told } from "./player";
import { savePng, saveSvg } from "./save";
import { current, inStudio } from "./source";
import { asked, beside, focus, go, hovered, notice, pinned, state } from "./state";
import { ThemeButton, useTheme } from "./theme";
import { moment, plural } from "./words";
import { followedTree, followNext } from "./views/follow";
import { VIEWS, viewOf } from "./views/table";

export function App(): JSX.Element {
  const [help, setHelp] = useState(false);
  const pane = useRef<HTMLDivElement>(null);
  useTheme();
  // Before the first picture is drawn, so that keys and the background are ready in time.
  useLayoutEffect(() => {
    const onKey = (event: KeyboardEvent): void => {
      if (isTyping(event) || event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key === "Escape") {
        setHelp(false);
        asked.value = null;
        pinned.value = null;
        if (state.value.follow !== null) go({ follow: null });
      } else if (event.key === "?") setHelp((shown) => !shown);
      else if (!onKeyOfPlayer(event)) return;
      event.preventDefault();
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, []);
  const { entry, waiting, error } = current.value;
  length.value = entry ? entry.schedule.steps.length : 0;
  plays.value = viewOf(state.value.view).plays;
  useEffect(() => void pane.current?.scrollTo(0, 0), [state.value.view]);
  return (
    <div class="shell">
      <div class="pane" ref={pane}>
        <div class="page">
          <style>{dimming(focus.value, entry && chunksLit(entry))}</style>
          <Top onHelp={() => setHelp(true)} entry={entry} />
          <Tabs />
          <Choose />
          {entry && waiting && (
            <p class="computing" role="status">
              Computing …
            </p>
          )}
          {notice.value && (
            <p class="notice" role="status">
              {notice.value}
              <Quiet onClick={() => (notice.value = null)} aria-label="Close">
                ×
              </Quiet>
            </p>
          )}
          {error && (
            <p class="alarm" role="alert">
              {error}
            </p>
          )}
          {entry ? (
            <Stage entry={entry} />
          ) : (
            !error && <p class="waiting">{waiting ? "Computing …" : "Nothing to show for this choice."}</p>
          )}
          {help && <Help onClose={() => setHelp(false)} />}
        </div>
      </div>
      {entry && <Bar entry={entry} />}
    </div>
  );
}

/** The columns of the followed tree, if the grid shows others too. */
function chunksLit(entry: Entry): number[] | null {
  const tree = followedTree(entry);
  return tree && tree.chunks.length <= 256 && entry.schedule.chunks <= 1024 ? tree.chunks : null;
}

function Stage(props: { entry: Entry }): JSX.Element {
  const { view } = state.value;
  const step = Math.min(told.value, props.entry.schedule.steps.length);
  const moving = !still.value;
  const second = beside.value && beside.value !== view ? beside.value : null;
  // The element under the pointer may be gone without a leave event.
  useEffect(() => void (hovered.value = null), [view, second, props.entry]);
  const onPointerMove = (event: PointerEvent): void => {
    if (hovered.value && !(event.target as Element).closest("[data-r],[data-c],[data-l]")) hovered.value = null;
  };
  return (
    <main
      class={`stage${second ? " twofold" : ""}${viewOf(view).broad ? " broad" : ""}`}
      onPointerMove={onPointerMove}
      onPointerLeave={() => (hovered.value = null)}
    >
      <View name={view} entry={props.entry} step={step} moving={moving} />
      {second && <View name={second} entry={props.entry} step={step} moving={moving} />}
      <Facts entry={props.entry} step={step} moving={moving} />
    </main>
  );
}

function View(props: { name: string; entry: Entry; step: number; moving: boolean }): JSX.Element {
  const { title, plays, draw: Draw } = viewOf(props.name);
  const id = `view-${props.name}`;
  const { collective, algorithm, ranks } = props.entry.schedule;
  const file = `${collective}-${algorithm}-${ranks}-${props.name}-step${props.step}`;
  const caption = `${collective} by ${algorithm}, ${plural(ranks, "rank")}${plays === "steps" ? `, ${moment(props.step)}` : ""}`;
  return (
    <section class="view" id={id} role="tabpanel" aria-labelledby={`tab-${props.name}`}>
      <header>
        <h2>{title}</h2>
        <span class="save">
          <Quiet onClick={() => saveSvg(id, file, caption)}>SVG</Quiet>
          <Quiet onClick={() => void savePng(id, file, caption)}>PNG</Quiet>
        </span>
      </header>
      <Draw entry={props.entry} step={props.step} moving={props.moving} />
    </section>
  );
}

function Top(props: { onHelp: () => void; entry: Entry | null }): JSX.Element {
  const { entry } = props;
  return (
    <header class="top">
      <span class="name">allfold</span>
      {entry && (
        <h1>
          {entry.schedule.collective} by <b>{entry.schedule.algorithm}</b>
          <small>
            {plural(entry.schedule.ranks, "rank")}, {plural(entry.schedule.chunks, "chunk")}
            {entry.schedule.scratch ? ` + ${entry.schedule.scratch} scratch` : ""},{" "}
            {plural(entry.schedule.steps.length, "step")}
          </small>
        </h1>
      )}
      <span class="tools">
        {inStudio() && <a href="#lessons">lessons</a>}
        <label class="besides">
          beside
          <select value={beside.value ?? ""} onChange={(event) => (beside.value = event.currentTarget.value || null)}>
            <option value="">nothing</option>
            {VIEWS.map((one) => (
              <option key={one.name} value={one.name} disabled={one.name === state.value.view}>
                {one.title}
              </option>
            ))}
          </select>
        </label>
        <Quiet aria-pressed={showText.value} onClick={() => (showText.value = !showText.value)}>
          text
        </Quiet>
        <ThemeButton />
        <Quiet onClick={props.onHelp} aria-label="Keyboard and help">
          ?
        </Quiet>
      </span>
    </header>
  );
}

function Tabs(): JSX.Element {
  const { view } = state.value;
  const row = useRef<HTMLElement>(null);
  useEffect(() => {
    // On narrow screens the tabs are a strip; the chosen one is kept in sight.
    const tab = row.current!.querySelector<HTMLElement>("[aria-selected=true]");
    if (tab) row.current!.scrollLeft = tab.offsetLeft - row.current!.offsetLeft - 40;
  }, [view]);
  return (
    <nav class="tabs" role="tablist" aria-label="Views" ref={row}>
      {VIEWS.map((one) => (
        <button
          key={one.name}
          type="button"
          role="tab"
          id={`tab-${one.name}`}
          aria-selected={view === one.name}
          aria-controls={`view-${one.name}`}
          onClick={() => openView(one.name)}
          data-title={one.title}
        >
          {one.title}
        </button>
      ))}
      {inStudio() && <span class="mode">studio</span>}
    </nav>
  );
}

function openView(name: string): void {
  if (name === state.value.view) return;
  pause();
  go({ view: name });
}

function onKeyOfPlayer(event: KeyboardEvent): boolean {
  const many = event.shiftKey ? 5 : 1;
  const { entry } = current.value;
  const view = VIEWS.find((one) => one.key === event.key);
  const press = VIEWS.flatMap((one) => one.keys ?? []).find((one) => one.key === event.key)?.press;
  if (event.key === " ") toggle();
  else if (event.key === "ArrowRight") stepBy(many);
  else if (event.key === "ArrowLeft") stepBy(-many);
  else if (event.key === "Home") jumpToEdge(false);
  else if (event.key === "End") jumpToEdge(true);
  else if ((event.key === "[" || event.key === "]") && entry) followNext(entry, event.key === "]" ? 1 : -1);
  else if (press && entry) press(entry);
  else if (view) openView(view.name);
  else return false;
  return true;
}

/** Keys that belong to the focused element: a text field, a list, a slider, a button that space presses. The tab that is open has nothing to press: space plays there. */
function isTyping(event: KeyboardEvent): boolean {
  const target = event.target as HTMLElement;
  if (target.matches("textarea, select, input:not([type=range])")) return true;
  if (target.matches("input[type=range]"))
    return event.key.startsWith("Arrow") || event.key === "Home" || event.key === "End";
  return target.matches("button:not([aria-selected=true])") && event.key === " ";
}
