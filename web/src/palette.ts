/** Colours that colour-blind people can tell apart (after Paul Tol's qualitative sets), one list per background. */

import { signal } from "@preact/signals";
import tokens from "../../src/allfold/view/tokens.json" with { type: "json" };
import { clamp } from "./numbers";

/** Whether the page is dark. */
export const dark = signal(false);

/** The colour of the i-th of `many` things (ranks, algorithms). Beyond twelve, steps around the hue circle. */
export function colourOf(index: number, many: number): string {
  const list = dark.value ? tokens.ranks.dark : tokens.ranks.light;
  if (many <= list.length) return list[index % list.length];
  const hue = (index * 360) / many + 210;
  // Neighbours also alternate in lightness, so that they differ even where their hues do not.
  const light = (dark.value ? 64 : 50) + (index % 2 ? 7 : -5);
  return `hsl(${Math.round(hue % 360)} ${dark.value ? 52 : 48}% ${light}%)`;
}

/** The colour of text, for what has no colour of its own. */
function ink(): string {
  return dark.value ? tokens.dark.ink : tokens.light.ink;
}

/** A colour of the style sheet, by its name there. */
export function tokenOf(name: string): string {
  return (dark.value ? tokens.dark : tokens.light)[name as keyof typeof tokens.light];
}

const ALGORITHMS: Partial<Record<string, { light: string; dark: string }>> = tokens.algorithms;

/** The colour of an algorithm by its name, the same in every picture; of one that is not built in, that of the text. */
export function hueOf(algorithm: string): string {
  return ALGORITHMS[algorithm]?.[dark.value ? "dark" : "light"] ?? ink();
}

/** How light a colour of `colourOf` is, from 0 to 1 (relative luminance). */
export function lightness(colour: string): number {
  const hsl = colour.match(/^hsl\((\d+) (\d+)% (\d+)%\)$/);
  let parts: number[];
  if (hsl) {
    const [hue, saturation, light] = [Number(hsl[1]), Number(hsl[2]) / 100, Number(hsl[3]) / 100];
    const reach = saturation * Math.min(light, 1 - light);
    parts = [0, 8, 4].map((shift) => {
      const k = (shift + hue / 30) % 12;
      return light - reach * Math.max(-1, Math.min(k - 3, 9 - k, 1));
    });
  } else {
    parts = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16) / 255);
  }
  const [red, green, blue] = parts.map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

/** The colour of text on a colour: black or white, whichever can be read better. */
export function inkOn(colour: string): string {
  const light = lightness(colour) + 0.05;
  return light / 0.05 > 1.05 / light ? "#000" : "#fff";
}

type Colour = [number, number, number];

const colours = (list: string[]): Colour[] =>
  list.map((one) => [1, 3, 5].map((at) => parseInt(one.slice(at, at + 2), 16)) as Colour);
const HEAT = { light: colours(tokens.heat.light), dark: colours(tokens.heat.dark) };
const FULLNESS = { light: colours(tokens.fullness.light), dark: colours(tokens.fullness.dark) };

/** How much a link is used: one hue, darker on light backgrounds, brighter on dark ones. Red is reserved for errors. */
export function heat(share: number): string {
  return between(HEAT[dark.value ? "dark" : "light"], share);
}

/** From none to all, for shares of contributions. */
export function fullness(share: number): string {
  return between(FULLNESS[dark.value ? "dark" : "light"], share);
}

function between(stops: Colour[], share: number): string {
  const place = clamp(share, 0, 1) * (stops.length - 1);
  const low = Math.min(stops.length - 2, Math.floor(place));
  const mix = stops[low].map((one, i) => Math.round(one + (stops[low + 1][i] - one) * (place - low)));
  return `rgb(${mix.join(" ")})`;
}

/** How larger values look: darker squares on a light background, brighter ones on a dark background. */
export function deeper(): string {
  return dark.value ? "the brighter" : "the darker";
}
