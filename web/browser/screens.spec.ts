/** What must hold on every screen: the sizes of canvases, and one step that everything on the page tells. */

import type { Page } from "@playwright/test";
import * as table from "../src/views/table";
import { expect, exported, test } from "./allfold";

test("lines on a canvas lie where their picture is", async ({ page }) => {
  for (const [ranks, view] of [
    ["4", "time"],
    ["33", "holds"],
    ["256", "holds"],
  ]) {
    await page.goto("about:blank");
    await page.goto(`${exported("ring", "--ranks", ranks)}#view=${view}&step=3`);
    const frame = page.locator(`#view-${view} .frame`).first();
    const [canvas, picture] = [frame.locator("canvas.layers"), frame.locator("svg.picture")];
    await expect(picture).toBeVisible();
    expect(await canvas.boundingBox(), `${ranks} ranks, ${view}`).toEqual(await picture.boundingBox());
  }
});

/** Everything that names the step, in one look: words, counter, arrows, outlined cells, and the phase above the scrubber. */
const namesOfStep = (page: Page): Promise<Record<string, string>> =>
  page.evaluate(() => {
    const text = (selector: string): string => document.querySelector<HTMLElement>(selector)?.innerText ?? "";
    const all = (selector: string): Element[] => [...document.querySelectorAll(selector)];
    const titles = (selector: string): string =>
      all(`${selector} title`)
        .map((one) => one.textContent)
        .sort()
        .join();
    return {
      moving: String(all("#view-holds .traveller").length > 0),
      counter: text(".where"),
      heading: text(".facts h3")
        .replace(/\d+ moves?$/, "")
        .toLowerCase(),
      sentences: text(".opening") + text(".facts .sentence"),
      arcs: titles("#view-holds .arcs"),
      arrows: titles("svg[data-name=shape] g:has(> .arc)"),
      outlined: all("#view-holds g:has(> .cell.changed)")
        .map((one) => one.getAttribute("data-cell"))
        .join(),
      list: all(".facts .moves li")
        .map((one) => one.textContent)
        .join(),
      phase: text(".phases .is"),
    };
  });

test("while a step plays, sentence, arcs and counter name the same step", async ({ page }) => {
  const where = exported("ring", "--ranks", "4");
  // What a still says of every step is what must be said while it plays.
  const stills: Record<string, string>[] = [];
  for (let step = 0; step <= 4; step++) {
    await page.goto("about:blank");
    await page.goto(`${where}#step=${step}`);
    await expect(page.locator(".where")).toHaveText(step ? `step ${step} of 6` : "start");
    stills.push(await namesOfStep(page));
  }
  await page.clock.install({ time: 0 });
  await page.goto("about:blank");
  await page.goto(where);
  await expect(page.locator(".where")).toHaveText("start");
  await page.clock.pauseAt(1_000_000);
  await page.getByRole("button", { name: "Play" }).click();
  for (let step = 1; step <= 4; step++) {
    await page.clock.runFor(step === 1 ? 550 : 1110); // to the middle of the step
    expect(await namesOfStep(page)).toEqual({ ...stills[step], moving: "true" });
  }
  // A pause stays with the step that is told.
  await page.getByRole("button", { name: "Pause" }).click();
  await page.clock.runFor(100);
  expect(await namesOfStep(page)).toEqual(stills[4]);
});

test("space plays after a click on a tab, whose focus can be seen", async ({ page }) => {
  await page.goto(`${exported("ring", "--ranks", "4")}#view=holds`);
  const tab = page.getByRole("tab", { name: "Race" });
  await tab.click();
  await page.keyboard.press(" ");
  await expect(page.locator(".where")).not.toHaveText("0 %");
  await page.keyboard.press(" ");
  await page.keyboard.press("Shift+Tab");
  await page.keyboard.press("Tab");
  await expect(tab).toBeFocused();
  expect(await tab.evaluate((one) => parseFloat(getComputedStyle(one).outlineOffset))).toBeLessThan(0);
});

