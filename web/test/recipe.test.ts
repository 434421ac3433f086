/** CONTRIBUTING's recipe for a view, done in a copy: one file, one line, a build; then Python knows the view. */

import { execFile } from "node:child_process";
import { appendFileSync, cpSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { basename, join, resolve } from "node:path";
import { promisify } from "node:util";
import { expect, onTestFinished, test } from "vitest";

const ROOT = resolve(import.meta.dirname, "../..");

const VIEW = `/** How many steps there are. */

import type { JSX } from "preact";
import type { Entry } from "../document";
import type { View } from "./view";

export const view: View = {
  name: "trial",
  title: "Trial",
  summary: "how many steps there are",
  key: "7",
  draw: Trial,
  needs: ["schedule"],
  plays: "steps",
};

function Trial(props: { entry: Entry }): JSX.Element {
  return <p>{props.entry.schedule.steps.length} steps</p>;
}
`;

// Without site, whose path file would find the package of this tree; the engine is not needed.
const ASK = `
import sys
sys.path[:0] = sys.argv[1:]
from allfold.view.page import views
print(*(view["name"] for view in views()))
`;

const run = promisify(execFile);

test("a view is one file and one line", { timeout: 600_000 }, async () => {
  const copy = mkdtempSync(join(tmpdir(), "allfold-recipe-"));
  onTestFinished(() => rmSync(copy, { recursive: true }));
  const [web, python] = [join(copy, "web"), join(copy, "src")];
  const unwanted = ["node_modules", "test-results", "__pycache__"];
  for (const name of ["web", "src"])
    cpSync(join(ROOT, name), join(copy, name), {
      recursive: true,
      filter: (path) => !unwanted.includes(basename(path)),
    });
  symlinkSync(join(ROOT, "web/node_modules"), join(web, "node_modules"));

  writeFileSync(join(web, "src/views/trial.tsx"), VIEW);
  appendFileSync(join(web, "src/views/index.ts"), 'export { view as trial } from "./trial";\n');
  await run("npm", ["run", "build"], { cwd: web });

  const program = join(ROOT, ".venv/bin/python");
  const packages = await run(program, ["-c", "import numpy, os; print(os.path.dirname(numpy.__path__[0]))"]);
  const { stdout } = await run(program, ["-S", "-c", ASK, python, packages.stdout.trim()]);
  expect(stdout.trim()).toBe("holds time bytes race wins code trial");
});
