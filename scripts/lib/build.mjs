/** Builds the npm package into pkg/: cargo, wasm-bindgen, tsc. Each half is skipped while its inputs are unchanged. */
import crypto from "node:crypto";
import fs from "node:fs";
import path from "node:path";
import { run } from "./exec.mjs";
import { PKG, ROOT, TARGET, bindgenVersion } from "./paths.mjs";

const FEATURES = "cpu,webgpu,web";
const STAMP = path.join(PKG, ".build.json");

function filesUnder(entry) {
  const full = path.join(ROOT, entry);
  const stat = fs.statSync(full, { throwIfNoEntry: false });
  if (!stat) return [];
  if (stat.isFile()) return [entry];
  return fs.readdirSync(full, { recursive: true, withFileTypes: true })
    .filter((found) => found.isFile())
    .map((found) => path.relative(ROOT, path.join(found.parentPath ?? found.path, found.name)))
    .sort();
}

/** One hash over the named files and folders, and whatever else decides the result. */
function inputsHash(entries, extra) {
  const hash = crypto.createHash("sha256").update(JSON.stringify(extra));
  for (const file of entries.flatMap(filesUnder)) {
    hash.update(`\0${file}\0`).update(fs.readFileSync(path.join(ROOT, file)));
  }
  return hash.digest("hex");
}

function readStamp() {
  try {
    return JSON.parse(fs.readFileSync(STAMP, "utf8"));
  } catch {
    return {};
  }
}

/** Pages may not instantiate a large module synchronously, which is how the generated reset would do it. */
function resetAsynchronously(file) {
  let text = fs.readFileSync(file, "utf8");
  for (const [generated, ours] of [
    ["export function __wbg_reset_state () {", "export async function __wbg_reset_state () {"],
    ["wasmInstance = new WebAssembly.Instance(wasmModule, __wbg_get_imports());", "wasmInstance = await WebAssembly.instantiate(wasmModule, __wbg_get_imports());"],
  ]) {
    if (text.split(generated).length !== 2) throw new Error(`the glue of this wasm-bindgen has another reset function: ${generated}`);
    text = text.replace(generated, ours);
  }
  fs.writeFileSync(file, text);
}

async function buildWasm() {
  console.error("build: cargo (the first time this takes many minutes)");
  await run("cargo", ["build", "--release", "--target", "wasm32-unknown-unknown", "--features", FEATURES, "--lib"]);
  const module = path.join(TARGET, "wasm32-unknown-unknown/release/fireside.wasm");
  const out = path.join(PKG, "wasm");
  fs.rmSync(out, { recursive: true, force: true });
  const args = [module, "--target", "web", "--out-dir", out, "--out-name", "fireside"];
  // A Worker outlives a lost device or a trap: its next engine needs a fresh instance.
  await run("wasm-bindgen", [...args, "--remove-name-section", "--remove-producers-section", "--experimental-reset-state-function"]);
  resetAsynchronously(path.join(out, "fireside.js"));
}

async function buildJs() {
  console.error("build: tsc");
  for (const file of fs.readdirSync(PKG, { recursive: true })) {
    // The wasm half is its own; files that no source stands behind any more must not be packed.
    if (/\.(js|d\.ts)$/.test(file) && !file.startsWith("wasm")) fs.rmSync(path.join(PKG, file));
  }
  await run(process.execPath, [path.join(ROOT, "node_modules/typescript/bin/tsc"), "-p", "tsconfig.json"]);
}

/** Brings pkg/ up to date. */
export async function build() {
  fs.mkdirSync(PKG, { recursive: true });
  const stamp = readStamp();
  const wasm = inputsHash(["src", "Cargo.toml", "Cargo.lock", ".cargo/config.toml"], [FEATURES, bindgenVersion(), process.env.RUSTFLAGS ?? ""]);
  if (stamp.wasm !== wasm || !fs.existsSync(path.join(PKG, "wasm/fireside_bg.wasm"))) {
    await buildWasm();
    fs.writeFileSync(STAMP, JSON.stringify({ ...stamp, wasm }));
  }
  const js = inputsHash(["js", "tsconfig.json", "package-lock.json"], []);
  if (stamp.js !== js || !fs.existsSync(path.join(PKG, "index.js"))) {
    await buildJs();
  }
  fs.writeFileSync(STAMP, JSON.stringify({ wasm, js }));
}
