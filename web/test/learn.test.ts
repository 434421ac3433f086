import { expect, test } from "vitest";
import { codeBegins, numberIn } from "../src/learn/data";
import { lessonFromHash, lessonHash } from "../src/learn/place";

test.each([
  ["14", 14],
  [" 1.75 ", 1.75],
  ["7/4", 1.75],
  ["1,024", 1024],
  ["12,345,678.5", 12345678.5],
  ["−3", -3],
  ["1e3", 1000],
  [".5", 0.5],
])("%s is a number", (text, number) => expect(numberIn(text)).toBe(number));

test.each(["", "many", "1,75", "1/0", "1/2/3", "0x10", "Infinity", "1 2", "12,34"])("%s is none", (text) =>
  expect(numberIn(text)).toBeNull(),
);

test("the code begins behind the predictions", () => {
  const head = '# Lesson\nPREDICTIONS = {\n    # {How many?}\n    "a": None,\n}\n\n';
  const code = "from allfold import copy\n\n\ndef ring(ranks):\n    x = {}\n";
  expect(codeBegins(head + code)).toBe(head.length);
  expect(codeBegins(code)).toBe(0);
  expect(codeBegins(`PREDICTIONS = {}\n${code}`)).toBe(0);
});

test("an address names the list, a lesson, or neither", () => {
  expect(lessonFromHash("#lessons")).toBe("");
  expect(lessonFromHash("#lesson=ring")).toBe("ring");
  expect(lessonFromHash("#view=holds&ranks=4")).toBeNull();
  expect(lessonFromHash("")).toBeNull();
  for (const one of ["", "ring", "a&b"]) expect(lessonFromHash(lessonHash(one))).toBe(one);
});
