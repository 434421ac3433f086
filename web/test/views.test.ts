import { expect, test } from "vitest";
import * as views from "../src/views/index";
import { VIEWS } from "../src/views/table";

test("every view has a name, a title and keys of its own, and tabs are in the order of keys", () => {
  expect(VIEWS.map((view) => view.key)).toEqual(VIEWS.map((_, i) => String(i + 1)));
  for (const [name, view] of Object.entries(views)) expect(view.name).toBe(name);
  expect(new Set(VIEWS.map((view) => view.title)).size).toBe(VIEWS.length);
  const taken = [
    " ",
    "[",
    "]",
    "?",
    ...VIEWS.flatMap((view) => [view.key, ...(view.keys ?? []).map((one) => one.key)]),
  ];
  expect(new Set(taken).size).toBe(taken.length);
});
