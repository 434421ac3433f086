import { readFileSync } from "node:fs";

/** The cases in a file that `fixtures/make.py` wrote. */
export const fixture = <T>(name: string): T[] =>
  JSON.parse(readFileSync(new URL(`../fixtures/${name}`, import.meta.url), "utf8")) as T[];