test("all ranks are in sight, and cells are as high as a finger where there are few", async ({ page, viewport }) => {
  const picture = page.locator("svg[data-name=holds]");
  for (const given of [
    ["double_tree", "64"],
    ["ring", "64"],
  ]) {
    await page.goto("about:blank");
    await page.goto(`${exported(given[0], "--ranks", given[1])}#step=3`);
    await expect(picture).toBeVisible();
    expect((await picture.boundingBox())!.height).toBeLessThan(viewport!.height - 300);
  }
  const narrow = viewport!.width < 560;
  await page.goto(`${exported("two_level", "--ranks", "16")}#step=3`);
  await expect(page.locator("#view-holds .amount")).toHaveCount(narrow ? 0 : 256);
  await expect(page.locator("#view-holds .goes-on-hint")).toHaveCount(0);
  await page.goto(`${exported("ring", "--ranks", "4")}#step=3`);
  await expect(page.locator("#view-holds .amount")).toHaveCount(16);
  const [first, second] = await Promise.all(
    ["0 0", "1 0"].map((at) => page.locator(`[data-cell="${at}"]`).boundingBox()),
  );
  expect(second!.y - first!.y).toBeGreaterThanOrEqual(36);
});

test("space and time is in sight with its axis and, where a part is shown, the strip of the whole", async ({
  page,
  viewport,
}) => {
  test.skip(viewport!.width < 1000, "a phone has no room for both");
  const last = page.locator("#view-time .ruler .axis, #view-time .overview .ground").last();
  for (const [algorithm, ranks] of [
    ["two_level", "16"],
    ["double_tree", "64"],
    ["ring", "256"],
  ]) {
    await page.goto("about:blank");
    await page.goto(`${exported(algorithm, "--ranks", ranks)}#view=time&step=4`);
    const [line, bar] = [await last.boundingBox(), await page.locator(".bar").boundingBox()];
    expect(line!.y + line!.height, `${algorithm} ${ranks}`).toBeLessThanOrEqual(bar!.y);
  }
});

test("a shaded cell that is pointed at says whose parts are in it", async ({ page }) => {
  await page.goto(`${exported("double_tree", "--ranks", "64")}#step=3`);
  const picture = page.locator("svg[data-name=holds]");
  const cells = picture.getByRole("button", { name: "Cells" });
  await cells.hover({ position: { x: 10, y: 2 } });
  await expect(picture.locator(".cross text")).toHaveText("rank 0, chunk 0: the part of rank 0");
  await cells.click({ position: { x: 10, y: 2 } });
  await expect(page.locator(".provenance h3")).toContainText("Rank 0, chunk 0");
});

test("nothing jumps from step to step, nor when another view is opened", async ({ page }) => {
  for (const given of [
    ["ring", "4"],
    ["tree", "8"],
    ["two_level", "16"],
  ]) {
    await page.goto("about:blank");
    await page.goto(exported(given[0], "--ranks", given[1]));
    await expect(page.locator("svg[data-name=holds]")).toBeVisible();
    const places = (): Promise<number[][]> =>
      page.evaluate(() => {
        const steady = "svg[data-name=holds] .labels, .legend, .own-numbers, .tabs button, .besides, .facts section";
        return [...document.querySelectorAll(steady)].map((one) => {
          const { x, y } = one.getBoundingClientRect();
          return [Math.round(x), Math.round(y)];
        });
      });
    const before = await places();
    const steps = Number((await page.locator("h1 small").innerText()).match(/(\d+) steps/)![1]);
    for (let step = 1; step <= steps; step++) {
      await page.keyboard.press("ArrowRight");
      await expect(page.locator(".where")).toHaveText(`step ${step} of ${steps}`);
      expect(await places(), `${given.join(" ")}, step ${step}`).toEqual(before);
    }
    const tabs = (): Promise<number[]> =>
      page.locator(".tabs button, .besides").evaluateAll((all) => all.map((one) => (one as HTMLElement).offsetLeft));
    const tabsBefore = await tabs();
    await page.getByRole("tab", { name: "Race" }).click();
    expect(await tabs()).toEqual(tabsBefore);
  }
});

