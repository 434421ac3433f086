/** What everybody can read, reach and press: contrast, sizes of targets, visible focus, in all views. */

import type { Page } from "@playwright/test";
import * as table from "../src/views/table";
import { expect, exported, test, written } from "./allfold";

const VIEWS = table.VIEWS.map((view) => view.name);
let address: string;
let wrong: string;

test.beforeAll(() => {
  address = exported("ring", "--ranks", "8");
  const file = written(
    "twice.py",
    "from allfold import reduce\n\n\ndef twice(ranks):\n    for _ in range(2):\n        yield [reduce(chunk=0, source=1, destination=0)]\n",
  );
  wrong = exported(`${file}:twice`, "--collective", "all_reduce", "--ranks", "4");
});

/** High enough that nothing has to be scrolled: only what is in the window can be looked at. */
async function open(page: Page, where: string, width = 1440): Promise<void> {
  await page.setViewportSize({ width, height: 3200 });
  await page.goto("about:blank");
  await page.goto(where);
  await expect(page.locator("svg.picture").first()).toBeVisible();
}

/** Words whose colour differs too little from what lies behind them, as `word: 3.2 (#aaa on #fff)`. */
function faintWords(least: number): string[] {
  document.head.append(
    Object.assign(document.createElement("style"), {
      textContent: "*{pointer-events:auto!important;transition:none!important}",
    }),
  );
  const pen = document.createElement("canvas").getContext("2d", { willReadFrequently: true })!;
  const known = new Map<string, number[]>();
  const parse = (colour: string): number[] => {
    let rgba = known.get(colour);
    if (!rgba) {
      pen.clearRect(0, 0, 1, 1);
      pen.fillStyle = colour;
      pen.fillRect(0, 0, 1, 1);
      rgba = [...pen.getImageData(0, 0, 1, 1).data].map((part, i) => (i === 3 ? part / 255 : part));
      known.set(colour, rgba);
    }
    return rgba;
  };
  const opacity = (element: Element): number => {
    let all = 1;
    for (let one: Element | null = element; one; one = one.parentElement) all *= Number(getComputedStyle(one).opacity);
    return all;
  };
  const over = (top: number[], below: number[]): number[] =>
    [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3])).concat(1);
  const groundOf = (element: Element): number[] => {
    const style = getComputedStyle(element);
    const isShape = element instanceof SVGGeometryElement;
    const [r, g, b, a] = parse(isShape ? (style.fill === "none" ? "transparent" : style.fill) : style.backgroundColor);
    return [r, g, b, a * (isShape ? Number(style.fillOpacity) * opacity(element) : 1)];
  };
  /** The colour that is seen at a place below an element. */
  const behind = (word: Element, x: number, y: number): number[] => {
    const layers: number[][] = [];
    for (const one of document.elementsFromPoint(x, y)) {
      if (word.contains(one) && one !== word) continue;
      if (one instanceof SVGTextElement || one instanceof HTMLCanvasElement) continue;
      const ground = groundOf(one);
      if (ground[3] > 0) layers.push(ground);
      if (ground[3] >= 1) break;
    }
    return layers.reverse().reduce((below, layer) => over(layer, below), [255, 255, 255, 1]);
  };
  const light = (colour: number[]): number =>
    [0.2126, 0.7152, 0.0722].reduce((sum, weight, i) => {
      const part = colour[i] / 255;
      return sum + weight * (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    }, 0);
  const found: string[] = [];
  const words = document.createTreeWalker(document.getElementById("allfold")!, NodeFilter.SHOW_TEXT);
  while (words.nextNode()) {
    const text = words.currentNode.textContent!.trim();
    const element = words.currentNode.parentElement!;
    if (!text || element.closest("title, style, option, textarea, .unseen, :disabled")) continue;
    const range = document.createRange();
    range.selectNodeContents(words.currentNode);
    const box = range.getClientRects()[0];
    if (!box?.width || !box.height) continue;
    const style = getComputedStyle(element);
    const colour = parse(element instanceof SVGElement ? style.fill : style.color);
    const [x, y] = [box.left + box.width / 2, box.top + box.height / 2];
    if (!document.elementsFromPoint(x, y).includes(element)) continue; // scrolled out of sight
    const ground = behind(element, x, y);
    const seen = over([...colour.slice(0, 3), colour[3] * opacity(element)], ground);
    const [one, other] = [light(seen) + 0.05, light(ground) + 0.05];
    const contrast = Math.max(one, other) / Math.min(one, other);
    const name = (rgb: number[]): string => `rgb(${rgb.slice(0, 3).map(Math.round).join(" ")})`;
    const where = element.getAttribute("class") ?? element.tagName;
    if (contrast < least)
      found.push(`${text.slice(0, 30)} (${where}): ${contrast.toFixed(2)}, ${name(seen)} on ${name(ground)}`);
  }
  return [...new Set(found)];
}

