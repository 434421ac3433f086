/** The page: what is shown, the view of it, the facts beside it, the player below. */

import type { JSX } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import type { Entry } from "./document";
import { Bar } from "./bar";
import { Choose } from "./choose";
import { Facts } from "./facts";
import { Help } from "./help";
import { dimming, Quiet, showText } from "./picture";
import { jumpTo, jumpToEdge, length, pause, plays, stepBy, still, toggle, told } from "./player";
import { wantedIn } from "./search";
import { Save } from "./take_along";
import { Hero, Price, Starting } from "./site/front";
import { Lights } from "./site/lights";
import { current, inBrowser, inStudio, opponent } from "./source";
import { asked, beside, focus, go, hovered, notice, pinned, state } from "./state";
import { ThemeButton, useTheme } from "./theme";
import { messageOf, moment, plural, seconds } from "./words";
import { followedTree, followNext } from "./views/follow";
import { happeningOf } from "./views/time";
import { VIEWS, viewOf } from "./views/table";
import { comparedWith, Versus } from "./views/versus";

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
      } else if (event.key === "/") document.querySelector<HTMLInputElement>(".search")?.focus();
      else if (event.key === "?") setHelp((shown) => !shown);
      else if (!onKeyOfPlayer(event)) return;
      event.preventDefault();
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, []);
  const { entry, waiting, error } = current.value;
  length.value = entry ? entry.schedule.steps.length : 0;
  const pair = entry && comparedWith(entry);
  plays.value = pair ? "race" : viewOf(state.value.view).plays;
  useEffect(() => void pane.current?.scrollTo(0, 0), [state.value.view]);
  return (
    <div class="shell">
      <div class="pane" ref={pane}>
        <div class="page">
          <style>{dimming(focus.value, entry && chunksLit(entry))}</style>
          <Top onHelp={() => setHelp(true)} entry={entry} />
          {onFront() && <Hero />}
          <Tabs />
          <Choose />
          <Starting />
          {onFront() && entry && <Lights entry={entry} />}
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
          {opponent.value?.error && (
            <p class="notice" role="status">
              {opponent.value.error}
            </p>
          )}
          {entry && opponent.value?.waiting && (
            <p class="computing" role="status">
              Computing {opponent.value.name} …
            </p>
          )}
          {entry && pair ? (
            <main class="stage broad">
              <Versus entry={entry} pair={pair} view={viewOf(state.value.view)} />
            </main>
          ) : entry ? (
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

/** The site opens with the editor: there the page says what it is for. */
const onFront = (): boolean => inBrowser() && state.value.view === "code";

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
      {onFront() && <Price entry={props.entry} />}
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
        <Save entry={props.entry} id={id} file={file} caption={caption} films={plays !== "nothing"} />
      </header>
      <Draw entry={props.entry} step={props.step} moving={props.moving} />
    </section>
  );
}

/** Looks for a rank, a chunk, a step, or long messages, and selects them in all views. */
function Search(props: { entry: Entry }): JSX.Element {
  const { entry } = props;
  const look = (words: string): void => {
    if (!words.trim()) return void (pinned.value = null);
    try {
      const { rank, chunk, step, longer } = wantedIn(words, entry);
      notice.value = null;
      if (step !== undefined) jumpTo(step);
      pinned.value =
        rank === undefined && chunk === undefined ? null : { ...(rank !== undefined && { ranks: [rank] }), chunk };
      if (rank !== undefined && chunk !== undefined) asked.value = { rank, chunk };
      if (longer !== undefined) notice.value = longMessages(entry, longer);
    } catch (error) {
      notice.value = messageOf(error);
    }
  };
  return (
    <input
      type="search"
      class="search"
      placeholder="rank 7 chunk 3"
      aria-label="Search: rank 7 chunk 3, step 4, > 50 µs"
      onKeyDown={(event) => {
        if (event.key === "Enter") look(event.currentTarget.value);
        if (event.key === "Escape") event.currentTarget.blur();
      }}
    />
  );
}

const LISTED = 5;

/** `12 messages take longer than 50 µs: …`, the longest first. */
function longMessages(entry: Entry, longer: number): string {
  const what = happeningOf(entry, state.value.clock);
  if (what.clock === "steps") return "Steps have no times: choose the clock “modelled” or “measured”.";
  const long = what.transfers
    .filter((one) => one.end - one.start > longer)
    .sort((a, b) => b.end - b.start - (a.end - a.start));
  const named = long
    .slice(0, LISTED)
    .map((one) => `${one.source}→${one.destination} in step ${one.step + 1} (${seconds(one.end - one.start)})`);
  const more = long.length > LISTED ? ` and ${long.length - LISTED} more` : "";
  return `${plural(long.length, "message")} of ${what.transfers.length} take longer than ${seconds(longer)}${named.length ? `: ${named.join(", ")}${more}` : ""}.`;
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
        {entry && <Search entry={entry} />}
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
      {inStudio() && <span class="mode">{inBrowser() ? "in your browser" : "studio"}</span>}
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
