/** The state of the page in the hash of its address, so that a link shows what its sender saw. */

import { effect } from "@preact/signals";
import type { Clock, PageState } from "./document";
import { beside, CLOCKS, state } from "./state";
import { settle } from "./source";
import { viewNamed, type ViewName } from "./views/table";

export function toHash(one: PageState, second: ViewName | null = null): string {
  const words = new URLSearchParams({ view: one.view, collective: one.collective, algorithm: one.algorithm });
  words.set("ranks", String(one.ranks));
  if (one.root !== null) words.set("root", String(one.root));
  if (one.topology) words.set("topology", one.topology);
  words.set("size", String(one.size));
  words.set("step", String(one.step));
  words.set("clock", one.clock);
  if (one.rivals.length) words.set("rivals", one.rivals.join(","));
  if (one.follow !== null) words.set("follow", String(one.follow));
  if (second) words.set("beside", second);
  return `#${words}`;
}

/** The state that a hash describes, on top of the state before. Invalid parts are ignored. */
export function fromHash(hash: string, before: PageState): PageState {
  const words = new URLSearchParams(hash.replace(/^#/, ""));
  const whole = (name: string, least: number, was: number): number => {
    const value = Number(words.get(name));
    return words.has(name) && Number.isInteger(value) && value >= least ? value : was;
  };
  const clock = words.get("clock") as Clock;
  return {
    collective: words.get("collective") || before.collective,
    algorithm: words.get("algorithm") || before.algorithm,
    ranks: whole("ranks", 1, before.ranks),
    root: words.has("root") ? whole("root", 0, before.root ?? 0) : words.has("collective") ? null : before.root,
    topology: words.get("topology") ?? before.topology,
    size: whole("size", 0, before.size),
    step: whole("step", 0, before.step),
    view: viewNamed(words.get("view")) ?? before.view,
    clock: CLOCKS.includes(clock) ? clock : before.clock,
    rivals: words.has("rivals") ? words.get("rivals")!.split(",").filter(Boolean).slice(0, 2) : before.rivals,
    follow: words.has("follow") ? followFrom(words.get("follow")!) : words.has("collective") ? null : before.follow,
  };
}

function followFrom(word: string): PageState["follow"] {
  return word === "cut" ? "cut" : /^[1-9]\d{0,6}$/.test(word) ? Number(word) : null;
}

export function besideFromHash(hash: string): ViewName | null {
  return viewNamed(new URLSearchParams(hash.replace(/^#/, "")).get("beside"));
}

/** Show what the address says, now and whenever it changes, and keep the address up to date with what is shown. */
export function followHash(): void {
  let seen = location.hash;
  const read = (): void => {
    seen = location.hash;
    state.value = fromHash(location.hash, state.value);
    beside.value = besideFromHash(location.hash);
    settle();
  };
  if (location.hash.length > 1) read();
  addEventListener("hashchange", read);
  let timer = 0;
  effect(() => {
    const hash = toHash(state.value, beside.value);
    // Browsers allow a few hundred changes of the address per minute; playing makes more.
    clearTimeout(timer);
    timer = window.setTimeout(() => {
      if (location.hash !== seen) return; // the user has navigated elsewhere meanwhile; that is read in a moment
      try {
        history.replaceState(null, "", hash);
        seen = location.hash;
      } catch {
        // In a notebook's frame there is no address to write into.
      }
    }, 120);
  });
}
