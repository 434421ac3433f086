import eslint from "@eslint/js";
import { defineConfig, globalIgnores } from "eslint/config";
import tseslint from "typescript-eslint";

// Circles of imports and exports that nobody uses are found by test/imports.test.ts.
export default defineConfig(
  // Those of Python are plain scripts, for a worker and for Node; so is the one for Firefox.
  globalIgnores(["node_modules", "test-results", "fixtures", "python", "firefox.mjs", "eslint.config.js"]),
  { linterOptions: { reportUnusedDisableDirectives: "error" } },
  eslint.configs.recommended,
  tseslint.configs.recommendedTypeChecked,
  {
    languageOptions: { parserOptions: { projectService: true, tsconfigRootDir: import.meta.dirname } },
  },
);