test("numbers that travel stay in their picture, however narrow it is", async ({ page }) => {
  await page.setViewportSize({ width: 390, height: 844 });
  await page.clock.install({ time: 0 });
  await page.goto(exported("ring", "--ranks", "4"));
  await expect(page.locator(".where")).toHaveText("start");
  await page.clock.pauseAt(1_000_000);
  await page.getByRole("button", { name: "Play" }).click();
  let seen = 0;
  for (let i = 0; i < 8; i++) {
    await page.clock.runFor(150);
    const outside = await page.locator("svg[data-name=holds] .traveller").evaluateAll((all) =>
      all.map((one) => {
        const tile = one.getBoundingClientRect();
        const picture = one.closest<SVGElement>("svg.picture")!.getBoundingClientRect();
        return Math.max(picture.left - tile.left, tile.right - picture.right);
      }),
    );
    seen += outside.length;
    expect(Math.max(0, ...outside)).toBeLessThanOrEqual(0.5);
  }
  expect(seen).toBeGreaterThan(8);
});

test("names of phases are not cut off, however narrow the screen is", async ({ page }) => {
  await page.setViewportSize({ width: 390, height: 700 });
  for (const step of [1, 5, 8, 12]) {
    await page.goto("about:blank");
    await page.goto(`${exported("two_level", "--ranks", "16")}#step=${step}`);
    const names = await page.locator(".phases button").evaluateAll((all) =>
      all.map((one) => {
        const range = document.createRange();
        range.selectNodeContents(one);
        const { left, right, width } = range.getBoundingClientRect();
        const cut = getComputedStyle(one).overflow !== "visible" && one.scrollWidth > one.clientWidth;
        return {
          shown: width > 0,
          cut: width > 0 && (cut || left < 0 || right > innerWidth),
          is: one.getAttribute("class"),
        };
      }),
    );
    expect(names.filter((one) => one.cut)).toEqual([]);
    expect(names.filter((one) => one.shown && one.is === "is")).toHaveLength(1);
  }
});

test("a view that is opened has its picture in the first frame", async ({ page }) => {
  await page.goto(exported("ring", "--ranks", "4"));
  await expect(page.locator("svg[data-name=holds]")).toBeVisible();
  const empty = await page.evaluate(
    (many) =>
      new Promise<string[]>((done) => {
        const found: string[] = [];
        const open = (i: number): void => {
          if (i === many) return done(found);
          document.querySelectorAll<HTMLElement>("[role=tab]")[i].click();
          // What is painted in the frame in which the view appears, and in the two after it.
          let left = 12;
          let painted = 0;
          const look = (): void => {
            const frames = [...document.querySelectorAll("[role=tabpanel] .frame")];
            if (frames.length) painted++;
            if (frames.some((frame) => !frame.querySelector("svg.picture"))) found.push(`tab ${i}, frame ${painted}`);
            if (painted > 3 || !left--) open(i + 1);
            else requestAnimationFrame(look);
          };
          requestAnimationFrame(look);
        };
        open(0);
      }),
    table.VIEWS.length,
  );
  expect(empty).toEqual([]);
});

test("numbers that the reader types move, and make sums or whatever is chosen", async ({ page }) => {
  await page.goto(exported("ring", "--ranks", "3"));
  const [field, list] = [page.getByLabel("your own numbers"), page.locator(".facts .moves li")];
  await field.fill("1 2 3; 4 5 6; 7 8 9");
  await field.press("Enter");
  await field.blur();
  await page.keyboard.press("ArrowRight");
  await expect(list).toHaveText([
    "rank 0, chunk 1: 2 + 8 from rank 2 = 10",
    "rank 1, chunk 2: 6 + 3 from rank 0 = 9",
    "rank 2, chunk 0: 7 + 4 from rank 1 = 11",
  ]);
  await expect(page.locator(".callout")).toContainText("Rank 0, chunk 1: 2 + 8 from rank 2 = 10.");
  await expect(page.locator(".amount")).toHaveText(["1", "10", "3", "4", "5", "9", "11", "8", "9"]);
  await page.getByLabel("combined by").selectOption("max");
  await expect(list.first()).toHaveText("rank 0, chunk 1: max of 2, 8 from rank 2 = 8");
  await page.locator("h1").click();
  await page.keyboard.press("End");
  await expect(page.locator(".amount")).toHaveText(["7", "8", "9", "7", "8", "9", "7", "8", "9"]);
  // The address holds them.
  await expect.poll(() => page.url()).toMatch(/step=4.*op=max/);
  const link = page.url();
  await page.goto("about:blank");
  await page.goto(link);
  await expect(field).toHaveValue("1 2 3; 4 5 6; 7 8 9");
  await expect(page.locator(".amount").first()).toHaveText("7");
  // What cannot be is a sentence, and the page's own numbers are shown.
  await field.fill("1 2; 3 4");
  await field.press("Enter");
  await expect(page.locator(".own-numbers .alarm")).toContainText("expected 3 rows of equally many numbers");
  await field.fill("");
  await field.press("Enter");
  await expect(page.locator(".own-numbers .alarm")).toHaveCount(0);
  await expect(page.locator(".amount")).toHaveCount(9);
});

