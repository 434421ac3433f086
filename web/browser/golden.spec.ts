/**
 * Every view of four schedules by day and by night, as it was when somebody last looked at it.
 *
 * What is kept is small: a picture of 1440 × 900 pixels as 48 × 30 averages, eight in one file for each view. So
 * fonts and the smoothing of edges make no difference, and neither does the pixel ratio of the screen; a canvas that is
 * cropped, a grid that grew or a colour that changed does. `npx playwright test golden --project page -u all` takes new
 * ones: look at them before you commit them, and at the page.
 */

import { existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname } from "node:path";
import type { Page } from "@playwright/test";
import * as table from "../src/views/table";
import { expect, exported, path, test } from "./allfold";

const SCHEDULES: [algorithm: string, ranks: string, step: number][] = [
  ["ring", "4", 2],
  ["two_level", "16", 4],
  ["double_tree", "64", 3],
  ["ring", "256", 130],
];
const THEMES = ["light", "dark"] as const;
const [WIDE, HIGH] = [48, 30];
const MEAN = 2.5; // of 255: how far all averages of a picture may be off together
const WORST = 60; // and a single one

type Averages = number[]; // red, green, blue of each average, row by row

/** A PNG, or a part of it, as averages. */
async function averagesOf(page: Page, png: Buffer, part?: { column: number; row: number }): Promise<Averages> {
  return page.evaluate(
    async ([data, wide, high, part]) => {
      const picture = await createImageBitmap(await (await fetch(`data:image/png;base64,${data}`)).blob());
      const canvas = new OffscreenCanvas(picture.width, picture.height);
      const pen = canvas.getContext("2d", { willReadFrequently: true })!;
      pen.drawImage(picture, 0, 0);
      const [across, down] = part ? [wide, high] : [picture.width, picture.height];
      const pixels = pen.getImageData(part ? part.column * wide : 0, part ? part.row * high : 0, across, down).data;
      const sums = new Float64Array(wide * high * 3);
      const counts = new Float64Array(wide * high);
      for (let y = 0; y < down; y++) {
        for (let x = 0; x < across; x++) {
          const block = Math.floor((y * high) / down) * wide + Math.floor((x * wide) / across);
          counts[block]++;
          for (let i = 0; i < 3; i++) sums[3 * block + i] += pixels[4 * (y * across + x) + i];
        }
      }
      return Array.from(sums, (sum, i) => Math.round(sum / counts[Math.floor(i / 3)]));
    },
    [png.toString("base64"), WIDE, HIGH, part ?? null] as const,
  );
}

/** Averages side by side and below each other in one PNG. */
async function sheetOf(page: Page, rows: Averages[][]): Promise<Buffer> {
  const data = await page.evaluate(
    async ([rows, wide, high]) => {
      const canvas = new OffscreenCanvas(wide * rows[0].length, high * rows.length);
      const pen = canvas.getContext("2d")!;
      rows.forEach((row, y) =>
        row.forEach((averages, x) => {
          const part = pen.createImageData(wide, high);
          for (let i = 0; i < wide * high; i++) part.data.set([...averages.slice(3 * i, 3 * i + 3), 255], 4 * i);
          pen.putImageData(part, x * wide, y * high);
        }),
      );
      const bytes = new Uint8Array(await (await canvas.convertToBlob({ type: "image/png" })).arrayBuffer());
      return btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
    },
    [rows, WIDE, HIGH] as const,
  );
  return Buffer.from(data, "base64");
}

for (const { name } of table.VIEWS) {
  test(`${name} looks as it did`, async ({ page, context, viewport }, info) => {
    test.skip(viewport!.width < 1000, "the golden pictures are those of a wide screen");
    test.setTimeout(480_000); // whichever runs first makes the files of all four schedules
    const addresses = SCHEDULES.map(([algorithm, ranks]) => exported(algorithm, "--ranks", ranks));
    const seen: Averages[][] = [];
    const desk = await context.newPage(); // where pictures are averaged: the page's own policy forbids to fetch
    for (const colorScheme of THEMES) {
      await page.emulateMedia({ colorScheme, reducedMotion: "reduce" });
      const row: Averages[] = [];
      for (const [i, [, , step]] of SCHEDULES.entries()) {
        await page.goto("about:blank");
        await page.goto(`${addresses[i]}#view=${name}&step=${step}&clock=modelled`);
        await expect(page.locator(`#view-${name} svg.picture`).first()).toBeVisible();
        await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
        row.push(await averagesOf(desk, await page.screenshot({ animations: "disabled" })));
      }
      seen.push(row);
    }
    const file = path(`web/browser/golden/${name}.png`);
    const now = await sheetOf(desk, seen);
    if (info.config.updateSnapshots === "all" || !existsSync(file)) {
      mkdirSync(dirname(file), { recursive: true });
      writeFileSync(file, now);
      return;
    }
    writeFileSync(info.outputPath("now.png"), now);
    const kept = readFileSync(file);
    for (const [y, theme] of THEMES.entries()) {
      for (const [x, [algorithm, ranks]] of SCHEDULES.entries()) {
        const before = await averagesOf(desk, kept, { column: x, row: y });
        const off = seen[y][x].map((one, i) => Math.abs(one - before[i]));
        const mean = off.reduce((sum, one) => sum + one, 0) / off.length;
        const says = `${algorithm} with ${ranks} ranks, ${theme}: off by ${mean.toFixed(2)}, at most ${Math.max(...off)}; see ${info.outputPath("now.png")}`;
        expect.soft(mean, says).toBeLessThanOrEqual(MEAN);
        expect.soft(Math.max(...off), says).toBeLessThanOrEqual(WORST);
      }
    }
  });
}
