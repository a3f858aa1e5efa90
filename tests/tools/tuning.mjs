/** The package's own patience and pace, read from its source, so that tests bound what they see by the same figures. */
import fs from "node:fs";
import path from "node:path";
import { ROOT } from "../../scripts/lib/paths.mjs";

const source = fs.readFileSync(path.join(ROOT, "js/source/tuning.ts"), "utf8");

/** One figure of `tuning`: a number, or a product of numbers. */
function figure(name) {
  const text = new RegExp(`^  ${name}: ([\\d_ *]+),$`, "m").exec(source)?.[1];
  if (!text) throw new Error(`js/source/tuning.ts has no figure ${name}`);
  return text.split("*").reduce((product, factor) => product * Number(factor.replaceAll("_", "")), 1);
}

export const tuning = { journalBytes: figure("journalBytes"), stallMs: figure("stallMs") };
