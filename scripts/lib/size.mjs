/** Bytes of the package as a page downloads it: the wasm and its JavaScript, raw, gzip and brotli. */
import fs from "node:fs";
import path from "node:path";
import zlib from "node:zlib";
import { PKG, ROOT } from "./paths.mjs";

export const BASELINE = path.join(ROOT, "benches/size.json");
/** What the wasm with its JavaScript may weigh on the wire. */
export const BROTLI_BUDGET_BYTES = 2_500_000;

function measure(file) {
  const data = fs.readFileSync(file);
  const brotli = zlib.brotliCompressSync(data, {
    params: { [zlib.constants.BROTLI_PARAM_QUALITY]: 11, [zlib.constants.BROTLI_PARAM_LGWIN]: 24, [zlib.constants.BROTLI_PARAM_SIZE_HINT]: data.length },
  });
  return { raw: data.length, gzip: zlib.gzipSync(data, { level: 9 }).length, brotli: brotli.length };
}

/** Sums over the wasm and every JavaScript file of pkg/. */
export function packageSize() {
  const scripts = fs.readdirSync(PKG, { recursive: true }).filter((name) => name.endsWith(".js") && !name.startsWith("wasm"));
  const files = [...scripts.map((name) => path.join(PKG, name)), path.join(PKG, "wasm/fireside.js"), path.join(PKG, "wasm/fireside_bg.wasm")];
  const sizes = files.map(measure);
  const sum = (key) => sizes.reduce((total, size) => total + size[key], 0);
  return { raw: sum("raw"), gzip: sum("gzip"), brotli: sum("brotli") };
}
