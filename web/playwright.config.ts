import { defineConfig } from "@playwright/test";

// Debian's Chromium; no browser is downloaded. As root it runs only without its sandbox.
export default defineConfig({
  testDir: "browser",
  outputDir: "test-results",
  workers: 2,
  timeout: 120_000,
  expect: { timeout: 15_000 },
  reporter: "line",
  // The site has to be built before: `make test-site` does both.
  projects: [
    { name: "page", testIgnore: "site.spec.ts" },
    { name: "site", testMatch: "site.spec.ts" },
  ],
  use: {
    browserName: "chromium",
    viewport: { width: 1440, height: 900 },
    launchOptions: { executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox"] },
  },
});
