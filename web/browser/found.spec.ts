import * as table from "../src/views/table";
import { exported, expect, found, test } from "./allfold";

const NETWORKS = ["dgx1", "mesh:shape=3x3", "torus:shape=4x4", "mi250:nodes=2", "dgx_h100:nodes=2"];

for (const network of NETWORKS) {
  test(`what was found for ${network} is drawn in every view`, async ({ page }) => {
    test.setTimeout(480_000); // the search alone takes 20 s of processor time
    const { address } = found("--collective", "all_gather", "--topology", network, "--size", "64M");
    await page.goto(address);
    await expect(page.locator(".bottleneck.cut")).toContainText("so nothing is faster than");
    const links = Number((await page.locator(".bottleneck.cut").innerText()).match(/: (\d+) links?/)![1]);
    await expect(page.locator("#view-bytes .lit")).toHaveCount(links);
    await expect(page.locator("#view-bytes circle.halo").first()).toBeVisible();
    await page.keyboard.press("]");
    await expect(page.locator(".followed")).toContainText("Tree 1 of");
    await page.keyboard.press("End");
    for (const view of table.VIEWS) {
      await page.keyboard.press(view.key);
      await expect(page.locator(`#view-${view.name} svg.picture`).first()).toBeVisible();
    }
    await page.keyboard.press("4");
    expect(await page.locator(".lane").count()).toBeGreaterThan(1);
  });
}

test("its trees are followed one by one, by mouse and by keyboard, in network and grid", async ({ page, viewport }) => {
  const { address, file } = found("--collective", "all_gather", "--topology", "dgx1");
  await page.goto(address);
  await page.keyboard.press("[");
  await expect(page.locator(".followed")).toContainText("Tree 48 of 48 spreads chunk 47 from rank 7");
  await page.getByRole("button", { name: "Next tree" }).click();
  await expect(page.locator(".followed")).toContainText("Tree 1 of 48 spreads chunk 0 from rank 0: 1/48 of the buffer");
  await expect(page.locator("#view-bytes .lit")).toHaveCount(7); // as many links as other ranks: wires are direct
  await expect.poll(() => page.url()).toContain("follow=1");
  await page.getByLabel("One tree").selectOption("9");
  await page.keyboard.press("1");
  await expect(page.locator(".followed")).toContainText("Tree 9 of 48 spreads chunk 8 from rank 1");
  await expect(page.locator("#view-holds .came")).toHaveCount(7);
  const opacity = (cell: string): Promise<string> =>
    page.locator(`[data-cell="${cell}"]`).evaluate((one) => getComputedStyle(one).opacity);
  // On a phone 48 columns are shaded on a canvas; the lines of the tree stand out there.
  if (viewport!.width > 1000) {
    await expect.poll(() => opacity("0 7")).toBe("0.22");
    await expect.poll(() => opacity("0 8")).toBe("1");
  }
  await page.keyboard.press("Escape");
  await expect(page.locator(".followed")).toHaveCount(0);
  await page.keyboard.press("c");
  await expect(page.locator(".bottleneck.cut")).toContainText("Ranks 1–7 can send no more than 150 GB/s");
  // The saved file is shown the same way; nothing but its steps stands for its code.
  await page.goto(exported(file, "--topology", "dgx1", "--size", "1G"));
  await page.keyboard.press("3");
  await expect(page.locator("#view-bytes .lit")).toHaveCount(4);
  await page.keyboard.press("ArrowRight");
  await page.keyboard.press("6");
  await expect(page.locator('.lines .lit[data-line="1"]')).toContainText("→");
});

test("the cut is lit in a large network, by class and in the matrix", async ({ page }) => {
  await page.goto(
    exported("ring", "--collective", "all_gather", "--ranks", "24", "--topology", "hosts:ranks_per_host=4"),
  );
  await page.keyboard.press("c");
  await expect(page.locator("#view-bytes .legend")).toContainText("links of the cut");
  await page.getByRole("radio", { name: "pairs of ranks" }).click();
  await expect(page.locator("#view-bytes .pair.unlit").first()).toBeVisible();
  await expect(page.locator("#view-bytes .pair:not(.unlit)").first()).toBeVisible();
});
