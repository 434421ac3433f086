/** What must hold on every screen: the sizes of canvases, and one step that everything on the page tells. */

import { expect, exported, test } from "./allfold";

test("lines on a canvas lie where their picture is", async ({ page }) => {
  for (const [ranks, view] of [
    ["4", "time"],
    ["33", "holds"],
    ["256", "holds"],
  ]) {
    await page.goto("about:blank");
    await page.goto(`${exported("ring", "--ranks", ranks)}#view=${view}&step=3`);
    const frame = page.locator(`#view-${view} .frame`).first();
    const [canvas, picture] = [frame.locator("canvas.layers"), frame.locator("svg.picture")];
    await expect(picture).toBeVisible();
    expect(await canvas.boundingBox(), `${ranks} ranks, ${view}`).toEqual(await picture.boundingBox());
  }
});
