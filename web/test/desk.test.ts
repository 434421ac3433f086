/** The learner's desk: what is typed is saved once, however many ask for it at the same time. */

import { beforeEach, expect, test, vi } from "vitest";
import { Desk } from "../src/learn/desk";

interface Asked {
  do: string;
  text?: string;
  version?: string;
}

const server = vi.hoisted(() => ({ text: "", version: 1, done: [] as string[] }));

/** As `Lessons.act` does: a save that names another version than the file's is a conflict. */
vi.mock("../src/source", () => ({
  request: async (_: string, { do: what, text, version }: Asked) => {
    const { version: known } = server;
    await Promise.resolve();
    server.done.push(what);
    if (what !== "save") return { work: { version: String(server.version), text: server.text }, says: what };
    const conflict = version !== undefined && version !== String(known);
    if (!conflict) Object.assign(server, { text, version: server.version + 1 });
    return { work: { version: String(server.version), text: server.text }, conflict };
  },
}));

beforeEach(() => {
  vi.stubGlobal("window", globalThis);
  Object.assign(server, { text: "start", version: 1, done: [] });
});

test("a button that is pressed while the text is being saved waits for that, and finds no conflict", async () => {
  const desk = new Desk("ring");
  desk.work.value = { version: "1", text: "start" } as typeof desk.work.value;
  desk.type("mine = 1\n");
  const first = desk.save(); // as the timer does
  desk.type("mine = 2\n");
  await Promise.all([first, desk.act("reset", "resetting")]);
  expect(desk.conflict.value).toBe(false);
  expect(desk.says.value).toBe("reset");
  expect(server.text).toBe("mine = 2\n");
  expect(server.done).toEqual(["save", "save", "reset"]);
});
