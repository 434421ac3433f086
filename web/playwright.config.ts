import { defineConfig } from "@playwright/test";

// Debian's Chromium; no browser is downloaded. As root it runs only without its sandbox.
export default defineConfig({
  testDir: "browser",
  outputDir: "test-results",
  workers: 2,
  timeout: 120_000,
  expect: { timeout: 15_000 },
  reporter: "line",
  use: {
    browserName: "chromium",
    viewport: { width: 1440, height: 900 },
    launchOptions: { executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox"] },
  },
});