for (const colorScheme of ["light", "dark"] as const) {
  test(`all words can be read, ${colorScheme}`, async ({ page }) => {
    await page.emulateMedia({ colorScheme });
    for (const view of VIEWS) {
      for (const step of [0, 5, 14]) {
        await open(page, `${address}#view=${view}&step=${step}&clock=modelled`);
        if (view === "race" && step) await page.keyboard.press("End");
        expect.soft(await page.evaluate(faintWords, 4.5), `${view}, step ${step}`).toEqual([]);
      }
    }
    for (const view of ["holds", "race"]) {
      await open(page, `${wrong}#view=${view}`);
      expect.soft(await page.evaluate(faintWords, 4.5), `wrong, ${view}`).toEqual([]);
    }
  });
}

/** Controls that are smaller than a fingertip, as `words: 30 × 20`. Cells and lines of pictures are as large as they can be. */
function smallTargets(least: number): string[] {
  const controls = document.querySelectorAll("button, select, input, a[href], summary, .page tr[role=button]");
  return [...controls].flatMap((one) => {
    const box = one.getBoundingClientRect();
    if (!box.width || getComputedStyle(one).visibility === "hidden") return [];
    // What lies below something else is not pressed: the names of phases lie below the scrubber.
    const [x, y] = [box.left + box.width / 2, box.top + box.height / 2];
    if (!document.elementsFromPoint(x, y).includes(one)) return [];
    // A slider is pressed along its track: its height counts.
    const small = box.height < least || (box.width < least && !one.matches("[type=range]"));
    const name = one.getAttribute("aria-label") ?? one.textContent?.trim().slice(0, 24) ?? one.tagName;
    return small ? [`${name}: ${Math.round(box.width)} × ${Math.round(box.height)}`] : [];
  });
}

test("on a phone every control is as large as a fingertip", async ({ browser }) => {
  const context = await browser.newContext({ viewport: { width: 390, height: 844 }, hasTouch: true, isMobile: true });
  const page = await context.newPage();
  for (const view of VIEWS) {
    await open(page, `${address}#view=${view}&step=5&clock=modelled`, 390);
    expect.soft(await page.evaluate(smallTargets, 40), view).toEqual([]);
  }
  await page.getByRole("button", { name: "Keyboard and help" }).tap();
  await expect(page.locator("dialog")).toBeVisible();
  expect(await page.evaluate(smallTargets, 40), "help").toEqual([]);
  await context.close();
});

/** What reacts to a click but cannot have the focus, and what has it without showing it. */
function unfocusable(): string[] {
  const found: string[] = [];
  const all = [...document.querySelectorAll<HTMLElement | SVGElement>("#allfold *")];
  for (const one of all) {
    const clickable = getComputedStyle(one).cursor === "pointer" && !one.matches(":disabled");
    const inherited = one.parentElement && getComputedStyle(one.parentElement).cursor === "pointer";
    if (!clickable || inherited || one.matches("label, .overview")) continue;
    const name = `${one.tagName} ${one.getAttribute("class") ?? ""} ${one.textContent?.trim().slice(0, 20)}`;
    one.focus({ focusVisible: true } as FocusOptions);
    if (document.activeElement !== one) found.push(`${name}: no focus`);
    else {
      const style = getComputedStyle(one);
      if (style.outlineStyle === "none" || parseFloat(style.outlineWidth) < 2) found.push(`${name}: not visible`);
    }
  }
  return found;
}

test("whatever can be clicked can have the focus, and shows it", async ({ page }) => {
  for (const view of VIEWS) {
    await open(page, `${address}#view=${view}&step=5&clock=modelled`);
    await page.keyboard.press("Tab"); // from now on focus is shown as for a keyboard
    expect.soft(await page.evaluate(unfocusable), view).toEqual([]);
  }
});

test("a cell tells by keyboard where its parts came from", async ({ page }) => {
  await page.goto(`${address}#view=holds&step=3`);
  await page.locator('[data-cell="0 0"]').focus();
  for (const key of ["ArrowDown", "ArrowDown", "ArrowDown", "ArrowRight", "ArrowRight"]) await page.keyboard.press(key);
  await expect(page.locator('[data-cell="3 2"]')).toBeFocused();
  await expect(page.locator(".where")).toHaveText("step 3 of 14"); // the player did not move
  await page.keyboard.press("Enter");
  await expect(page.locator(".provenance h3")).toContainText("Rank 3, chunk 2");
  await page.keyboard.press("Escape");
  await page.locator('[data-cell="6 2"]').focus();
  await page.keyboard.press("Enter");
  await expect(page.locator(".provenance")).toContainText(/came via \d+ → \d+/);
});

test("Tab stops once in a picture", async ({ page }) => {
  await page.goto(`${address}#view=holds&step=3`);
  const picture = page.locator("svg[data-name=holds]");
  await expect(picture).toBeVisible();
  await expect(picture.locator('[tabindex="0"]')).toHaveCount(1);
  await expect(page.locator("svg[data-name=shape]").locator('[tabindex="0"]')).toHaveCount(1);
});
