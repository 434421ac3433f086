/**
 * Python in the page gives the answers of Python outside it, to the letter.
 *
 *     node python/parity.mjs ../build/python CASES
 *
 * CASES has a line per question, with the answer that CPython gave: tests/view/browser_cases.py writes it.
 */

import { readFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";

process.on("uncaughtException", (error) => {
  console.error(error.message);
  process.exit(1);
});

const node = resolve(process.argv[2], "node");
const text = readFileSync(new URL("boot.js", import.meta.url), "utf8");
const bootPython = new Function(`${text}; return bootPython;`)();
const { loadPyodide } = await import(pathToFileURL(join(node, "pyodide.mjs")).href);
const packs = ["numpy.pack", "allfold.pack"].map((name) => [name, new Uint8Array(readFileSync(join(node, name)))]);
const start = process.cpuUsage();
const seconds = () => (process.cpuUsage(start).user + process.cpuUsage(start).system) / 1e6;
const { answer } = await bootPython({ loadPyodide, indexURL: `${node}/`, packs, tell: () => {} });
console.log(`Python is ready after ${seconds().toFixed(1)} s of processor time`);

let [same, different] = [0, 0];
for (const line of readFileSync(process.argv[3], "utf8").trim().split("\n")) {
  const { question, expected } = JSON.parse(line);
  const found = JSON.parse(answer(JSON.stringify(question), () => {}));
  const where = differs(found, expected, "");
  if (where === null) same++;
  else {
    different++;
    console.error(`${JSON.stringify(question).slice(0, 300)}\n  differs at ${where}`);
  }
}
console.log(`${same} answers are the same, ${different} differ; ${seconds().toFixed(1)} s of processor time`);
process.exit(different || !same ? 1 : 0);

/** Where two documents differ, and how; null if they do not. Sums of floats may end in another last digit. */
function differs(found, expected, place) {
  if (typeof found === "number" && typeof expected === "number") {
    const near = Math.abs(found - expected) <= 1e-9 * Math.max(Math.abs(found), Math.abs(expected));
    return near ? null : `${place}: ${found}, expected ${expected}`;
  }
  if (found === null || expected === null || typeof found !== "object" || typeof expected !== "object")
    return found === expected ? null : `${place}: ${JSON.stringify(found)}, expected ${JSON.stringify(expected)}`;
  const keys = new Set([...Object.keys(found), ...Object.keys(expected)]);
  for (const key of keys) {
    if (!(key in found) || !(key in expected)) return `${place}.${key}: is only in one`;
    const where = differs(found[key], expected[key], `${place}.${key}`);
    if (where !== null) return where;
  }
  return null;
}
