import { readFileSync } from "node:fs";
import type { Page } from "@playwright/test";
import * as table from "../src/views/table";
import { cutShort, exported, expect, planned, test } from "./allfold";

const VIEWS = table.VIEWS.map((view) => view.name);
let address = "";

test.beforeAll(() => {
  address = exported("ring", "--ranks", "8");
});

test("keys play, step and change views; the address follows, and shows the same again", async ({ page }) => {
  await page.goto(address);
  await page.keyboard.press("ArrowRight");
  await page.keyboard.press("ArrowRight");
  await expect(page.locator(".where")).toHaveText(/^step 2 of/);
  await page.keyboard.press("ArrowLeft");
  await expect(page.locator(".where")).toHaveText(/^step 1 of/);
  await page.keyboard.press("End");
  await expect(page.locator(".where")).toHaveText(/^step 14 of/);
  await page.keyboard.press("2");
  await expect(page.locator("#view-time")).toBeVisible();
  await expect.poll(() => page.url()).toContain("view=time");
  await expect.poll(() => page.url()).toContain("step=14");
  const link = page.url();
  await page.goto("about:blank");
  await page.goto(link);
  await expect(page.locator("#view-time")).toBeVisible();
  await expect(page.locator(".where")).toHaveText(/^step 14 of/);
  await page.keyboard.press("?");
  await expect(page.getByRole("dialog")).toBeVisible();
  await expect(page.getByRole("dialog").getByRole("heading")).toBeInViewport();
  await page.keyboard.press("Escape");
  await expect(page.getByRole("dialog")).toHaveCount(0);
});

test("an address that asks for what the file does not hold shows what it has, and says so", async ({ page }) => {
  const notice = page.locator(".notice");
  await page.goto(`${address}#collective=gather&algorithm=nobody&ranks=77&view=time`);
  await expect(page.locator("#view-time svg.picture")).toBeVisible();
  await expect(page.locator("h1")).toContainText("8 ranks");
  await expect(notice).toContainText("does not hold gather, nobody, 77 ranks");
  await expect(notice).toContainText("It shows all_reduce, ring, 8 ranks");
  await page.goto("about:blank");
  await page.goto(`${address}#collective=all_reduce&algorithm=tree&ranks=3000`);
  await expect(page.locator("h1 b")).toHaveText("tree");
  await expect.poll(() => page.url()).toContain("ranks=8");
  await expect(notice).toContainText("does not hold 3000 ranks. It shows 8 ranks.");
  await notice.getByRole("button").click();
  await expect(notice).toHaveCount(0);
  await page.goto("about:blank");
  await page.goto(`${address}#ranks=many`);
  await expect(notice).toContainText("ranks=many, which means nothing");
});

test("a map cell that the file does not hold says so, and how to get it", async ({ page }) => {
  await page.goto(`${address}#view=wins`);
  await page.locator("svg[data-name=map] .tile").first().click();
  await expect(page.locator(".notice")).toContainText("This file does not hold");
  await expect(page.locator(".notice")).toContainText("--html");
  await expect(page.locator("#view-wins")).toBeVisible();
  await page.locator("svg[data-name=map] .tile.current").click();
  await expect(page.locator("#view-holds")).toBeVisible();
  await expect(page.locator(".notice")).toHaveCount(0);
});

test("space plays and pauses, and motion is left out where it is not wanted", async ({ page }) => {
  await page.emulateMedia({ reducedMotion: "reduce" });
  await page.goto(address);
  await page.keyboard.press(" ");
  await expect(page.getByRole("button", { name: "Pause" })).toBeVisible();
  await expect(page.locator(".where")).toHaveText(/^step 1 of/);
  expect(await page.locator(".traveller").count()).toBe(0);
  await page.keyboard.press(" ");
  await expect(page.getByRole("button", { name: "Play" })).toBeVisible();
});

test("what is pointed at stays bright in every view", async ({ page, viewport }) => {
  test.skip(viewport!.width < 1080, "a phone shows one view at a time");
  await page.goto(`${address}#step=3&beside=time&clock=modelled`);
  await page.locator("#view-holds .labels .hot", { hasText: "rank 2" }).hover();
  const faded = (selector: string): Promise<string> =>
    page
      .locator(selector)
      .first()
      .evaluate((one) => getComputedStyle(one).opacity);
  await expect.poll(() => faded('#view-time [data-r="5"]')).toBe("0.22");
  expect(await faded('#view-time [data-r="2"]')).toBe("1");
  await expect.poll(() => faded('#view-holds [data-cell="5 1"]')).toBe("0.22");
});

