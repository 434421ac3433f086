/** The race: from the start, against rivals that the times suggest, to the podium. */

import { cutShort, expect, exported, test } from "./allfold";

test("it starts at the start and ends on a podium, against sensible rivals", async ({ page }) => {
  await page.goto(`${exported("ring", "--ranks", "8")}#view=race`);
  await expect(page.locator(".where")).toHaveText("0 %");
  const names = await page.locator(".lane h3").allInnerTexts();
  expect(names.map((one) => one.trim())).toEqual(["ring", "halving_doubling", "naive", "recursive_doubling"]);
  await expect(page.locator(".lane", { hasText: "naive" })).toContainText("the slowest for this size");
  await expect(page.locator(".least")).toContainText("lower bound");
  await expect(page.locator(".stand")).toHaveCount(0);
  await page.keyboard.press("End");
  await expect(page.locator(".stand")).toHaveCount(4);
  await expect(page.locator(".result")).toHaveText(/^ring wins\. .*naive takes [\d.]+ times as long\.$/);
  // Another field is another race.
  await page.locator(".chips").getByRole("button", { name: "naive" }).click();
  await expect(page.locator(".lane")).toHaveCount(3);
  await expect(page.locator(".where")).toHaveText("0 %");
  await expect(page.locator(".result")).toHaveCount(0);
});

test("who is equally fast shares the place", async ({ page }) => {
  await page.goto(`${exported("ring", "--ranks", "2")}#view=race&rivals=halving_doubling`);
  await page.keyboard.press("End");
  await expect(page.locator(".result")).toHaveText("A tie: ring and halving_doubling are equally fast.");
  await expect(page.locator(".place-number")).toHaveText(["1 (tie)", "1 (tie)"]);
});

test("on the clock of steps nobody is faster than a bound that is none; who is wrong is not ranked", async ({
  page,
}) => {
  await page.goto(`${exported(...cutShort(4))}#view=race&rivals=naive`);
  await page.keyboard.press("End");
  await expect(page.locator(".lane", { hasText: "naive" }).locator("h3 small")).toContainText("1 step");
  await expect(page.locator(".lane").first().locator("h3 small")).toHaveText("wrong");
  await expect(page.locator(".result")).toContainText("cut_short is wrong, so it is not ranked.");
  await expect(page.locator(".least")).toHaveCount(0);
  await expect(page.locator("#view-race .twin")).not.toContainText("No algorithm takes less");
});
