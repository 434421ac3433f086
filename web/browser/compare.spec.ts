/** Two schedules beside each other, and numbers that travel. */

import { readFileSync } from "node:fs";
import { expect, exported, program, test } from "./allfold";

let address: string;

test.beforeAll(() => {
  address = exported("ring", "tree", "--ranks", "4", "--compare");
});

test("every view shows both, on one clock, and says why one is faster", async ({ page }) => {
  await page.goto(address);
  await expect(page.locator(".versus .reason")).toHaveText(
    /^ring is [\d.]+ times as fast as tree, .* because it spends .* less on moving bytes/,
  );
  await expect(page.locator(".side")).toHaveCount(2);
  await expect(page.locator(".side h3").first()).toContainText("step 0 of 6");
  await page.keyboard.press("End");
  await expect(page.locator(".side h3").first()).toContainText("step 6 of 6");
  await expect(page.locator('.side [data-right="false"]')).toHaveCount(0);
  const time = page.locator(".versus-facts tr", { hasText: /^time/ });
  await expect(time.locator("td").first().locator("b")).toHaveCount(1);
  await page.keyboard.press("2");
  await expect(page.locator(".band")).toHaveCount(2);
  await expect(page.locator(".earlier text")).toHaveText(/^ring ends .* earlier$/);
  // One axis: both have the same ticks.
  const [one, other] = await Promise.all(
    [0, 1].map((i) => page.locator(".band").nth(i).locator(".ruler text").allTextContents()),
  );
  expect(one).toEqual(other);
  await page.keyboard.press("3");
  await expect(page.locator("svg[data-name=difference]")).toBeVisible();
  await page.keyboard.press("6");
  await expect(page.locator(".diff .row.gone").first()).toBeVisible();
  await page.getByRole("button", { name: "stop comparing" }).click();
  await expect(page.locator(".versus")).toHaveCount(0);
  expect(page.url()).toContain("view=code");
});

test("a recorded run stands beside its simulation in every view", async ({ page }) => {
  await page.goto(exported("ring", "--ranks", "4", "--measure", "--compare"));
  await expect(page.locator(".versus .reason")).toHaveText(
    /^The recorded run (took|was) [\d.]+ times as (long|fast) as the simulation on .*: its ranks were idle for \d+ % of the time, not \d+ %\.$/,
  );
  await expect(page.locator(".side h3")).toContainText(["simulated", "measured"]);
  await page.keyboard.press("End");
  await expect(page.locator(".side h3")).toContainText(["step 6 of 6", "step 6 of 6"]);
  await expect(page.locator(".versus-facts th[scope=row]")).toHaveText([
    "time",
    "ranks idle",
    ...[1, 2, 3, 4, 5, 6].map((step) => `step ${step} done`),
  ]);
  await page.keyboard.press("2");
  await expect(page.locator(".band")).toHaveCount(2);
  await page.keyboard.press("3");
  await expect(page.locator(".versus > .note")).toContainText("nothing differs");
  await expect(page.locator(".growing")).toHaveText("After step 6: 6 MiB of 6 MiB sent.");
  await page.keyboard.press("4");
  await expect(page.locator(".lane h3")).toContainText(["ring", "the recording"]);
  await page.keyboard.press("End");
  await expect(page.locator(".result")).toContainText("the recording");
  await expect(page.locator(".stand")).toHaveCount(2);
  await page.keyboard.press("6");
  await expect(page.locator(".listing [data-line]").first()).toBeVisible();
});

test("a message says what it waited for, and leads there", async ({ page }) => {
  await page.goto(`${address}#view=time&collective=all_reduce&algorithm=ring&ranks=4&clock=modelled&step=2`);
  await page.locator(".spacetime").focus();
  for (let i = 0; i < 3; i++) await page.keyboard.press("ArrowDown");
  await page.keyboard.press("Enter");
  await expect(page.locator(".told")).toContainText(/It waited for .*(no slack|could end)/);
  const before = await page.locator(".told").innerText();
  await page.getByRole("button", { name: "← what it waited for" }).click();
  await expect(page.locator(".told")).not.toHaveText(before);
});

test("an arrow key plays its step: numbers travel and merge", async ({ page }) => {
  await page.clock.install({ time: 0 });
  await page.goto(`${address}#view=holds&collective=all_reduce&algorithm=ring&ranks=4`);
  await expect(page.locator(".where")).toHaveText("start");
  await page.clock.pauseAt(1_000_000);
  for (const [key, place] of [
    ["ArrowRight", "step 1 of 6"],
    ["ArrowLeft", "start"],
  ]) {
    await page.keyboard.press(key);
    await page.clock.runFor(350); // half of a step: it takes 0.7 s
    await expect(page.locator(".travel .tile")).toHaveCount(4);
    await expect(page.locator(".where")).toHaveText("step 1 of 6");
    await page.clock.runFor(600);
    await expect(page.locator(".travel")).toHaveCount(0);
    await expect(page.locator(".where")).toHaveText(place);
  }
});

test("data and clips are files for other programs", async ({ page }) => {
  await page.goto(`${address}#view=holds&collective=all_reduce&algorithm=ring&ranks=4`);
  const [data] = await Promise.all([
    page.waitForEvent("download"),
    page.getByLabel("Save data").selectOption("schedule (JSON)"),
  ]);
  const schedule = JSON.parse(readFileSync(await data.path(), "utf8")) as { algorithm: string };
  expect(schedule.algorithm).toBe("ring");
  const [msccl] = await Promise.all([
    page.waitForEvent("download"),
    page.getByLabel("Save data").selectOption("MSCCL XML"),
  ]);
  expect(readFileSync(await msccl.path(), "utf8")).toBe(program("export", "ring", "--ranks", "4", "--to", "msccl-xml"));
  const [clip] = await Promise.all([
    page.waitForEvent("download"),
    page.getByRole("button", { name: "clip", exact: true }).click(),
  ]);
  // The first bytes of a WebM file.
  expect(
    readFileSync(await clip.path())
      .subarray(0, 4)
      .toString("hex"),
  ).toBe("1a45dfa3");
});

test("a comparison is taken along as one picture of both", async ({ page }) => {
  await page.goto(`${address}#view=time`);
  await expect(page.locator(".versus .reason")).toBeVisible();
  await expect(page.locator(".versus").getByRole("button", { name: "clip", exact: true })).toBeVisible();
  const [file] = await Promise.all([
    page.waitForEvent("download"),
    page.locator(".versus").getByRole("button", { name: "SVG", exact: true }).click(),
  ]);
  const picture = readFileSync(await file.path(), "utf8");
  expect(picture.match(/<svg [^>]*viewBox/g)!.length).toBeGreaterThanOrEqual(3); // the file, and both bands
  expect(picture).toContain("all_reduce: ring and tree");
});

test("a search selects a cell, and says what there is not", async ({ page }) => {
  await page.goto(`${address}#view=holds&collective=all_reduce&algorithm=ring&ranks=4`);
  const search = page.getByLabel(/^Search/);
  await search.fill("rank 2 chunk 3");
  await search.press("Enter");
  await expect(page.locator(".pinned")).toContainText("rank 2 chunk 3");
  await search.fill("rank 9");
  await search.press("Enter");
  await expect(page.locator(".notice")).toContainText("There are ranks 0 to 3, no rank 9.");
});
