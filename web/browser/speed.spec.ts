/**
 * Playing is smooth: what the page computes per frame fits into a frame at 30 frames per second.
 *
 * It is the processor time of the page's main thread that is measured, divided by the frames shown, not time on the wall:
 * so a busy machine does not fail the test.
 */

import type { CDPSession, Page } from "@playwright/test";
import * as table from "../src/views/table";
import { expect, exported, test } from "./allfold";

const FRAMES = 90;
const PER_FRAME = 1000 / 30; // milliseconds
const named = (...plays: string[]): string[] =>
  table.VIEWS.filter((view) => plays.includes(view.plays)).map((view) => view.name);
const MANY: [ranks: number, views: string[]][] = [
  [64, named("steps", "race")],
  [256, named("steps")], // the dense forms; a file of 256 ranks has no rivals to race
];

async function spent(session: CDPSession): Promise<number> {
  const { metrics } = await session.send("Performance.getMetrics");
  return 1000 * metrics.find(({ name }) => name === "TaskDuration")!.value;
}

async function framesPass(page: Page, many: number): Promise<number> {
  return page.evaluate(
    (many) =>
      new Promise<number>((done) => {
        const begin = performance.now();
        let left = many;
        const next = (): void => void (left-- > 0 ? requestAnimationFrame(next) : done(performance.now() - begin));
        requestAnimationFrame(next);
      }),
    many,
  );
}

for (const [ranks, views] of MANY) {
  test(`${ranks} ranks play at 30 frames per second`, async ({ page }, info) => {
    const address = exported("ring", "--ranks", String(ranks));
    const session = await page.context().newCDPSession(page);
    await session.send("Performance.enable", { timeDomain: "threadTicks" });
    for (const view of views) {
      await page.goto("about:blank");
      await page.goto(`${address}#view=${view}&clock=modelled`);
      await expect(page.locator(`#view-${view} svg.picture`).first()).toBeVisible();
      await page.getByRole("button", { name: "Play" }).click();
      await framesPass(page, 5); // what is computed once is not part of a frame
      const before = await spent(session);
      const wall = await framesPass(page, FRAMES);
      await expect(page.getByRole("button", { name: "Pause" })).toBeVisible(); // it was still playing
      const each = ((await spent(session)) - before) / FRAMES;
      const said = `${ranks} ranks, ${view}: ${each.toFixed(1)} ms per frame, ${((1000 * FRAMES) / wall).toFixed(0)} frames per second here`;
      info.annotations.push({ type: "measured", description: said });
      console.log(said);
      expect.soft(each, view).toBeLessThan(PER_FRAME);
    }
  });
}
