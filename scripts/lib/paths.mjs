/** Where things are: the checkout, the user's cache folder, the pinned versions that setup and build share. */
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { fileURLToPath } from "node:url";

export const ROOT = path.resolve(path.dirname(fileURLToPath(import.meta.url)), "../..");

/** Everything that outlives a checkout lies here: tools, models, cargo's target folder. */
export const CACHE = process.env.FIRESIDE_CACHE || path.join(userCache(), "fireside");
export const TOOLS = path.join(CACHE, "tools");
export const MODELS = path.join(CACHE, "models");
export const TARGET = process.env.CARGO_TARGET_DIR || path.join(CACHE, "target");
export const PKG = path.join(ROOT, "pkg");

function userCache() {
  if (process.platform === "win32") return process.env.LOCALAPPDATA || path.join(os.homedir(), "AppData/Local");
  if (process.env.XDG_CACHE_HOME) return process.env.XDG_CACHE_HOME;
  return path.join(os.homedir(), ".cache");
}

/** The wasm-bindgen version that Cargo.toml pins: the command-line tool must be the same. */
export function bindgenVersion() {
  const toml = fs.readFileSync(path.join(ROOT, "Cargo.toml"), "utf8");
  const version = /^wasm-bindgen\s*=\s*\{[^}]*version\s*=\s*"=([\d.]+)"/m.exec(toml)?.[1];
  if (!version) throw new Error("Cargo.toml does not pin wasm-bindgen to an exact version");
  return version;
}

/** Environment for cargo and what it runs: our tools come first. */
export function buildEnv(extra = {}) {
  const cargoHome = process.env.CARGO_HOME || path.join(os.homedir(), ".cargo");
  const PATH = [path.join(TOOLS, "bin"), process.env.PATH, path.join(cargoHome, "bin")].join(path.delimiter);
  return { ...process.env, PATH, CARGO_TARGET_DIR: TARGET, ...extra };
}

/** First of the names that PATH has, or null. */
export function which(...names) {
  const folders = (buildEnv().PATH ?? "").split(path.delimiter);
  for (const name of names) {
    for (const folder of path.isAbsolute(name) ? [""] : folders) {
      const file = path.join(folder, name);
      try {
        fs.accessSync(file, fs.constants.X_OK);
        if (fs.statSync(file).isFile()) return file;
      } catch {
        // Not here: the next folder.
      }
    }
  }
  return null;
}
