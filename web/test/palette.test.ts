import { expect, test } from "vitest";
import { colourOf, dark, inkOn, lightness } from "../src/palette";

test("lightness is that of the standard", () => {
  expect(lightness("#ffffff")).toBeCloseTo(1);
  expect(lightness("#000000")).toBe(0);
  expect(lightness("#ff0000")).toBeCloseTo(0.2126);
  expect(lightness("hsl(0 100% 50%)")).toBeCloseTo(0.2126);
  expect(lightness("hsl(210 48% 45%)")).toBeCloseTo(lightness("#3c73aa"), 1);
});

test("what is written on any colour can be read", () => {
  for (const night of [false, true]) {
    dark.value = night;
    for (const many of [4, 12, 64, 256]) {
      for (let i = 0; i < many; i++) {
        const [ground, ink] = [lightness(colourOf(i, many)) + 0.05, inkOn(colourOf(i, many)) === "#000" ? 0.05 : 1.05];
        expect(Math.max(ground, ink) / Math.min(ground, ink)).toBeGreaterThan(4.5);
      }
    }
  }
  dark.value = false;
});