test("a click on a cell shows how its content has come together", async ({ page }) => {
  await page.goto(`${address}#step=14`);
  await page.locator('[data-cell="2 4"]').click();
  await expect(page.locator(".provenance li")).toHaveCount(8);
  await expect(page.locator(".provenance")).toContainText("Rank 2, chunk 4 holds the parts of all ranks, combined");
  await expect(page.locator(".provenance")).toContainText("came via 5 → 6 → 7 → 0 → 1 → 2");
  await page.keyboard.press("Escape");
  await expect(page.locator(".provenance")).toHaveCount(0);
});

test("every picture has its words", async ({ page }) => {
  await page.goto(`${address}#step=4`);
  await expect(page.locator(".twin")).toContainText("Step 4: rank 0 sends chunk 4 to rank 1, reduced");
  for (const view of VIEWS) {
    await page.goto(`${address}#view=${view}&step=4`);
    for (const picture of await page.locator("svg.picture").all())
      expect(await picture.getAttribute("aria-label")).toBeTruthy();
    expect((await page.locator(`#view-${view} .twin`).first().innerText()).length).toBeGreaterThan(20);
  }
  await page.getByRole("button", { name: "text" }).click();
  await expect(page.locator(".twin").first()).toBeVisible();
});

test("who wins where is what allfold plan says; what if is labelled, and moves the winners", async ({ page }) => {
  await page.goto(`${address}#view=wins`);
  const words = page.locator("#view-wins .twin");
  const before = await words.innerText();
  expect(before).toContain("as allfold plan prices it");
  const plan = planned("--collective", "all_reduce", "--topology", "hosts:ranks_per_host=4", "--ranks", "8");
  const best = page.locator(".values li").first();
  await expect(best).toContainText(plan.winner);
  await expect(best).toContainText("best");
  await page.getByRole("button", { name: "what if" }).click();
  await page.getByRole("slider", { name: "latency" }).fill("1000");
  await expect(words).toContainText("What if every rank had one port with a latency of 100 µs");
  expect(await words.innerText()).not.toBe(before);
  await page.getByRole("button", { name: "as planned" }).click();
  expect(await words.innerText()).toBe(before);
});

test("the race ends with everything arrived, the lower bound before everybody", async ({ page }) => {
  await page.goto(`${address}#view=race&rivals=naive,driver`);
  await page.getByRole("slider", { name: "Race time" }).fill("100");
  await expect(page.locator(".lane").nth(1)).not.toContainText("arrived100 %");
  await page.getByRole("slider", { name: "Race time" }).fill("1000");
  for (const lane of await page.locator(".lane").all()) await expect(lane).toContainText("arrived100 %");
  await expect(page.locator(".least")).toContainText("lower bound");
});

test("nothing is cut off without a hint: 64 ranks fit a phone, and wide pictures say that they go on", async ({
  page,
}) => {
  await page.setViewportSize({ width: 390, height: 844 });
  const wide = (): Promise<[number, number]> =>
    page.locator("#view-holds .frame").evaluate((frame) => [frame.scrollWidth, frame.clientWidth]);
  await page.goto(`${exported("ring", "--ranks", "64")}#step=9`);
  await expect(page.locator("#view-holds svg.picture")).toBeVisible();
  const [all, seen] = await wide();
  expect(all).toBeLessThanOrEqual(seen);
  await page.goto(`${exported("ring", "--collective", "all_gather", "--ranks", "16")}#view=holds`);
  await expect(page.locator("#view-holds svg.picture")).toBeVisible();
  const [needed, there] = await wide();
  await expect(page.locator("#view-holds .goes-on-hint")).toHaveCount(needed > there + 1 ? 1 : 0);
});

