/** Space and time: lines that can be pointed at, zoomed and moved. */

import type { Locator, Page } from "@playwright/test";
import { expect, exported, test } from "./allfold";

let address: string;
let many: string;

test.beforeAll(() => {
  address = exported("ring", "--ranks", "8");
  many = exported("ring", "--ranks", "256");
});

async function messages(page: Page): Promise<number> {
  return Number(await page.locator("#view-time [data-messages]").getAttribute("data-messages"));
}

/** The part that is shown, in the strip below the picture. */
const shownPart = (page: Page): Locator => page.locator("#view-time .overview .shown");

async function open(page: Page, hash = "clock=steps&step=3"): Promise<Locator> {
  await page.goto(`${address}#view=time&${hash}`);
  const picture = page.locator("#view-time .spacetime");
  await expect(picture.locator("svg")).toBeVisible();
  return picture;
}

/** A place on the line of the message from rank 1 to rank 2 in step 3, on the clock of steps. */
async function onALine(page: Page): Promise<{ x: number; y: number }> {
  const label = (await page.locator("#view-time .label", { hasText: /^(rank )?1$/ }).boundingBox())!;
  const next = (await page.locator("#view-time .label", { hasText: /^(rank )?2$/ }).boundingBox())!;
  const ticks = await page
    .locator("#view-time .ruler line.hair")
    .evaluateAll((lines) => lines.map((line) => line.getBoundingClientRect().x));
  const names = await page.locator("#view-time .ruler text").allTextContents();
  const perStep = (ticks[ticks.length - 1] - ticks[0]) / (Number(names[names.length - 1]) - Number(names[0]));
  const y = (label.y + next.y + label.height) / 2;
  return { x: ticks[0] + (2.43 - Number(names[0])) * perStep, y };
}

test("a message that is pointed at shows its band and its sentence", async ({ page }) => {
  await open(page);
  await expect(page.locator(".picked")).toHaveCount(0);
  const { x, y } = await onALine(page);
  await page.mouse.move(x, y);
  await expect(page.locator(".told")).toHaveText(/^Step 3: rank 1 sends chunk \d to rank 2, where it is added\.$/);
  await expect(page.locator(".picked .bytes")).toHaveCount(1);
  await page.mouse.click(x, y);
  await expect(page.locator(".where")).toHaveText("step 3 of 14");
  // What was clicked stays, until a click on nothing.
  await page.mouse.move(5, 5);
  await expect(page.locator(".picked")).toHaveCount(1);
  const { x: left, y: top } = (await page.locator("#view-time .spacetime").boundingBox())!;
  await page.mouse.click(left + 3, top + 3);
  await expect(page.locator(".picked")).toHaveCount(0);
});

test("on the modelled clock the sentence says when", async ({ page }) => {
  const picture = await open(page, "clock=modelled");
  await picture.focus();
  await page.keyboard.press("ArrowDown");
  await expect(page.locator(".told")).toHaveText(/It starts at .*, arrives at .* and is added at/);
});

test("by keyboard messages are chosen, and the picture is zoomed and moved; the player stays", async ({ page }) => {
  const picture = await open(page);
  expect(await messages(page)).toBe(112);
  await picture.focus();
  await page.keyboard.press("ArrowDown");
  const first = await page.locator(".told").innerText();
  expect(first).toMatch(/^Step 3: rank 0 sends/);
  await page.keyboard.press("ArrowDown");
  await expect(page.locator(".told")).not.toHaveText(first);
  for (let i = 0; i < 3; i++) await page.keyboard.press("+");
  const fewer = await messages(page);
  expect(fewer).toBeLessThan(60);
  await expect(page.locator(".overview")).toBeVisible();
  const before = (await shownPart(page).getAttribute("x"))!;
  await page.keyboard.press("PageDown");
  await expect(shownPart(page)).not.toHaveAttribute("x", before);
  await page.keyboard.press("0");
  await expect(page.locator(".overview")).toHaveCount(0);
  expect(await messages(page)).toBe(112);
  await expect(page.locator(".where")).toHaveText("step 3 of 14");
});

test("wheel, drag and buttons zoom and move", async ({ page, isMobile }) => {
  test.skip(isMobile, "a phone has no wheel; the test below is for fingers");
  const picture = await open(page);
  const box = (await picture.boundingBox())!;
  const [x, y] = [box.x + box.width / 2, box.y + box.height / 2];
  await page.mouse.move(x, y);
  await page.keyboard.down("Control");
  await page.mouse.wheel(0, -100);
  await page.keyboard.up("Control");
  await expect(page.locator(".overview")).toBeVisible();
  const before = (await shownPart(page).getAttribute("x"))!;
  await page.mouse.down();
  await page.mouse.move(x - 200, y, { steps: 4 });
  await page.mouse.up();
  await expect(shownPart(page)).not.toHaveAttribute("x", before);
  await expect(page.locator(".where")).toHaveText("step 3 of 14"); // a drag is no click
  await page.getByRole("button", { name: "all", exact: true }).click();
  await expect(page.locator(".overview")).toHaveCount(0);
  await page.getByRole("button", { name: "Zoom in" }).click();
  await expect(page.locator(".overview")).toBeVisible();
  await page.getByRole("button", { name: "Zoom out" }).click();
  await expect(page.locator(".overview")).toHaveCount(0);
  // Without Ctrl the wheel scrolls the page.
  await page.mouse.move(x, y);
  await page.mouse.wheel(0, -100);
  await expect(page.locator(".overview")).toHaveCount(0);
});

