/**
 * Python for the page: Pyodide, NumPy and allfold as scripts that a page can load from disk, and the same files for Node.
 *
 *     node python/build.mjs FOLDER
 *
 * FOLDER/node has the files themselves; FOLDER/pieces has each as a script, compressed, and `pieces.json` with their sizes.
 * What is in there is found by running it: the modules that are loaded after every kind of question was answered.
 */

import { copyFileSync, mkdirSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { join, relative, resolve } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { gzipSync } from "node:zlib";

// Node would print the line of the error, which is a megabyte long.
process.on("uncaughtException", (error) => {
  console.error(error.message);
  process.exit(1);
});

const HERE = fileURLToPath(new URL(".", import.meta.url));
const PYODIDE = resolve(HERE, "../node_modules/pyodide");
const NUMPY = resolve(HERE, "../node_modules/@emscripten-forge/numpy/pkg");
const ALLFOLD = resolve(HERE, "../../src/allfold");

const out = resolve(process.argv[2] ?? "../build/python");
const [node, pieces] = [join(out, "node"), join(out, "pieces")];
rmSync(out, { recursive: true, force: true });
for (const folder of [node, pieces]) mkdirSync(folder, { recursive: true });

// NumPy was built for another distribution, whose runtime has this function; without it, large arrays abort.
const glue = readFileSync(join(PYODIDE, "pyodide.asm.js"), "utf8");
const mended = glue.replace("wasmImports={", "wasmImports={backtrace:()=>0,");
if (mended === glue) throw new Error("pyodide.asm.js has no wasmImports: this is another version of Pyodide");
writeFileSync(join(node, "pyodide.asm.js"), mended);
for (const name of ["pyodide.asm.wasm", "python_stdlib.zip", "pyodide.js", "pyodide.mjs"])
  copyFileSync(join(PYODIDE, name), join(node, name));
const lock = JSON.parse(readFileSync(join(PYODIDE, "pyodide-lock.json"), "utf8"));
writeFileSync(join(node, "pyodide-lock.json"), JSON.stringify({ info: lock.info, packages: {} }));
writeFileSync(join(node, "package.json"), "{}");

const { loadPyodide } = await import(pathToFileURL(join(node, "pyodide.mjs")).href);
const python = await loadPyodide({ indexURL: `${node}/` });
const site = "/lib/python3.11/site-packages";
const [archive] = readdirSync(NUMPY).filter((name) => name.endsWith(".tar.gz"));
python.runPython("import os; os.makedirs('/unpacked')");
python.unpackArchive(new Uint8Array(readFileSync(join(NUMPY, archive))), "gztar", { extractDir: "/unpacked" });
python.runPython(`os.rename("/unpacked/lib/python3.11/site-packages/numpy", "${site}/numpy")`);
copyTree(ALLFOLD, `${site}/allfold`, (path) => /\.(pyi?|toml|md|json)$/.test(path));

python.FS.writeFile("/packs.py", readFileSync(join(HERE, "packs.py"), "utf8"));
python.runPython(`
import sys
sys.path.insert(0, "/")
sys.dont_write_bytecode = True
from allfold.studio.in_browser import Page
Page().warm()
import allfold.mpi4py.MPI  # a lesson imports it
import packs
`);
const packs = {
  "numpy.pack": python.runPython(`packs.numpy_pack("${site}")`),
  "allfold.pack": python.runPython(`packs.allfold_pack("${site}")`),
  "python_stdlib.zip": python.runPython(`packs.standard_library("${archiveOf()}")`),
};
for (const [name, made] of Object.entries(packs)) writeFileSync(join(node, name), made.toJs());

const scripts = ["pyodide.asm.js", "pyodide.js"].map((name) => readFileSync(join(node, name), "utf8"));
scripts.push(...["boot.js", "worker.js"].map((name) => readFileSync(join(HERE, name), "utf8")));
const contents = {
  "start.js": Buffer.from(scripts.join("\n;\n").replace(/\/\/# sourceMappingURL=\S+/g, "")),
  "pyodide-lock.json": readFileSync(join(node, "pyodide-lock.json")),
};
for (const name of ["pyodide.asm.wasm", ...Object.keys(packs)]) contents[name] = readFileSync(join(node, name));

const sizes = {};
for (const [name, bytes] of Object.entries(contents)) {
  const packed = gzipSync(bytes, { level: 9 });
  const file = `${name.replace(/\W/g, "_")}.js`;
  writeFileSync(join(pieces, file), `allfoldPiece(${JSON.stringify(name)},"${packed.toString("base64")}");\n`);
  sizes[name] = { file, bytes: packed.length };
}
writeFileSync(join(pieces, "pieces.json"), `${JSON.stringify(sizes, null, 1)}\n`);
const all = Object.values(sizes).reduce((sum, one) => sum + one.bytes, 0);
for (const [name, { bytes }] of Object.entries(sizes))
  console.log(`${(bytes / 1e6).toFixed(2).padStart(6)} MB  ${name}`);
console.log(`${(all / 1e6).toFixed(2).padStart(6)} MB  compressed, in ${relative(process.cwd(), pieces)}`);
process.exit(0);

/** Python has the archive open already, under its own name. */
function archiveOf() {
  python.FS.writeFile("/stdlib.zip", new Uint8Array(readFileSync(join(PYODIDE, "python_stdlib.zip"))));
  return "/stdlib.zip";
}

function copyTree(from, to, wanted) {
  python.FS.mkdirTree(to);
  for (const name of readdirSync(from)) {
    const path = join(from, name);
    if (name === "__pycache__") continue;
    if (statSync(path).isDirectory()) copyTree(path, `${to}/${name}`, wanted);
    else if (wanted(path)) python.FS.writeFile(`${to}/${name}`, new Uint8Array(readFileSync(path)));
  }
}
