import { execFileSync } from "node:child_process";
import { join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { expect, test as base, type FrameLocator } from "@playwright/test";
import { folder } from "./allfold";

const ROOT = resolve(fileURLToPath(import.meta.url), "../../..");

/** Without a network: the frame of nbconvert asks for scripts from elsewhere, which none of our pictures needs. */
const test = base.extend({
  context: async ({ context }, use) => {
    await context.setOffline(true);
    await use(context);
  },
});

base.beforeAll(() => {
  const python = join(ROOT, ".venv-notebook/bin/python");
  execFileSync(python, [join(ROOT, "tests/view/notebooks.py"), folder], { stdio: ["ignore", "pipe", "pipe"] });
});

async function expectToPlay(frame: FrameLocator, name: string): Promise<void> {
  await expect(frame.locator("h1 b")).toHaveText(name);
  await frame.getByRole("button", { name: "One step forward" }).click();
  await expect(frame.locator(".where")).toHaveText(/^step 1 of/);
}

test("an exported notebook shows every picture, with the page in it once", async ({ page }) => {
  await page.goto(`file://${folder}/exported.html`);
  await expect(page.locator("iframe")).toHaveCount(2);
  await expectToPlay(page.frameLocator("iframe").nth(0), "ring");
  await expectToPlay(page.frameLocator("iframe").nth(1), "tree");
});

test("a cell whose page was cleared says what to do, and shows its picture when the page comes", async ({ page }) => {
  await page.goto(`file://${folder}/exported.html`);
  const carried = await page.evaluate(() => {
    const script = [...document.scripts].find((one) => one.text.includes("allfoldPages") && one.text.length > 90_000)!;
    return (script.previousElementSibling as HTMLElement).outerHTML + script.outerHTML;
  });
  await page.goto(`file://${folder}/lonely.html`);
  const lonely = page.locator("[data-page]");
  await expect(lonely).toContainText("all_reduce by tree, 4 ranks: an interactive picture. If it does not appear, run");
  await expect(page.locator("iframe")).toHaveCount(0);
  // As Jupyter puts an output into the document: scripts are made anew, so that they run.
  await page.evaluate((html) => {
    const output = document.createElement("div");
    document.body.append(output);
    output.innerHTML = html;
    for (const old of output.querySelectorAll("script")) {
      const script = document.createElement("script");
      script.textContent = old.textContent;
      old.replaceWith(script);
    }
  }, carried);
  await expect(page.locator("iframe")).toHaveCount(2);
  await expectToPlay(page.frameLocator("iframe").nth(0), "tree");
  await expectToPlay(page.frameLocator("iframe").nth(1), "ring");
});