test("the shape of the algorithm stands beside the grid, and its arrows move with it", async ({ page }) => {
  await page.goto(address);
  const shape = page.locator("svg[data-name=shape]");
  await expect(shape.locator("circle.rank")).toHaveCount(8);
  await expect(shape.locator(".arc")).toHaveCount(0);
  await page.keyboard.press("ArrowRight");
  await expect(shape.locator(".arc.reduce")).toHaveCount(8);
  await page.keyboard.press("End");
  await expect(shape.locator(".arc.copy")).toHaveCount(8);
});

test("the grid shows numbers that add up, or contributions if one prefers", async ({ page }) => {
  await page.goto(address);
  await expect(page.locator(".amount")).toHaveCount(64);
  const column = await page.locator('[data-cell$=" 3"] .amount').allTextContents();
  await page.keyboard.press("End");
  const sum = column.map(Number).reduce((all, one) => all + one, 0);
  for (const cell of await page.locator('[data-cell$=" 3"] .amount').allTextContents()) expect(Number(cell)).toBe(sum);
  await expect(page.locator('[data-cell="0 3"] title')).toHaveText(`${column.join(" + ")} = ${sum}`);
  await page.getByRole("button", { name: "show contributions" }).click();
  await expect(page.locator(".amount")).toHaveCount(0);
  await expect(page.locator(".mark").first()).toBeVisible();
});

test("it opens with what is going on; every step has its sentence, and phases are named on the scrubber", async ({
  page,
  viewport,
}) => {
  await page.goto(address);
  await expect(page.locator(".opening")).toContainText(
    "Every rank has a list of numbers, and every rank wants the sum",
  );
  await page.keyboard.press("ArrowRight");
  await expect(page.locator(".opening .shown")).toHaveText(
    "Every rank passes a chunk to the next rank, where it is added.",
  );
  const phase = page.locator(".phases").getByRole("button", { name: "hand out" });
  // On a phone the scrubber is as high as a finger, and covers the names: there they are only read.
  if (viewport!.width > 1000) await phase.click();
  else for (let step = 2; step <= 8; step++) await page.keyboard.press("ArrowRight");
  await expect(phase).toHaveClass("is");
  await expect(page.locator(".where")).toHaveText("step 8 of 14");
  await expect(page.locator(".sentence .shown")).toHaveText(
    "hand out: Every rank passes a finished chunk on to the next rank.",
  );
});

for (const width of [390, 1024, 1440]) {
  test(`the player covers nothing at ${width} pixels`, async ({ page }) => {
    await page.setViewportSize({ width, height: 700 });
    await page.goto(`${address}#step=4`);
    const player = (await page.locator(".bar").boundingBox())!;
    const pane = (await page.locator(".pane").boundingBox())!;
    expect(pane.y + pane.height).toBeLessThanOrEqual(player.y + 0.5);
    expect(player.y + player.height).toBeLessThanOrEqual(700.5);
    // What is lowest on the page can be scrolled into sight above it.
    await page.locator(".counts tr").last().scrollIntoViewIfNeeded();
    const last = (await page.locator(".counts tr").last().boundingBox())!;
    expect(last.y + last.height).toBeLessThanOrEqual(player.y);
  });
}

for (const width of [390, 1440]) {
  test(`no word leaves its picture at ${width} pixels`, async ({ page }) => {
    await page.setViewportSize({ width, height: 900 });
    const [many, wrong] = [exported("ring", "--ranks", "33"), exported(...cutShort(8))];
    for (const where of [address, many, wrong]) {
      for (const view of VIEWS) {
        await page.goto("about:blank");
        await page.goto(`${where}#view=${view}&step=4&clock=modelled`);
        await expect(page.locator(`#view-${view} svg.picture`).first()).toBeVisible();
        expect(await page.evaluate(wordsOutside), `${where} ${view}`).toEqual([]);
      }
    }
  });
}

/** The words of pictures that reach beyond them, by more than a pixel. */
function wordsOutside(): string[] {
  return [...document.querySelectorAll("svg.picture")].flatMap((picture) => {
    const frame = picture.getBoundingClientRect();
    return [...picture.querySelectorAll("text")]
      .filter((word) => {
        const box = word.getBoundingClientRect();
        return box.width > 0 && (box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 1);
      })
      .map((word) => word.textContent ?? "");
  });
}

test("at night a crowd says that bright is much", async ({ page }) => {
  await page.emulateMedia({ colorScheme: "dark" });
  await page.goto(`${exported("tree", "--ranks", "128")}`);
  await expect(page.locator("#view-holds svg.picture")).toContainText("the brighter, the more has arrived");
});

