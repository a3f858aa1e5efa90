/** Lint rules: typescript-eslint's strict type-checked set for the package, the plain recommended set for scripts and pages. */
import js from "@eslint/js";
import globals from "globals";
import tseslint from "typescript-eslint";

/** What docs/security.md promises: nothing is evaluated, and no markup is made of strings. */
const SAFE = {
  "no-eval": "error",
  "no-implied-eval": "error",
  "no-new-func": "error",
  "no-script-url": "error",
  "no-restricted-properties": [
    "error",
    ...["innerHTML", "outerHTML", "insertAdjacentHTML", "setHTMLUnsafe", "srcdoc"].map((property) => ({ property, message: "Text goes into a page as text." })),
    { object: "document", property: "write", message: "Text goes into a page as text." },
    { object: "document", property: "writeln", message: "Text goes into a page as text." },
  ],
};

export default tseslint.config(
  { ignores: ["pkg/", "target/", "node_modules/", "tests/contract/"] },
  js.configs.recommended,
  {
    files: ["js/**/*.ts"],
    extends: [tseslint.configs.strictTypeChecked, tseslint.configs.stylisticTypeChecked],
    languageOptions: { parserOptions: { projectService: true, tsconfigRootDir: import.meta.dirname } },
    rules: {
      ...SAFE,
      eqeqeq: "error",
      "max-lines": ["error", 600],
      // The values come from callers who may not use TypeScript: checks that the types call needless are the point.
      "@typescript-eslint/no-unnecessary-condition": "off",
      "@typescript-eslint/only-throw-error": "off",
      "@typescript-eslint/prefer-promise-reject-errors": "off",
      "@typescript-eslint/unified-signatures": "off",
      "@typescript-eslint/no-unused-vars": ["error", { argsIgnorePattern: "^_" }],
    },
  },
  {
    files: ["**/*.mjs", "**/*.js", "**/*.jsx"],
    languageOptions: {
      ecmaVersion: 2024,
      sourceType: "module",
      globals: { ...globals.node, ...globals.browser, ...globals.webextensions },
      parserOptions: { ecmaFeatures: { jsx: true } },
    },
    rules: { ...SAFE, eqeqeq: "error", "max-lines": ["error", 600] },
  },
);
