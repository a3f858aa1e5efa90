/** A folder with the packed tarball installed as a developer has it: what every package test runs on. The bundlers beside it are installed once into the cache. */
import crypto from "node:crypto";
import fs from "node:fs";
import path from "node:path";
import { run } from "./exec.mjs";
import { UserError } from "./fail.mjs";
import { CACHE, PKG, ROOT } from "./paths.mjs";

const NPM = process.platform === "win32" ? "npm.cmd" : "npm";
const PINS = path.join(ROOT, "tests/package");
const DAY_MS = 24 * 3600 * 1000;
/** Bundlers that nothing used for this long are removed, and what a run that was killed left behind. */
const TOOLS_STALE_MS = 14 * DAY_MS;
const RUN_STALE_MS = DAY_MS;

/** The bundlers' folder, by its lock file. A half-done install is never seen under its name. */
async function tools() {
  const lock = fs.readFileSync(path.join(PINS, "package-lock.json"));
  const all = path.join(CACHE, "package-tools");
  const folder = path.join(all, crypto.createHash("sha256").update(lock).digest("hex").slice(0, 16));
  fs.mkdirSync(all, { recursive: true });
  if (!fs.existsSync(folder)) {
    console.error("package: installing the bundlers (450 MB, once)");
    const fresh = fs.mkdtempSync(path.join(all, "new-"));
    for (const name of ["package.json", "package-lock.json", ".npmrc"]) fs.copyFileSync(path.join(PINS, name), path.join(fresh, name));
    try {
      await run(NPM, ["ci", "--loglevel=error"], { cwd: fresh });
      fs.renameSync(fresh, folder);
    } catch (error) {
      fs.rmSync(fresh, { recursive: true, force: true });
      // Another run may have been quicker.
      if (!fs.existsSync(folder)) throw error;
    }
  }
  const now = new Date();
  fs.utimesSync(folder, now, now);
  removeStale(all, TOOLS_STALE_MS);
  removeStale(path.join(folder, "runs"), RUN_STALE_MS);
  return folder;
}

function removeStale(parent, age) {
  for (const name of fs.existsSync(parent) ? fs.readdirSync(parent) : []) {
    const folder = path.join(parent, name);
    const stat = fs.statSync(folder, { throwIfNoEntry: false });
    if (stat && Date.now() - stat.mtimeMs > age) fs.rmSync(folder, { recursive: true, force: true });
  }
}

/**
 * Packs pkg/ and installs the tarball; `folder` has node_modules/fireside, and through its parents the bundlers.
 * pkg/ must be built.
 */
export async function openWork() {
  if (!fs.existsSync(path.join(PKG, "worker.js"))) throw new UserError("build.missing", "pkg/ is not built: run `npm run build`");
  const runs = path.join(await tools(), "runs");
  fs.mkdirSync(runs, { recursive: true });
  const folder = fs.mkdtempSync(path.join(runs, "run-"));
  try {
    await run(NPM, ["pack", "--ignore-scripts", "--silent", "--pack-destination", folder]);
    const tarball = fs.readdirSync(folder).find((name) => name.endsWith(".tgz"));
    fs.writeFileSync(path.join(folder, "package.json"), '{ "private": true, "type": "module" }\n');
    await run(NPM, ["install", "--offline", "--no-save", "--no-package-lock", "--loglevel=error", `./${tarball}`], { cwd: folder });
    return { folder, tarball: path.join(folder, tarball), close: () => fs.rmSync(folder, { recursive: true, force: true }) };
  } catch (error) {
    fs.rmSync(folder, { recursive: true, force: true });
    throw error;
  }
}
