/** The one state of the page. All of it is in the URL's hash, so that a link shows what its sender saw. */

import { computed, signal } from "@preact/signals";
import type { Clock, PageState, ViewName } from "./document";

export const VIEWS: { name: ViewName; title: string; short: string }[] = [
  { name: "holds", title: "Who holds what", short: "Holds" },
  { name: "time", title: "Space and time", short: "Time" },
  { name: "bytes", title: "Where the bytes go", short: "Bytes" },
  { name: "race", title: "Race", short: "Race" },
  { name: "wins", title: "Who wins where", short: "Wins" },
  { name: "code", title: "Code and picture", short: "Code" },
];

const CLOCKS: Clock[] = ["steps", "modelled", "measured"];

export const state = signal<PageState>({
  collective: "all_reduce",
  algorithm: "ring",
  ranks: 4,
  root: null,
  topology: "",
  size: 1 << 20,
  step: 0,
  view: "holds",
  clock: "steps",
  rivals: [],
});

/** A second view next to the chosen one, on wide windows. */
export const beside = signal<ViewName | null>(null);

export function go(change: Partial<PageState>): void {
  state.value = { ...state.value, ...change };
}

/** What the pointer is on, in any view; every view dims what has nothing to do with it. */
export interface Focus {
  ranks?: number[];
  chunk?: number;
  link?: string;
}

export const hovered = signal<Focus | null>(null);
export const pinned = signal<Focus | null>(null);
export const focus = computed(() => hovered.value ?? pinned.value);

export function togglePin(wanted: Focus): void {
  const same = JSON.stringify(pinned.value) === JSON.stringify(wanted);
  pinned.value = same ? null : wanted;
}

/** The cell whose provenance is shown. */
export const asked = signal<{ rank: number; chunk: number } | null>(null);

/** Ask for a cell; asking again lets go of it. */
export function askFor(rank: number, chunk: number): void {
  const here = asked.value;
  asked.value = here && here.rank === rank && here.chunk === chunk ? null : { rank, chunk };
}

export function toHash(one: PageState, second: ViewName | null = null): string {
  const words = new URLSearchParams({ view: one.view, collective: one.collective, algorithm: one.algorithm });
  words.set("ranks", String(one.ranks));
  if (one.root !== null) words.set("root", String(one.root));
  if (one.topology) words.set("topology", one.topology);
  words.set("size", String(one.size));
  words.set("step", String(one.step));
  words.set("clock", one.clock);
  if (one.rivals.length) words.set("rivals", one.rivals.join(","));
  if (second) words.set("beside", second);
  return `#${words}`;
}

/** What a hash says, over what was there before. What makes no sense in it is left as it was. */
export function fromHash(hash: string, before: PageState): PageState {
  const words = new URLSearchParams(hash.replace(/^#/, ""));
  const whole = (name: string, least: number, was: number): number => {
    const value = Number(words.get(name));
    return words.has(name) && Number.isInteger(value) && value >= least ? value : was;
  };
  const view = words.get("view") as ViewName;
  const clock = words.get("clock") as Clock;
  return {
    collective: words.get("collective") || before.collective,
    algorithm: words.get("algorithm") || before.algorithm,
    ranks: whole("ranks", 1, before.ranks),
    root: words.has("root") ? whole("root", 0, before.root ?? 0) : words.has("collective") ? null : before.root,
    topology: words.get("topology") ?? before.topology,
    size: whole("size", 0, before.size),
    step: whole("step", 0, before.step),
    view: VIEWS.some((one) => one.name === view) ? view : before.view,
    clock: CLOCKS.includes(clock) ? clock : before.clock,
    rivals: words.has("rivals") ? words.get("rivals")!.split(",").filter(Boolean).slice(0, 2) : before.rivals,
  };
}

export function besideFromHash(hash: string): ViewName | null {
  const wanted = new URLSearchParams(hash.replace(/^#/, "")).get("beside") as ViewName;
  return VIEWS.some((one) => one.name === wanted) ? wanted : null;
}
