/**
 * Starts Python with NumPy and allfold, in a Web Worker and, for tests, in Node: a plain script, since a worker that is
 * made from a page on disk cannot load modules.
 */

/* exported bootPython */
async function bootPython({ loadPyodide, indexURL, packs, tell }) {
  tell("Python");
  const silent = () => {};
  // Code that is read from a link must not ask for input, or fill the console.
  const pyodide = await loadPyodide({ indexURL, stdin: () => null, stdout: silent, stderr: silent });
  for (const [name, bytes] of packs) {
    tell(name);
    unpack(pyodide.FS, bytes);
  }
  pyodide.runPython("import sys; sys.path.insert(0, '/packages'); sys.dont_write_bytecode = True");
  pyodide.runPython("import numpy");
  tell("allfold");
  const page = pyodide.runPython("from allfold.studio.in_browser import Page; Page()");
  // The first questions import what questions need: nobody waits for that later. The second time shows how fast this is.
  page.warm();
  const begin = performance.now();
  page.warm();
  return { warmed: performance.now() - begin, answer: (question, ran) => page.answer(question, ran) };
}

/** A pack is a line of JSON, which lists paths and lengths, then the files themselves. */
function unpack(FS, bytes) {
  const end = bytes.indexOf(10);
  let place = end + 1;
  const made = new Set();
  for (const [path, length] of JSON.parse(new TextDecoder().decode(bytes.subarray(0, end)))) {
    const folder = path.slice(0, path.lastIndexOf("/"));
    if (!made.has(folder)) FS.mkdirTree(folder);
    made.add(folder);
    FS.writeFile(path, bytes.subarray(place, place + length), { canOwn: true });
    place += length;
  }
}
