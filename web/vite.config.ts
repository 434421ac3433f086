import { runnerImport, type Plugin } from "vite";
import { defineConfig } from "vitest/config";
import tokens from "../src/allfold/view/tokens.json" with { type: "json" };

/** What Python has to know about the views, beside the page: it checks their names, and that it writes what they need. */
const viewsForPython: Plugin = {
  name: "views-for-python",
  async generateBundle() {
    const { module } = await runnerImport<typeof import("./src/views/table")>("./src/views/table.ts");
    const views = module.VIEWS.map(({ name, title, needs }) => ({ name, title, needs }));
    this.emitFile({ type: "asset", fileName: "views.json", source: `${JSON.stringify(views, null, 2)}\n` });
  },
};

/** Colours and sizes for the style sheet: those that Python's pictures have, too. */
const tokensOf: Plugin = {
  name: "tokens",
  enforce: "pre",
  transform(code, id) {
    if (!id.endsWith("page.css")) return;
    const block = (name: string): string =>
      Object.entries(tokens[name as "light" | "dark" | "sizes"])
        .map(([key, value]) => `--${key}: ${value};`)
        .join("\n  ");
    return code.replace(/@tokens (\w+);/g, (_, name: string) => block(name));
  },
};

// One plain script and one stylesheet, which Python puts into the HTML as they are: nothing is loaded at run time.
export default defineConfig({
  plugins: [viewsForPython, tokensOf],
  // The automatic JSX of esbuild is all that Preact needs; a plugin would only add fast refresh.
  esbuild: { jsx: "automatic", jsxImportSource: "preact", legalComments: "none" },
  build: {
    outDir: process.env.ALLFOLD_PAGE_OUT ?? "../src/allfold/view/static",
    emptyOutDir: false,
    target: "es2022",
    cssCodeSplit: false,
    modulePreload: false,
    reportCompressedSize: false,
    lib: { entry: "src/main.tsx", formats: ["iife"], name: "allfold", fileName: () => "page.js", cssFileName: "page" },
  },
  define: { "process.env.NODE_ENV": '"production"' },
  test: { include: ["test/**/*.test.ts"] },
});
