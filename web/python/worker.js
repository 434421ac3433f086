/** The worker: Python's own files come as bytes in the first message, then each message is a question. */

/* global bootPython, loadPyodide */
{
  const INDEX = "https://python.invalid/"; // nothing is asked there: see `fetch` below
  let python = null;

  const start = async ({ files, packs, module }) => {
    self.fetch = async (address) => {
      const name = String(address).slice(INDEX.length);
      if (!files[name]) throw new TypeError(`there is no file ${name}, and nothing is loaded from elsewhere`);
      return new Response(files[name], { headers: { "Content-Type": typeOf(name) } });
    };
    // The page has compiled it: the second worker need not do it again.
    WebAssembly.instantiateStreaming = async (_, imports) => ({
      module,
      instance: await WebAssembly.instantiate(module, imports),
    });
    python = await bootPython({ loadPyodide, indexURL: INDEX, packs, tell: (step) => postMessage({ step }) });
    postMessage({ ready: python.warmed });
  };

  const typeOf = (name) => (name.endsWith(".wasm") ? "application/wasm" : "application/octet-stream");

  self.onmessage = ({ data }) => {
    if (data.files) {
      start(data).catch((error) => postMessage({ failed: String(error) }));
      return;
    }
    try {
      const found = python.answer(data.question, () => postMessage({ ran: true }));
      postMessage({ found });
    } catch (error) {
      postMessage({ broken: String(error).trim().split("\n").at(-1) });
    }
  };
}
