/** `npm run browsers`: runs the checks in every browser of this machine and writes the table of docs/browsers.md. */
import fs from "node:fs";
import path from "node:path";
import { BROWSERS, runChecks } from "../tests/browsers/run.mjs";
import { TOKENS } from "../tests/package/support.mjs";
import { build } from "./lib/build.mjs";
import { table } from "./lib/browser-table.mjs";
import { main, UserError } from "./lib/fail.mjs";
import { openWork } from "./lib/package-work.mjs";
import { ROOT } from "./lib/paths.mjs";
import { setup, setupBrowsers } from "./lib/setup.mjs";

const MARK = "<!-- the table: npm run browsers -->";

await main(async () => {
  await setup();
  const missing = await setupBrowsers();
  if (missing.length > 0) throw new UserError("setup.missing", `the table is made of all browsers, and ${missing.join(" and ")} cannot be had here`);
  await build();
  const work = await openWork();
  try {
    const ran = [];
    for (const open of Object.values(BROWSERS)) ran.push(await runChecks(work, open));
    const file = path.join(ROOT, "docs/browsers.md");
    const [head, , tail] = fs.readFileSync(file, "utf8").split(MARK);
    fs.writeFileSync(file, [head, `\n${table(ran, TOKENS)}\n`, tail].join(MARK));
  } finally {
    work.close();
  }
});
