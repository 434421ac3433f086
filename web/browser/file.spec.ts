import { cutShort, exported, expect, expectComplete, test, written } from "./allfold";

/** One algorithm of each collective; the file carries the others of that collective along. */
const COLLECTIVES: [string, string][] = [
  ["all_reduce", "ring"],
  ["reduce", "tree"],
  ["broadcast", "tree"],
  ["gather", "driver"],
  ["scatter", "driver"],
  ["all_gather", "ring"],
  ["reduce_scatter", "ring"],
  ["all_to_all", "direct"],
  ["barrier", "dissemination"],
];

for (const [collective, algorithm] of COLLECTIVES) {
  test(`${collective}: every algorithm in the file plays to its end`, async ({ page }) => {
    await page.goto(exported(algorithm, "--collective", collective, "--ranks", "5"));
    await page.locator(".speed select").selectOption("16");
    const select = page.getByLabel("algorithm");
    const names =
      (await select.count()) && (await select.evaluate((one) => one.tagName)) === "SELECT"
        ? await select.locator("option").allInnerTexts()
        : [algorithm];
    for (const name of names) {
      if (names.length > 1) await select.selectOption(name);
      await expect(page.locator("h1 b")).toHaveText(name);
      await expect(page.locator(".where")).toHaveText("start");
      await page.getByRole("button", { name: "Play" }).click();
      await expect(page.getByRole("button", { name: "Play" })).toBeVisible();
      await expect(page.locator(".verdict h3")).toHaveText("Proved");
      await expectComplete(page);
    }
  });
}

test("a wrong schedule lights the cell that is wrong", async ({ page }) => {
  const path = written(
    "my_ring.py",
    `from allfold import copy, reduce

def my_ring(ranks):
    """</script><script>document.title = "broken out"</script><!-- <b>"""
    for step in range(ranks):
        yield [reduce(chunk=(r - 1 - step) % ranks, source=r, destination=(r + 1) % ranks) for r in range(ranks)]
    for step in range(ranks - 1):
        yield [copy(chunk=(r - step) % ranks, source=r, destination=(r + 1) % ranks) for r in range(ranks)]
`,
  );
  await page.goto(exported(`${path}:my_ring`, "--collective", "all_reduce", "--ranks", "6"));
  await expect(page.locator(".wrong")).toHaveAttribute("data-blamed", "0 5");
  await expect(page.locator(".says")).toHaveText("has rank 0 twice");
  await expect(page.locator(".verdict")).toContainText("rank 0 chunk 5 has rank 0 twice");
  await page.keyboard.press("ArrowLeft");
  await expect(page.locator(".wrong")).toHaveCount(0);
  // What the file's code holds stays text.
  await page.keyboard.press("6");
  await expect(page.locator('[data-line="4"]')).toContainText("</script><script>");
  expect(await page.title()).not.toBe("broken out");
});

test("a wrong schedule is called wrong in every view, and its network is drawn", async ({ page }) => {
  await page.goto(exported(...cutShort(8)));
  await page.keyboard.press("3");
  await expect(page.locator("#view-bytes")).toContainText("This schedule is wrong");
  await expect(page.locator("#view-bytes")).not.toContainText("No topology was given");
  expect(await page.locator("#view-bytes .link").count()).toBeGreaterThan(8);
  await expect(page.locator("#view-bytes .busiest")).toContainText("rank 0 out and");
  await page.keyboard.press("4");
  await expect(page.locator(".lane").first()).toContainText("wrong");
  await expect(page.locator(".wrong-end")).toContainText("wrong");
  await expect(page.locator("#view-race .note")).toContainText("cut_short is wrong and was not simulated");
  for (const key of "123456") {
    await page.keyboard.press(key);
    await expect(page.locator(".verdict h3")).toHaveText("Wrong");
  }
});

test("a cell that lacks one rank and has another twice says both", async ({ page }) => {
  const path = written(
    "lopsided.py",
    `from allfold import copy, reduce

def lopsided(ranks):
    yield [reduce(chunk=0, source=3, destination=2)]
    yield [reduce(chunk=0, source=r, destination=0) for r in (2, 3)]
    yield [copy(chunk=0, source=0, destination=r) for r in range(1, ranks)]
`,
  );
  await page.goto(exported(`${path}:lopsided`, "--collective", "all_reduce", "--ranks", "4"));
  await expect(page.locator(".wrong")).toHaveAttribute("data-blamed", "0 0");
  await expect(page.locator(".says")).toHaveText("lacks rank 1 and has rank 3 twice");
});

test("a move from a rank to itself is a loop beside its cell, and strikes out no number", async ({ page }) => {
  const path = written(
    "to_itself.py",
    `from allfold import reduce

def to_itself(ranks):
    yield [reduce(chunk=0, source=s, destination=d) for s in range(ranks) for d in range(ranks)]
`,
  );
  await page.goto(exported(`${path}:to_itself`, "--collective", "all_reduce", "--ranks", "3"));
  const [cell, arc] = await Promise.all([
    page.locator('[data-cell="0 0"] .cell').boundingBox(),
    page.locator("#view-holds .arcs .arc").first().boundingBox(), // from rank 0 to rank 0
  ]);
  expect(arc!.x).toBeGreaterThan(cell!.x + 0.8 * cell!.width); // the box has room for the line's width
});
