/** `npm run size`: weighs the built package against its budget and against the committed baseline (`-- --update` rewrites that). */
import fs from "node:fs";
import { main, UserError } from "./lib/fail.mjs";
import { BASELINE, BROTLI_BUDGET_BYTES, packageSize } from "./lib/size.mjs";

function change(now, before) {
  if (before === undefined) return "no baseline";
  const bytes = now - before;
  return `${bytes >= 0 ? "+" : ""}${bytes} bytes, ${bytes >= 0 ? "+" : ""}${((bytes / before) * 100).toFixed(1)} %`;
}

await main(() => {
  const size = packageSize();
  const before = fs.existsSync(BASELINE) ? JSON.parse(fs.readFileSync(BASELINE, "utf8")) : {};
  for (const kind of ["raw", "gzip", "brotli"]) console.log(`${kind.padEnd(6)} ${String(size[kind]).padStart(9)} bytes (${change(size[kind], before[kind])})`);
  if (process.argv.includes("--update")) fs.writeFileSync(BASELINE, `${JSON.stringify(size)}\n`);
  if (size.brotli > BROTLI_BUDGET_BYTES) {
    throw new UserError("package.too_large", `the wasm with its JavaScript is ${size.brotli} bytes in brotli, over the budget of ${BROTLI_BUDGET_BYTES}`);
  }
});
