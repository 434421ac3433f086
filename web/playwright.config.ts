import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { defineConfig } from "@playwright/test";

// What the tests write; the workers, which inherit it, share it.
if (!process.env.ALLFOLD_BROWSER_FOLDER) {
  const folder = (process.env.ALLFOLD_BROWSER_FOLDER = mkdtempSync(join(tmpdir(), "allfold-page-")));
  process.once("exit", () => rmSync(folder, { recursive: true, force: true }));
}

// The site has to be built before: `make test-site` does both.
const notHere = ["site.spec.ts"];

// Debian's Chromium; no browser is downloaded. As root it runs only without its sandbox.
export default defineConfig({
  testDir: "browser",
  outputDir: "test-results",
  workers: 2,
  timeout: 120_000,
  expect: { timeout: 15_000 },
  reporter: "line",
  projects: [
    // The screens that people have: one of old, that of a laptop of today, and a phone.
    { name: "page", testIgnore: notHere },
    { name: "sharp", testIgnore: notHere, use: { deviceScaleFactor: 2 } },
    {
      name: "phone",
      testIgnore: notHere,
      use: { viewport: { width: 390, height: 844 }, deviceScaleFactor: 3, isMobile: true, hasTouch: true },
    },
    { name: "site", testMatch: "site.spec.ts" },
  ],
  use: {
    browserName: "chromium",
    viewport: { width: 1440, height: 900 },
    launchOptions: { executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox"] },
  },
});
