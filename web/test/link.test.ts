import { expect, test } from "vitest";
import { packed, unpacked } from "../src/site/link";

test("code goes into an address and comes back", async () => {
  const code =
    "from allfold import copy\n\n\ndef ring(ranks):\n    yield [copy(chunk=0, source=0, destination=1)]  # → é 😀\n";
  const word = await packed(code);
  expect(word).toMatch(/^[A-Za-z0-9_-]+$/);
  expect(await unpacked(word)).toBe(code);
  expect(await unpacked(await packed(""))).toBe("");
});

test("a link that is no code is refused", async () => {
  const word = await packed("x = 1\n".repeat(100));
  for (const broken of ["nonsense!", "", word.slice(0, -6), word.slice(4), "AAAA"])
    expect(await unpacked(broken)).toBeNull();
  expect(await unpacked(await packed("x".repeat(200_001)))).toBeNull();
});
