/** The site that `make site` built, opened from disk: read a lesson, commit to its predictions, look around. */

import { existsSync } from "node:fs";
import { expect, path, source, test } from "./allfold";

const SITE = path("build/site");
const at = (page: string): string => `file://${SITE}/${page}`;

test.beforeAll(() => {
  if (!existsSync(`${SITE}/index.html`)) throw new Error("the site is not built: make site builds it");
});

for (const [width, height] of [
  [390, 844],
  [1440, 900],
]) {
  test(`a reader takes a lesson, at ${width} px`, async ({ page }) => {
    await page.setViewportSize({ width, height });
    await page.goto(at("lessons/index.html"));
    await page.getByRole("article").getByRole("link", { name: "Chunks and the ring" }).click();
    await expect(page.getByRole("heading", { level: 1 })).toContainText("Chunks and the ring");
    const questions = page.locator(".predict");
    await expect(questions).toHaveCount(3);
    await expect(questions.locator("details:visible")).toHaveCount(0); // nothing is given away
    const first = questions.first();
    await first.getByRole("spinbutton").fill("16");
    await first.getByRole("button", { name: "commit" }).click();
    await expect(first.getByRole("status")).toHaveText("≠ You said 16; it is 14.");
    await expect(first.locator("details p")).toContainText("Once around is 7 steps");
    await first.getByRole("spinbutton").fill("14");
    await first.getByRole("spinbutton").press("Enter");
    await expect(first.getByRole("status")).toHaveText("✓ 14, as you said.");
    const last = questions.last();
    await last.getByRole("spinbutton").fill("1.99"); // within one per cent
    await last.getByRole("button", { name: "commit" }).click();
    await expect(last).toHaveAttribute("data-right", "true");
    await expect(questions.locator("details:visible")).toHaveCount(2);

    // Pictures are there, fit, and can be played.
    const picture = page.getByRole("img", { name: "all_reduce by ring, 4 ranks, step by step" });
    await picture.scrollIntoViewIfNeeded();
    expect(await picture.evaluate((one: HTMLImageElement) => one.naturalWidth)).toBeGreaterThan(100);
    const wide = await page.evaluate(() => document.documentElement.scrollWidth);
    expect(wide).toBeLessThanOrEqual(width);
    await page.getByRole("link", { name: "Play it step by step" }).click();
    await expect(async () => {
      await page.keyboard.press("End"); // again, until the page that was just opened listens
      await expect(page.locator(".progress")).toContainText("16 of 16 cells as promised", { timeout: 1000 });
    }).toPass();
    await page.goBack();
    await page.getByRole("article").getByRole("link", { name: "Counting" }).click();
    await expect(page.getByRole("heading", { level: 1 })).toContainText("Counting");
  });

  test(`the gallery and the docs are there, at ${width} px`, async ({ page }) => {
    await page.setViewportSize({ width, height });
    await page.goto(at("about.html"));
    await expect(page.getByRole("heading", { level: 1 })).toContainText("allfold");
    const first = page.getByRole("article").getByRole("img").first();
    await expect.poll(() => first.evaluate((one: HTMLImageElement) => one.naturalWidth)).toBeGreaterThan(100);
    expect(await first.evaluate((one: HTMLImageElement) => one.currentSrc)).toContain("ring-moving-light.svg");
    await page.emulateMedia({ colorScheme: "dark" });
    await expect
      .poll(() => first.evaluate((one: HTMLImageElement) => one.currentSrc))
      .toContain("ring-moving-dark.svg");
    await page.emulateMedia({ colorScheme: "light", reducedMotion: "reduce" }); // in the dark, the picture itself keeps still
    await expect.poll(() => first.evaluate((one: HTMLImageElement) => one.currentSrc)).toContain("gallery/ring.svg");
    await page.emulateMedia({ colorScheme: null, reducedMotion: null });
    await expect(page.getByRole("search")).toHaveCount(0); // left out: from disk it would load a script from elsewhere
    await page.goto(at("docs/gallery.html"));
    const pictures = page.getByRole("article").getByRole("img");
    expect(await pictures.count()).toBeGreaterThan(40);
    await pictures.last().scrollIntoViewIfNeeded();
    await expect.poll(() => pictures.last().evaluate((one: HTMLImageElement) => one.naturalWidth)).toBeGreaterThan(100);
    for (const name of ["docs/language.html", "docs/learn.html", "CHANGELOG.html", "lessons/14_prefixes.html"]) {
      await page.goto(at(name));
      await expect(page.getByRole("heading", { level: 1 })).toBeVisible();
    }
  });
}

