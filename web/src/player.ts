/** Playing: a position that advances with the browser's clock, over steps or, in the race, over time. */

import { computed, signal } from "@preact/signals";
import { clamp } from "./numbers";
import { go, state } from "./state";
import type { View } from "./views/view";

export const SPEEDS = [0.25, 0.5, 1, 2, 4, 16];

export const playing = signal(false);
export const speed = signal(1);
/** The progress of the current step; 0 when the picture stands still. */
export const fraction = signal(0);
/** Whether the picture stands still. What reads this, and not `fraction`, is not drawn again for every frame. */
export const still = computed(() => fraction.value === 0);
/** How many steps there are to play, and what playing moves in the view; the page sets them with what it shows. */
export const length = signal(0);
export const plays = signal<View["plays"]>("steps");
/** The step that pictures and words tell: the one whose moves travel, or the last that is done. */
export const told = computed(() => Math.min(length.value, state.value.step + (still.value ? 0 : 1)));
/** Where the race stands, from 0 to 1. */
export const raceAt = signal(0);
/** The moments of a race, from 0 to 1, at which something ends: arrow keys go from one to the next. */
export const stops = signal<number[]>([]);

const LONGEST = 24; // seconds: playing everything takes at most this long, however many steps there are
const RACE = 8; // seconds of a race
const STEP = 0.7; // seconds in which an arrow key plays a step

let last: number | null = null;
/** The single step that an arrow key plays: forwards, backwards, or none. */
let single: 1 | -1 | 0 = 0;

export function stillMotion(): boolean {
  return matchMedia("(prefers-reduced-motion: reduce)").matches;
}

export function toggle(): void {
  if (playing.value) return pause();
  if (plays.value === "race") {
    if (raceAt.value >= 1) raceAt.value = 0;
  } else if (state.value.step >= length.value) {
    go({ step: 0 });
  }
  if (!still.value) pause(); // a single step is done at once
  playing.value = true;
  last = null;
  requestAnimationFrame(tick);
}

/** Stop; a step whose moves travel is done then, so that the words stay. */
export function pause(): void {
  playing.value = false;
  // Going back, the step is undone already.
  if (!still.value && single >= 0) go({ step: told.value });
  single = 0;
  fraction.value = 0;
}

/** Some steps on, or back. A single step is played. */
export function stepBy(change: number): void {
  const playedOn = single === 0 && !still.value;
  const from = (playedOn ? change > 0 : single < 0) ? state.value.step : told.value;
  pause();
  if (plays.value === "race") {
    raceAt.value = nextStop(change);
    return;
  }
  const to = clamp(from + change, 0, length.value);
  if (Math.abs(change) !== 1 || to === from || playedOn || stillMotion()) return go({ step: to });
  single = change > 0 ? 1 : -1;
  go({ step: Math.min(from, to) });
  fraction.value = change > 0 ? START : 1 - START;
  last = null;
  requestAnimationFrame(playSingle);
}

const START = 1e-3; // of a step: not still, and nothing has moved yet

function playSingle(now: number): void {
  if (!single || playing.value) return;
  const passed = last === null ? 0 : Math.min(0.1, (now - last) / 1000);
  last = now;
  const moved = fraction.value + (single * passed) / STEP;
  if (moved >= 1 || moved <= 0) return pause();
  fraction.value = moved;
  requestAnimationFrame(playSingle);
}

/** Where a race is after some of its moments; without any, parts of it of equal length. */
function nextStop(change: number): number {
  const [here, all] = [raceAt.value, stops.value];
  if (!all.length) return clamp(here + change / 50, 0, 1);
  const later = all.filter((one) => (change > 0 ? one > here + 1e-9 : one < here - 1e-9));
  if (!later.length) return change > 0 ? 1 : 0;
  return change > 0 ? later[Math.min(later.length, change) - 1] : later[Math.max(0, later.length + change)];
}

export function jumpTo(step: number): void {
  pause();
  go({ step: clamp(step, 0, length.value) });
}

/** To the start, or to the end, of what is played. */
export function jumpToEdge(end: boolean): void {
  if (plays.value !== "race") return jumpTo(end ? length.value : 0);
  pause();
  raceAt.value = end ? 1 : 0;
}

function tick(now: number): void {
  if (!playing.value) return;
  const passed = last === null ? 0 : Math.min(0.1, (now - last) / 1000);
  last = now;
  if (plays.value === "race") playRace(passed);
  else playSteps(passed);
  if (playing.value) requestAnimationFrame(tick);
}

/** A part of all that is played, from 0 to 1, without playing it. */
export function seek(part: number): void {
  playing.value = false;
  single = 0;
  if (plays.value === "race") {
    raceAt.value = clamp(part, 0, 1);
    return;
  }
  const at = clamp(part, 0, 1) * length.value;
  const step = Math.min(Math.floor(at), length.value);
  go({ step });
  fraction.value = step < length.value ? at - step : 0;
}

let pending = 0; // time that has passed but is not shown yet, with reduced motion

function playSteps(passed: number): void {
  const rate = Math.max(0.9, length.value / LONGEST) * speed.value;
  if (stillMotion()) {
    pending += passed * rate;
    if (pending < 1) return;
  }
  const moved = (stillMotion() ? Math.floor(pending) : fraction.value) + (stillMotion() ? 0 : passed * rate);
  const whole = Math.floor(moved);
  pending = stillMotion() ? pending - whole : 0;
  const step = Math.min(length.value, state.value.step + whole);
  if (step >= length.value) {
    pause();
    go({ step: length.value });
    return;
  }
  fraction.value = stillMotion() ? 0 : moved - whole;
  if (whole) go({ step });
}

function playRace(passed: number): void {
  raceAt.value = clamp(raceAt.value + (passed * speed.value) / RACE, 0, 1);
  if (raceAt.value >= 1) pause();
}