/** Some words of the legend of every view; the code explains itself. */
const LEGENDS: Record<string, string[]> = {
  holds: ["as all_reduce promises", "changed in this step"],
  time: ["a message, added on arrival", "critical path"],
  bytes: ["bottleneck", "in use all the time"],
  race: ["no algorithm is faster"],
  wins: ["recursive_doubling"],
  code: [],
};

for (const view of VIEWS) {
  test(`${view} can be saved as SVG and as PNG`, async ({ page }) => {
    await page.goto(`${address}#view=${view}&step=5`);
    const svg = await save(page, "SVG");
    expect(svg.name).toBe(`all_reduce-ring-8-${view}-step5.svg`);
    const text = svg.content.toString("utf8");
    expect(text).toContain('<svg xmlns="http://www.w3.org/2000/svg"');
    expect(text).not.toContain("var(--");
    for (const words of LEGENDS[view]) expect(text).toContain(`>${words}<`);
    const wellFormed = await page.evaluate(
      (given) => new DOMParser().parseFromString(given, "image/svg+xml").querySelector("parsererror") === null,
      text,
    );
    expect(wellFormed).toBe(true);
    const png = await save(page, "PNG");
    expect(png.content.subarray(1, 4).toString()).toBe("PNG");
    expect(png.content.length).toBeGreaterThan(5000);
  });
}

async function save(page: Page, kind: string): Promise<{ name: string; content: Buffer }> {
  const coming = page.waitForEvent("download");
  await page.getByRole("button", { name: kind, exact: true }).click();
  const download = await coming;
  return { name: download.suggestedFilename(), content: readFileSync(await download.path()) };
}

for (const width of [390, 1440]) {
  for (const colorScheme of ["light", "dark"] as const) {
    test(`all views fit ${width} pixels, ${colorScheme}`, async ({ page }, info) => {
      await page.setViewportSize({ width, height: 900 });
      await page.emulateMedia({ colorScheme });
      for (const view of VIEWS) {
        await page.goto(`${address}#view=${view}&step=5`);
        await expect(page.locator(`#view-${view} svg.picture`).first()).toBeVisible();
        expect(await page.evaluate(() => document.documentElement.scrollWidth)).toBeLessThanOrEqual(width);
        const pane = await page.locator(".pane").evaluate((one) => [one.scrollWidth, one.clientWidth]);
        expect(pane[0], view).toBeLessThanOrEqual(pane[1]);
        await page.screenshot({ path: info.outputPath(`${view}.png`), fullPage: width < 1000 });
      }
      expect(await page.evaluate(() => document.documentElement.dataset.theme)).toBe(colorScheme);
    });
  }
}

test("a network of many ranks is drawn by class; a host of it is opened by a click or from the list", async ({
  page,
}) => {
  await page.goto(`${exported("ring", "--ranks", "64")}#view=bytes&step=40`);
  const classes = page.locator(".link-class");
  await expect(classes).toHaveCount(5);
  await expect(page.locator('[data-class="ports of ranks, out"] text')).toContainText(/64 × ports of ranks, out/);
  const strip = page.locator('[data-class="ports of ranks, out"] .over');
  await strip.scrollIntoViewIfNeeded();
  const { width, height } = (await strip.boundingBox())!;
  // The bar of rank 37, which is on host 9.
  await strip.click({ position: { x: (37.5 / 64) * width, y: height / 2 } });
  await expect(page.locator(".busiest caption").first()).toHaveText("The links of host 9, ranks 36 to 39");
  await expect(page.locator("#view-bytes svg.picture .rank")).toHaveCount(4);
  await expect(page.locator("#view-bytes svg.picture .inside")).toHaveText(["36", "37", "38", "39"]);
  await page.getByLabel("look inside").selectOption("2");
  await expect(page.locator(".busiest caption").first()).toContainText("The links of host 2");
  await page.getByRole("button", { name: "‹ all 16 hosts" }).click();
  await expect(classes).toHaveCount(5);
  await page.getByRole("radio", { name: "pairs of ranks" }).click();
  await expect(page.locator("#view-bytes .pair")).toHaveCount(64);
});