/** What is wrong with the layout: something wider than its place, labels over each other or cut off, a canvas that is not sharp. */
const troublesOf = (page: Page): Promise<string[]> =>
  page.evaluate(() => {
    const troubles: string[] = [];
    const wide = document.documentElement.clientWidth;
    for (const one of [document.documentElement, document.querySelector(".pane")!])
      if (one.scrollWidth > one.clientWidth) troubles.push(`${one.tagName} is ${one.scrollWidth} px wide, on ${wide}`);
    for (const svg of document.querySelectorAll("svg.picture")) {
      const labels = [...svg.querySelectorAll("text")]
        .filter((one) => one.textContent && getComputedStyle(one).visibility !== "hidden" && !one.closest(".traveller"))
        .map((one) => ({ text: one.textContent, box: one.getBoundingClientRect() }));
      const { left, width } = svg.getBoundingClientRect();
      const right = left + Math.max(width, svg.parentElement!.scrollWidth);
      labels.forEach((one, i) => {
        if (one.box.left < left - 1 || one.box.right > right + 1)
          troubles.push(`${svg.getAttribute("data-name")}: “${one.text}” is cut off`);
        for (const other of labels.slice(i + 1)) {
          const across = Math.min(one.box.right, other.box.right) - Math.max(one.box.left, other.box.left);
          // The box of a text is higher than its letters.
          const down = Math.min(one.box.bottom, other.box.bottom) - Math.max(one.box.top, other.box.top);
          if (across > 1 && down > 0.3 * Math.min(one.box.height, other.box.height))
            troubles.push(`${svg.getAttribute("data-name")}: “${one.text}” and “${other.text}” overlap`);
        }
      });
    }
    for (const canvas of document.querySelectorAll<HTMLCanvasElement>("canvas.layers")) {
      const pixels = canvas.width / canvas.getBoundingClientRect().width;
      if (Math.abs(pixels - Math.min(3, devicePixelRatio)) > 0.02)
        troubles.push(`a canvas has ${pixels} pixels per pixel`);
    }
    return troubles;
  });

const LAYOUTS: [algorithm: string, ranks: string, step: number][] = [
  ["ring", "4", 3],
  ["tree", "8", 2],
  ["two_level", "16", 5],
  ["double_tree", "64", 4],
  ["ring", "256", 130],
];

for (const [algorithm, ranks, step] of LAYOUTS)
  test(`${algorithm} of ${ranks} fits on screens of 390, 768 and 1440 px, and no label lies over another`, async ({
    page,
  }) => {
    const file = exported(algorithm, "--ranks", ranks);
    for (const width of [390, 768, 1440]) {
      await page.setViewportSize({ width, height: 900 });
      for (const { name } of table.VIEWS) {
        await page.goto("about:blank");
        await page.goto(`${file}#view=${name}&step=${step}`);
        await expect(page.locator(`#view-${name}`)).toBeVisible();
        await page.evaluate(() => new Promise(requestAnimationFrame).then(() => new Promise(requestAnimationFrame)));
        expect.soft(await troublesOf(page), `${name} at ${width} px`).toEqual([]);
      }
    }
  });
