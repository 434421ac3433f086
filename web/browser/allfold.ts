/** What the tests have in common: files that `allfold show` wrote, pages that may not complain, a studio. */

import { execFileSync, spawn, spawnSync, type ChildProcess } from "node:child_process";
import { createHash } from "node:crypto";
import { existsSync, mkdtempSync, readFileSync, renameSync, writeFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { expect, test as base, type Page } from "@playwright/test";

const ROOT = resolve(fileURLToPath(import.meta.url), "../../..");
const PROGRAM = process.env.ALLFOLD ?? join(ROOT, ".venv/bin/allfold");
/** One folder for the whole run (see playwright.config.ts): a file that one screen needs is there for the others. */
export const folder = process.env.ALLFOLD_BROWSER_FOLDER!;

/** Files that are made by a command, once per run; `make` gets the paths to write to. */
function madeOnce(names: string[], make: (paths: string[]) => void): string[] {
  const paths = names.map((name) => join(folder, name));
  if (paths.every((path) => existsSync(path))) return paths;
  // Another worker may make the same file: each writes its own and moves it there when it is complete.
  const own = mkdtempSync(join(folder, "making-"));
  const fresh = names.map((name) => join(own, name));
  make(fresh);
  fresh.forEach((path, i) => renameSync(path, paths[i]));
  return paths;
}

/** The address of a file written by `allfold show ARGUMENTS --html`; a wrong schedule is shown, too. */
export function exported(...given: string[]): string {
  const [path] = madeOnce([`show-${digestOf(given)}.html`], ([path]) => {
    try {
      execFileSync(PROGRAM, ["show", ...given, "--html", path], { stdio: "pipe" });
    } catch (error) {
      if ((error as { status?: number }).status !== 1) throw error; // 1: the schedule is wrong, and drawn
    }
  });
  return `file://${path}`;
}

/** The address of the page of a schedule that `allfold find ARGUMENTS` found, and the schedule's file. */
export function found(...given: string[]): { address: string; file: string } {
  const name = `find-${digestOf(given)}`;
  const [path, file] = madeOnce([`${name}.html`, `${name}.json`], ([path, file]) => {
    execFileSync(PROGRAM, ["find", ...given, "--seconds", "20", "--html", path, "--save", file], { stdio: "pipe" });
  });
  return { address: `file://${path}`, file };
}

const digestOf = (given: string[]): string => createHash("sha1").update(given.join("\0")).digest("hex").slice(0, 12);

/** What the program prints. */
export const program = (...given: string[]): string => execFileSync(PROGRAM, given, { encoding: "utf8" });

/** What `allfold plan ARGUMENTS --size 1M` says. */
export function planned(...given: string[]): { winner: string } {
  return JSON.parse(program("plan", ...given, "--size", "1M", "--json")) as { winner: string };
}

export function written(name: string, text: string): string {
  const path = join(folder, name);
  writeFileSync(path, text);
  return path;
}

/** The words for a ring that ends before its results are everywhere: wrong, so it is not simulated, and its race is run in steps. */
export function cutShort(ranks: number): string[] {
  const file = written(
    "cut_short.py",
    `from allfold import reduce

def cut_short(ranks):
    for step in range(ranks - 1):
        yield [reduce(chunk=(r - 1 - step) % ranks, source=r, destination=(r + 1) % ranks) for r in range(ranks)]
`,
  );
  return [`${file}:cut_short`, "--collective", "all_reduce", "--ranks", `${ranks}`];
}

/** A page that fails its test when it reports an error, or asks for anything from outside its own file or studio. */
export const test = base.extend<{ page: Page }>({
  page: async ({ page }, use) => {
    const troubles: string[] = [];
    page.on("console", (message) => message.type() === "error" && troubles.push(message.text()));
    page.on("pageerror", (error) => troubles.push(String(error)));
    page.on("request", (request) => {
      if (!/^(file:|data:|blob:|http:\/\/127\.0\.0\.1:)/.test(request.url()))
        troubles.push(`asked for ${request.url()}`);
    });
    await use(page);
    expect(troubles.filter((one) => !expected.has(one))).toEqual([]);
    expected.clear();
  },
});

const expected = new Set<string>();

/** The browser itself reports answers like 400 as errors; a test that provokes one says so. */
export function expectTrouble(text: string): void {
  expected.add(text);
}

export { expect };

/** A folder for one test, empty. */
export const emptyFolder = (): string => mkdtempSync(join(folder, "folder-"));

/** What `allfold learn ARGUMENTS --json` says in a folder, whatever its exit status. */
export function learn<T>(place: string, ...given: string[]): T {
  const { stdout } = spawnSync(PROGRAM, ["learn", ...given, "--json"], { cwd: place, encoding: "utf8" });
  return JSON.parse(stdout) as T;
}

/** Where a file of the repository is, and its text. */
export const path = (name: string): string => join(ROOT, name);
export const source = (name: string): string => readFileSync(path(name), "utf8");

/** A running studio and its address; `place` is the folder it is started in. */
export async function startStudio(place?: string): Promise<{ address: string; stop: () => void }> {
  const child: ChildProcess = spawn(PROGRAM, ["studio", "--no-browser"], {
    stdio: ["ignore", "pipe", "inherit"],
    cwd: place,
  });
  const address = await new Promise<string>((found, failed) => {
    let said = "";
    child.stdout!.on("data", (part) => {
      said += part;
      const match = said.match(/http:\/\/127\.0\.0\.1:\d+\/\?token=\S+/);
      if (match) found(match[0]);
    });
    child.on("exit", (status) => failed(new Error(`allfold studio ended with status ${status}: ${said}`)));
  });
  return { address, stop: () => void child.kill("SIGINT") };
}

/** Whether every cell with a promise holds what was promised. */
export async function expectComplete(page: Page): Promise<void> {
  const cells = page.locator("#view-holds [data-right]");
  await expect(page.locator("#view-holds svg.picture")).toBeVisible();
  await expect(page.locator('#view-holds [data-right="false"]')).toHaveCount(0);
  const [right, all] = (await page.locator(".progress").innerText()).match(/\d+/g)!.map(Number);
  expect(right).toBe(all);
  // On a phone a grid with many columns is shaded: its cells are no elements.
  if (await cells.count()) expect(await cells.count()).toBe(all);
  else expect(await page.locator("#view-holds canvas.layers").count()).toBe(1);
}
