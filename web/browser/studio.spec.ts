import { expect, expectComplete, expectTrouble, startStudio, test } from "./allfold";

let studio: { address: string; stop: () => void };

test.beforeAll(async () => {
  studio = await startStudio();
});

test.afterAll(() => studio.stop());

test("anything that is asked for is computed and drawn", async ({ page }) => {
  await page.goto(studio.address);
  await page.getByLabel("collective").selectOption("broadcast");
  await page.getByLabel("algorithm").selectOption("tree");
  await page.getByRole("spinbutton", { name: "ranks" }).fill("7");
  await page.getByRole("spinbutton", { name: "ranks" }).press("Enter");
  await page.getByLabel("root").selectOption("3");
  await expect(page.locator("h1")).toContainText("7 ranks");
  await expect(page.locator('[data-right="true"]')).toHaveCount(1);
  await expect(page.locator('[data-cell="3 0"]')).toHaveAttribute("data-right", "true");
  await page.locator("h1").click(); // away from the list, which has keys of its own
  await page.keyboard.press("End");
  await expectComplete(page);
});

test("a ring made wrong is blamed at the right cell, and mended again", async ({ page }) => {
  await page.goto(
    `${studio.address}#view=code&collective=all_reduce&algorithm=ring&ranks=6&topology=one_host&size=1048576`,
  );
  const source = page.getByLabel("Source of the algorithm");
  const code = await source.inputValue();
  expect(code).toContain("for step in range(ranks - 1):");
  await source.fill(code.replace("for step in range(ranks - 1):", "for step in range(ranks):"));
  await expect(page.locator(".beside .alarm")).toContainText("after step 6, rank 0 chunk 5 has rank 0 twice");
  // The page goes there, names the file as the editor does, tells how it happened, and marks the line.
  await expect(page.locator(".wrong")).toHaveAttribute("data-blamed", "0 5");
  await expect(page.locator(".beside .alarm")).toContainText("ring.py:");
  await expect(page.locator(".beside .alarm")).toContainText("It was last added to by rank 5 in step 6.");
  await expect(page.locator(".lines .bad")).toContainText("reduce(chunk=(r - 1 - step) % ranks");
  await expect(page.locator(".says")).toHaveText("has rank 0 twice");
  // The line that made the wrong move is lit.
  await expect(page.locator(".lines .lit").first()).toContainText("reduce(chunk=(r - 1 - step) % ranks");
  await page.getByRole("button", { name: "undo all" }).click();
  await expect(page.locator(".wrong")).toHaveCount(0);
  await page.locator("h1").click();
  await page.keyboard.press("End");
  await expect(page.locator('.beside [data-right="false"]')).toHaveCount(0);
});

test("edited code stays while other views are looked at, and is proved for other numbers of ranks", async ({
  page,
}) => {
  await page.goto(
    `${studio.address}#view=code&collective=all_reduce&algorithm=ring&ranks=6&topology=one_host&size=1048576`,
  );
  const source = page.getByLabel("Source of the algorithm");
  const code = await source.inputValue();
  const changed = code.replace("for step in range(ranks - 1):", "for step in range(ranks):");
  await source.fill(changed);
  await expect(page.locator(".beside .alarm")).toContainText("after step 6, rank 0 chunk 5 has rank 0 twice");
  await page.getByRole("spinbutton", { name: "ranks" }).fill("4");
  await page.getByRole("spinbutton", { name: "ranks" }).press("Enter");
  await expect(page.locator(".beside .alarm")).toContainText("after step 4, rank 0 chunk 3 has rank 0 twice");
  await page.getByRole("tab", { name: "Who holds what" }).click();
  await expect(page.locator(".verdict")).toContainText("has rank 0 twice");
  await page.getByRole("tab", { name: "Code and picture" }).click();
  await expect(source).toHaveValue(changed);
  await page.getByRole("button", { name: "undo all" }).click();
  await expect(source).toHaveValue(code);
  await expect(page.locator(".beside .alarm")).toHaveCount(0);
  await page.getByRole("tab", { name: "Who holds what" }).click();
  await expect(page.locator(".verdict h3")).toHaveText("Proved");
});

