import { defineConfig } from "vitest/config";

// One plain script and one stylesheet, which Python puts into the HTML as they are: nothing is loaded at run time.
export default defineConfig({
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
