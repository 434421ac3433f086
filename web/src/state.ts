/** The state of the page, and what the pointer is on. */

import { computed, signal } from "@preact/signals";
import type { Clock, PageState } from "./document";

export const CLOCKS: Clock[] = ["steps", "modelled", "measured"];

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
  rivals: null,
  values: null,
  op: "sum",
  against: null,
  follow: null,
});

/** The name of a second view next to the chosen one, on wide windows. */
export const beside = signal<string | null>(null);

export function go(change: Partial<PageState>): void {
  state.value = { ...state.value, ...change };
}

/** What the pointer is on, in any view; every view dims what has nothing to do with it. */
export interface Focus {
  ranks?: number[];
  chunk?: number;
  link?: string;
  /** Links that are equally busy. */
  links?: string[];
}

export const hovered = signal<Focus | null>(null);
export const pinned = signal<Focus | null>(null);
export const focus = computed(() => hovered.value ?? pinned.value);

export function togglePin(wanted: Focus): void {
  const same = JSON.stringify(pinned.value) === JSON.stringify(wanted);
  pinned.value = same ? null : wanted;
}

/** The algorithm that the pointer is on. */
export const pointed = signal<string | null>(null);

/** What the page could not do as asked, and what it did instead. */
export const notice = signal<string | null>(null);

/** Whether the grid shows numbers that add up, or the marks of contributions. */
export const showNumbers = signal(true);

/** The cell whose provenance is shown. */
export const asked = signal<{ rank: number; chunk: number } | null>(null);

/** Select a cell; selecting it again deselects it. */
export function askFor(rank: number, chunk: number): void {
  const here = asked.value;
  asked.value = here && here.rank === rank && here.chunk === chunk ? null : { rank, chunk };
}