test("two fingers zoom, a tap points", async ({ browser }) => {
  const context = await browser.newContext({ viewport: { width: 390, height: 844 }, hasTouch: true, isMobile: true });
  const page = await context.newPage();
  const picture = await open(page);
  await picture.scrollIntoViewIfNeeded();
  const { x, y } = await onALine(page);
  await page.touchscreen.tap(x, y);
  await expect(page.locator(".told")).toHaveText(/^Step \d+: rank \d sends chunk \d to rank \d/);
  const session = await context.newCDPSession(page);
  const fingers = async (type: "touchStart" | "touchMove" | "touchEnd", apart: number): Promise<void> => {
    const touchPoints = type === "touchEnd" ? [] : [-1, 1].map((side, id) => ({ x: 195 + side * apart, y, id }));
    await session.send("Input.dispatchTouchEvent", { type, touchPoints });
  };
  await fingers("touchStart", 30);
  for (const apart of [50, 70, 90]) await fingers("touchMove", apart);
  await fingers("touchEnd", 0);
  await expect(page.locator(".overview")).toBeVisible();
  await context.close();
});

test("256 ranks open with lines that can be told apart, and playing is followed", async ({ page }) => {
  await page.goto(`${many}#view=time&clock=steps`);
  await expect(page.locator("#view-time [data-messages]")).toBeAttached();
  const shown = await messages(page);
  expect(shown).toBeGreaterThan(200);
  expect(shown).toBeLessThan(2500);
  await page.locator("h1").click();
  await page.keyboard.press("End");
  await expect(page.locator("#view-time .playhead")).toBeVisible(); // the part with the player's moment is shown
  await page.getByRole("button", { name: "all", exact: true }).click();
  expect(await messages(page)).toBe(256 * 510);
});

test("a chunk is followed through grid, shape, time and network", async ({ page }) => {
  await page.goto(`${address}#view=holds&step=5`);
  await page.locator("svg[data-name=holds] .label.hot", { hasText: /^follow this chunk2$/ }).click();
  await expect(page.locator(".followed")).toContainText("chunk 2");
  await expect(page.locator("svg[data-name=shape] .trail")).toHaveCount(5);
  await expect(page.locator("svg[data-name=shape] .arc:not(.unlit)")).toHaveCount(1);
  await page.getByRole("tab", { name: "Where the bytes go" }).click();
  expect(await page.locator("svg[data-name=bytes] .lit.tree").count()).toBeGreaterThan(7);
  await page.getByRole("tab", { name: "Space and time" }).click();
  await expect(page.locator("#view-time .followed")).toContainText("chunk 2");
});

test("256 ranks open where the address says, and clocks that are missing say why", async ({ page }) => {
  await page.goto(`${many}#view=time&step=300`);
  const [playhead, picture] = [page.locator("#view-time .playhead"), page.locator("#view-time svg.picture")];
  await expect(playhead).toBeVisible();
  const [at, all] = [(await playhead.boundingBox())!, (await picture.boundingBox())!];
  expect(Math.abs(at.x + at.width / 2 - all.x - all.width / 2)).toBeLessThan(60);
  const why = page.locator(".clocks .missing");
  await expect(why).toHaveText(/^Not simulated: it has too many messages\. Not measured: allfold show/);
  const [note, zoom] = [(await why.boundingBox())!, (await page.locator("#view-time .zoom").boundingBox())!];
  expect(note.x + note.width <= zoom.x || note.y + note.height <= zoom.y).toBe(true);
});

test("a part is measured: by a drag with Shift, by the button and a drag, and by keyboard", async ({
  page,
  isMobile,
}) => {
  await page.goto(`${exported("ring", "--ranks", "8")}#view=time&clock=modelled&step=3`);
  const frame = page.locator(".spacetime");
  const measured = page.locator(".measured");
  const words =
    /^[\d.]+ µs, from [\d.]+ µs to [\d.]+ µs, ranks? \d.*: \d+ messages? with .*iB, \d+ of them from beginning to end; idle for \d+ % of it\./;
  const box = (await frame.locator("svg").boundingBox())!;
  const drag = async (): Promise<void> => {
    await page.mouse.move(box.x + 0.3 * box.width, box.y + 40);
    await page.mouse.down();
    await page.mouse.move(box.x + 0.6 * box.width, box.y + 120, { steps: 4 });
    await page.mouse.up();
  };
  await frame.scrollIntoViewIfNeeded();
  if (!isMobile) {
    await page.keyboard.down("Shift");
    await drag();
    await page.keyboard.up("Shift");
    await expect(measured).toHaveText(words);
    await expect(page.locator(".span rect")).toHaveCount(1);
    await page.getByRole("button", { name: "Clear the selection" }).click();
    await expect(measured).toHaveCount(0);
    await page.getByRole("button", { name: "measure", exact: true }).click();
    await drag();
    await expect(measured).toHaveText(words);
    // Near it, and measured as before.
    const said = await measured.innerText();
    await page.getByRole("button", { name: "zoom to it" }).click();
    await expect(page.getByRole("button", { name: "all", exact: true })).toBeEnabled();
    expect(await measured.innerText()).toBe(said);
    await page.getByRole("button", { name: "Clear the selection" }).click();
  }
  await frame.focus();
  await page.keyboard.press("Shift+ArrowRight");
  await expect(measured).toHaveText(words);
  const first = await measured.innerText();
  await page.keyboard.press("Shift+ArrowRight");
  await page.keyboard.press("Shift+ArrowUp");
  expect(await measured.innerText()).not.toBe(first);
  await expect(measured).toContainText("ranks 0 to 6");
  await expect(page.locator(".where")).toHaveText("step 3 of 14"); // these keys do not play
});