test("an edit is proved in the page, an endless loop ends, and a link brings the code", async ({ page, context }) => {
  test.setTimeout(600_000); // Python starts three times, perhaps on a busy machine
  const patient = { timeout: 240_000 };
  await page.goto(at("index.html"));
  const shared = await page.locator('meta[property="og:image"]').getAttribute("content");
  expect(existsSync(`${SITE}/${shared}`)).toBe(true);
  // It is painted before any Python is there: the code that it begins with is proved already.
  await expect(page.locator(".lights .right")).toHaveCount(17);
  await expect(page.locator(".starting")).toHaveCount(0);
  const code = page.getByLabel("Source of the algorithm");
  const begun = await code.inputValue();
  await code.fill(begun.replace("(r - step) % ranks", "(r - step + 1) % ranks"));
  await expect(page.locator(".starting")).toContainText("Python");
  await expect(page.locator(".beside .alarm")).toContainText("around.py:", patient);
  await expect(page.locator(".lights .wrong").first()).toBeVisible(patient);
  await expect(page.locator(".lights [role=status]")).toContainText("Wrong for");
  await code.fill("from allfold import copy\n\n\ndef endless(ranks):\n    while True:\n        pass\n    yield []\n");
  await expect(page.locator(".listing .alarm")).toContainText("does every loop end?", patient);
  await code.fill(`${begun}\n# mine\n`);
  await expect(page.locator(".beside .good")).toContainText("every contribution arrives exactly once", patient);
  await expect(page.locator(".lights .right")).toHaveCount(17, patient);
  await expect(page.locator(".lights [role=status]")).toContainText("Proved for 1 to 17 ranks");
  await expect.poll(() => page.url()).toContain("code=");
  const other = await context.newPage();
  await other.goto(page.url());
  await expect(other.getByLabel("Source of the algorithm")).toHaveValue(`${begun}\n# mine\n`);
  await expect(other.locator(".beside .good")).toContainText("every contribution arrives exactly once", patient);
  await other.goto(`${at("index.html")}#code=nonsense!`);
  await other.reload();
  await expect(other.locator(".notice")).toContainText("damaged");
});

test("a lesson is judged in the page, and its progress stays", async ({ page }) => {
  test.setTimeout(600_000);
  const patient = { timeout: 240_000 };
  await page.goto(at("index.html#lesson=four_numbers"));
  await page.getByRole("button", { name: "Start" }).click();
  const solution = source("src/allfold/learn/lessons/01_four_numbers/solution.py");
  await page.getByLabel("Your code").fill(solution);
  await page.getByRole("button", { name: "Check" }).click();
  await expect(page.locator(".judgement .good")).toHaveCount(2, patient);
  await expect(page.locator(".judgement .good").first()).toContainText("proved for 1 to 17 ranks");
  await page.reload();
  await expect(page.getByLabel("Your code")).toHaveValue(solution);
  await expect(page.locator(".tasks i").first()).toHaveText("✓");
  await page.goto(at("index.html#lesson=hosts"));
  await page.getByRole("button", { name: "Start" }).click();
  await expect(page.locator(".tasks .elsewhere")).toContainText("pip install allfold");
});
