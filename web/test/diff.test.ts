/** The difference of two texts. */

import { expect, test } from "vitest";
import { diffOf } from "../src/diff";

const words = (one: string, other: string): string[] =>
  diffOf(one, other).map(({ left, right, text }) => (right === null ? "-" : left === null ? "+" : " ") + text);

test("common lines stay, others are taken away or added", () => {
  expect(words("a\nb\nc", "a\nx\nc")).toEqual([" a", "-b", "+x", " c"]);
  expect(words("a\nb", "a\nb")).toEqual([" a", " b"]);
  expect(words("", "a")).toEqual(["-", "+a"]);
});

test("either text can be read from the rows, with its line numbers", () => {
  let seed = 7;
  const random = (many: number): number => (seed = (seed * 1103515245 + 12345) % 2147483648) % many;
  for (let round = 0; round < 200; round++) {
    const text = (): string => Array.from({ length: random(12) }, () => "abc"[random(3)]).join("\n");
    const [one, other] = [text(), text()];
    const rows = diffOf(one, other);
    const of = (side: "left" | "right"): string =>
      rows
        .filter((row) => row[side] !== null)
        .map((row, i) => (expect(row[side]).toBe(i + 1), row.text))
        .join("\n");
    expect(of("left")).toBe(one);
    expect(of("right")).toBe(other);
  }
});