test("at the first key nothing of the old code is left standing", async ({ page }) => {
  expectTrouble("Failed to load resource: the server responded with a status of 400 (Bad Request)");
  await page.goto(
    `${studio.address}#view=code&collective=all_reduce&algorithm=ring&ranks=6&topology=one_host&size=1048576&step=2`,
  );
  const source = page.getByLabel("Source of the algorithm");
  await expect(page.locator(".lines .lit").first()).toBeVisible();
  const code = await source.inputValue();
  let answer = (): void => undefined;
  const held = new Promise<void>((done) => (answer = done));
  await page.route("**/api/edit", async (route) => {
    await held;
    await route.continue();
  });
  await source.fill(`${code}\n\nthis is no Python`);
  await expect(page.locator(".beside [role=status]")).toHaveText("Proving …");
  await expect(page.locator(".beside .old svg.picture")).toBeVisible(); // dimmed, until there is another
  await expect(page.locator(".lines .lit")).toHaveCount(0);
  await expect(page.locator(".verdict h3")).toHaveText("Proving …");
  answer();
  await expect(page.locator(".listing .alarm")).toContainText("this is not Python");
  await expect(page.locator(".beside [role=status]")).toContainText("The code does not run.");
  await expect(page.getByRole("button", { name: "Play" })).toBeDisabled(); // there is nothing to play
  await expect(page.locator(".where")).toHaveText("–");
  await expect(page.locator(".verdict h3")).toHaveText("Not proved");
  await expect(page.locator(".beside :not(.old) > .frame svg.picture")).toHaveCount(0);
  await page.getByRole("button", { name: "undo all" }).click();
  await expect(page.locator(".verdict h3")).toHaveText("Proved");
  await expect(page.locator(".lines .lit").first()).toBeVisible();
});

test("code that does not run shows its error at its line", async ({ page }) => {
  expectTrouble("Failed to load resource: the server responded with a status of 400 (Bad Request)");
  await page.goto(
    `${studio.address}#view=code&collective=all_reduce&algorithm=ring&ranks=4&topology=one_host&size=1024`,
  );
  const source = page.getByLabel("Source of the algorithm");
  const code = await source.inputValue();
  await source.fill(code.replace("for step in range(ranks - 1):", "for step in range(ranks - 1)"));
  await expect(page.locator(".listing .alarm")).toBeVisible();
  const line = code.split("\n").findIndex((one) => one.includes("for step in range(ranks - 1):")) + 1;
  await expect(page.locator(".lines .bad")).toHaveAttribute("data-line", String(line));
});

test("what is shown can be run, and its recording is drawn", async ({ page }) => {
  await page.goto(
    `${studio.address}#view=time&collective=all_reduce&algorithm=ring&ranks=2&topology=one_host&size=65536`,
  );
  await page.getByRole("button", { name: "measure now" }).click();
  await expect(page.getByRole("radio", { name: "measured" })).toHaveAttribute("aria-checked", "true", {
    timeout: 60_000,
  });
  const drawn = page.locator("#view-time [data-messages]");
  expect(Number(await drawn.getAttribute("data-messages"))).toBeGreaterThan(1); // two ranks fold half of the buffer each, for both
});

test("the race asks for its rivals", async ({ page }) => {
  await page.goto(
    `${studio.address}#view=race&collective=all_reduce&algorithm=tree&ranks=5&topology=one_host&size=65536&rivals=ring`,
  );
  await expect(page.locator(".lane")).toHaveCount(2);
  await page.locator(".chips").getByRole("button", { name: "naive" }).click();
  await expect(page.locator(".lane")).toHaveCount(3);
});

test("the text stays where it is under the caret, whatever is said about it", async ({ page, viewport }) => {
  expectTrouble("Failed to load resource: the server responded with a status of 400 (Bad Request)");
  await page.goto(
    `${studio.address}#view=code&collective=all_reduce&algorithm=ring&ranks=6&topology=one_host&size=1048576`,
  );
  const source = page.getByLabel("Source of the algorithm");
  const picture = page.locator(".beside svg.picture").first();
  await expect(picture).toBeVisible();
  const lines = (await source.inputValue()).split("\n");
  const at = lines.findIndex((line) => line.includes("(r - 1 - step)"));
  const row = page.locator(`.lines [data-line="${at + 1}"]`);
  await row.scrollIntoViewIfNeeded();
  const caret = lines.slice(0, at).join("\n").length + 1 + lines[at].indexOf("1 - step");
  await source.evaluate((field: HTMLTextAreaElement, caret) => {
    field.focus({ preventScroll: true });
    field.setSelectionRange(caret, caret);
  }, caret);
  const box = page.locator(".codes .scroll");
  const places = async (): Promise<number[]> => [
    (await row.boundingBox())!.y,
    await box.evaluate((one) => one.scrollTop),
    // On a phone the picture is above the code, and the browser scrolls by what its words grow.
    viewport!.width > 1000 ? (await picture.boundingBox())!.y : 0,
  ];
  const before = await places();
  const expectSteady = async (): Promise<void> => {
    for (const [i, place] of (await places()).entries()) expect(Math.abs(place - before[i])).toBeLessThanOrEqual(1);
  };
  for (let i = 0; i < 4; i++) {
    await page.keyboard.press("Delete"); // the last makes a wrong schedule of it
    await expectSteady();
  }
  await expect(page.locator(".beside .alarm")).toBeVisible(); // refuted
  await expectSteady();
  await page.keyboard.type("(");
  await expect(page.locator(".listing .alarm")).toBeVisible(); // not Python
  await expectSteady();
});
