/** `npm run docs`: puts docs/errors.md together from docs/errors.d/ (`-- --check` only compares). */
import fs from "node:fs";
import path from "node:path";
import { main, UserError } from "./lib/fail.mjs";
import { ROOT } from "./lib/paths.mjs";

const HEAD = `# Errors

Every rejection is a \`FiresideError\` with a stable \`code\`, a sentence for people, and \`details\` for programs. An aborted
request rejects with its signal's own reason instead. Codes are \`room.what\`, in alphabetical order here.

This file is put together from docs/errors.d by \`npm run docs\`.
`;

/** Paragraphs by code; a code described twice is an error. */
function paragraphs() {
  const folder = path.join(ROOT, "docs/errors.d");
  const found = new Map();
  for (const file of fs.readdirSync(folder).filter((name) => name.endsWith(".md")).sort()) {
    for (const section of fs.readFileSync(path.join(folder, file), "utf8").split(/^(?=### )/m)) {
      const code = /^### `([^`]+)`/.exec(section)?.[1];
      if (!code) continue;
      if (found.has(code)) throw new UserError("docs.duplicate", `${code} is described twice, in ${found.get(code).file} and ${file}`);
      found.set(code, { file, text: section.trim() });
    }
  }
  return [...found].sort(([a], [b]) => (a < b ? -1 : 1)).map(([, { text }]) => text);
}

await main(() => {
  const text = `${[HEAD.trim(), ...paragraphs()].join("\n\n")}\n`;
  const target = path.join(ROOT, "docs/errors.md");
  const now = fs.existsSync(target) ? fs.readFileSync(target, "utf8") : "";
  if (!process.argv.includes("--check")) fs.writeFileSync(target, text);
  else if (now !== text) throw new UserError("docs.stale", "docs/errors.md is not what docs/errors.d says: run `npm run docs`");
});
