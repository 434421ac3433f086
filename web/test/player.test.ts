/** Arrow keys play a step, forwards and backwards. */

import { beforeEach, expect, test, vi } from "vitest";
import { fraction, length, pause, plays, raceAt, stepBy, still, stops, told } from "../src/player";
import { state } from "../src/state";

let frames: FrameRequestCallback[] = [];
let now = 0;
let reduced = false;

/** The browser's clock, frame by frame. */
function pass(milliseconds: number): void {
  for (const end = now + milliseconds; now < end; ) {
    now += 20;
    const due = frames;
    frames = [];
    for (const frame of due) frame(now);
  }
}

beforeEach(() => {
  vi.stubGlobal("requestAnimationFrame", (frame: FrameRequestCallback) => frames.push(frame));
  vi.stubGlobal("matchMedia", () => ({ matches: reduced }));
  frames = [];
  reduced = false;
  pause();
  length.value = 6;
  plays.value = "steps";
  state.value = { ...state.value, step: 2 };
});

test("forwards, the words tell the step that is under way", () => {
  stepBy(1);
  expect([state.value.step, told.value, still.value]).toEqual([2, 3, false]);
  pass(300);
  expect(fraction.value).toBeGreaterThan(0.2);
  pass(800);
  expect([state.value.step, told.value, still.value]).toEqual([3, 3, true]);
});

test("backwards, the step is undone", () => {
  stepBy(-1);
  expect([state.value.step, told.value]).toEqual([1, 2]);
  const begin = fraction.value;
  pass(300);
  expect(fraction.value).toBeLessThan(begin);
  pass(800);
  expect([state.value.step, told.value, still.value]).toEqual([1, 1, true]);
});

test("keys that come quickly count, each for a step", () => {
  stepBy(1);
  pass(100);
  stepBy(1);
  pass(100);
  stepBy(1);
  pass(1200);
  expect(state.value.step).toBe(5);
  stepBy(-1);
  pass(100);
  stepBy(-1);
  pass(1200);
  expect(state.value.step).toBe(3);
});

test("a step that goes back can be turned around", () => {
  stepBy(-1);
  pass(100);
  stepBy(1);
  pass(1200);
  expect(state.value.step).toBe(2);
});

test("with reduced motion, and for several steps, nothing moves", () => {
  stepBy(3);
  expect([state.value.step, still.value]).toEqual([5, true]);
  reduced = true;
  stepBy(-1);
  expect([state.value.step, still.value]).toEqual([4, true]);
});

test("no step leads beyond the ends", () => {
  state.value = { ...state.value, step: 6 };
  stepBy(1);
  expect([state.value.step, still.value]).toEqual([6, true]);
});

test("in a race, a key leads to the next moment at which something ends", () => {
  plays.value = "race";
  stops.value = [0, 0.25, 0.5, 1];
  raceAt.value = 0.3;
  stepBy(1);
  expect(raceAt.value).toBe(0.5);
  stepBy(-1);
  expect(raceAt.value).toBe(0.25);
  stepBy(5);
  expect(raceAt.value).toBe(1);
  stepBy(-5);
  expect(raceAt.value).toBe(0);
});
