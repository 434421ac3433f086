/** The state of the page in the hash of its address, so that a link shows what its sender saw. */

import { effect } from "@preact/signals";
import type { Clock, PageState } from "./document";
import { learning, lessonFromHash, lessonHash } from "./learn/place";
import { MOST_RIVALS } from "./rivals";
import { beside, CLOCKS, notice, state } from "./state";
import { linked, takeLink } from "./site/link";
import { inStudio, settle } from "./source";
import { viewNamed } from "./views/table";

export function toHash(one: PageState, second: string | null = null): string {
  const words = new URLSearchParams({ view: one.view, collective: one.collective, algorithm: one.algorithm });
  words.set("ranks", String(one.ranks));
  if (one.root !== null) words.set("root", String(one.root));
  if (one.topology) words.set("topology", one.topology);
  words.set("size", String(one.size));
  words.set("step", String(one.step));
  words.set("clock", one.clock);
  if (one.rivals) words.set("rivals", one.rivals.join(","));
  if (one.values !== null) words.set("values", one.values);
  if (one.op !== "sum") words.set("op", one.op);
  if (one.against) words.set("against", one.against);
  if (one.follow !== null) words.set("follow", String(one.follow));
  if (second) words.set("beside", second);
  return `#${words}`;
}

const LEAST: Record<string, number> = { ranks: 1, root: 0, size: 0, step: 0 };

/** A word of the hash as a whole number; null if it is absent, or none. */
function whole(words: URLSearchParams, name: string): number | null {
  const word = words.get(name) ?? "";
  const value = Number(word);
  return word !== "" && Number.isSafeInteger(value) && value >= LEAST[name] ? value : null;
}

/** What a hash says that means nothing, as `ranks=many`. */
export function nonsense(hash: string): string[] {
  const words = new URLSearchParams(hash.replace(/^#/, ""));
  const means: Record<string, (word: string) => boolean> = {
    view: (word) => viewNamed(word) !== undefined,
    beside: (word) => viewNamed(word) !== undefined,
    clock: (word) => CLOCKS.includes(word as Clock),
    follow: (word) => followFrom(word) !== null,
  };
  return [...words]
    .filter(([name, word]) => (name in LEAST ? whole(words, name) === null : means[name]?.(word) === false))
    .map(([name, word]) => `${name}=${word}`);
}

/** The state that a hash describes, on top of the state before. What means nothing is left out: see `nonsense`. */
export function fromHash(hash: string, before: PageState): PageState {
  const words = new URLSearchParams(hash.replace(/^#/, ""));
  const clock = words.get("clock") as Clock;
  return {
    collective: words.get("collective") || before.collective,
    algorithm: words.get("algorithm") || before.algorithm,
    ranks: whole(words, "ranks") ?? before.ranks,
    root: words.has("root") ? (whole(words, "root") ?? before.root ?? 0) : words.has("collective") ? null : before.root,
    topology: words.get("topology") ?? before.topology,
    size: whole(words, "size") ?? before.size,
    step: whole(words, "step") ?? before.step,
    view: viewNamed(words.get("view"))?.name ?? before.view,
    clock: CLOCKS.includes(clock) ? clock : before.clock,
    values: words.get("values") ?? (words.has("collective") ? null : before.values),
    op: words.get("op") ?? (words.has("collective") ? "sum" : before.op),
    against: words.get("against") || (words.has("collective") ? null : before.against),
    rivals: words.has("rivals") ? words.get("rivals")!.split(",").filter(Boolean).slice(0, MOST_RIVALS) : before.rivals,
    follow: words.has("follow") ? followFrom(words.get("follow")!) : words.has("collective") ? null : before.follow,
  };
}

function followFrom(word: string): PageState["follow"] {
  return word === "cut" ? "cut" : /^[1-9]\d{0,6}$/.test(word) ? Number(word) : null;
}

export function besideFromHash(hash: string): string | null {
  return viewNamed(new URLSearchParams(hash.replace(/^#/, "")).get("beside"))?.name ?? null;
}

const codePart = (): string => (linked.value === null ? "" : `&code=${linked.value}`);

/** Show what the address says, now and whenever it changes, and keep the address up to date with what is shown. */
export function followHash(): void {
  let seen = location.hash;
  const read = (): void => {
    seen = location.hash;
    learning.value = inStudio() ? lessonFromHash(location.hash) : null;
    if (learning.value !== null) return;
    state.value = fromHash(location.hash, state.value);
    beside.value = besideFromHash(location.hash);
    const [wrong, missing] = [nonsense(location.hash), settle()];
    const ignored = wrong.length ? `The address says ${wrong.join(", ")}, which means nothing here.` : "";
    notice.value = [ignored, missing].filter(Boolean).join(" ") || null;
    void takeLink(location.hash).then((taken) => {
      if (!taken) notice.value = "The code in this address is damaged: a part of the link is missing.";
    });
  };
  if (location.hash.length > 1) read();
  addEventListener("hashchange", read);
  let timer = 0;
  effect(() => {
    const hash = learning.value !== null ? lessonHash(learning.value) : toHash(state.value, beside.value) + codePart();
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
