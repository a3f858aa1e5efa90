/** What browser tests share: running the command, a page with the package, goldens. Real Chromium, real wasm, real models. */
import { spawn } from "node:child_process";
import fs from "node:fs";
import path from "node:path";
import { launch, PATIENCE_MS } from "../../scripts/lib/chromium.mjs";
import { ROOT } from "../../scripts/lib/paths.mjs";
import { serve } from "../../scripts/lib/server.mjs";

export const golden = (name) => path.join(ROOT, "tests/goldens", name);
export const TINY = golden("tiny/tiny-llama-f16.gguf");

/** The reference's greedy row of that name. */
export function greedyRow(name) {
  const rows = fs.readFileSync(golden("greedy/smollm2.jsonl"), "utf8").trim().split("\n").map((line) => JSON.parse(line));
  return rows.find((row) => row.name === name);
}

/** The tiny model's entry in the index of goldens. */
export function tinyEntry() {
  const index = JSON.parse(fs.readFileSync(golden("tiny/index.json"), "utf8"));
  return index.find(({ file }) => file === path.basename(TINY));
}

/** Waits until something holds; what never will is an error, not a run without an end. */
export async function until(holds) {
  for (const end = performance.now() + PATIENCE_MS; !(await holds()); ) {
    if (performance.now() > end) throw new Error(`waited in vain until ${holds}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

/** Runs `node scripts/generate.mjs` to its end, or until so many pieces of output have come: then it is interrupted. */
export function generateUntil(pieces, ...args) {
  const child = spawn(process.execPath, [path.join(ROOT, "scripts/generate.mjs"), ...args], { cwd: ROOT, stdio: ["ignore", "pipe", "pipe"] });
  const output = { stdout: "", stderr: "" };
  let left = pieces;
  child.stdout.setEncoding("utf8").on("data", (text) => {
    output.stdout += text;
    if (--left === 0) child.kill("SIGINT");
  });
  child.stderr.setEncoding("utf8").on("data", (text) => (output.stderr += text));
  return new Promise((resolve, reject) => {
    child.on("error", reject);
    child.on("close", (status) => resolve({ ...output, status, lines: output.stdout.trimEnd().split("\n") }));
  });
}

export const generate = (...args) => generateUntil(Infinity, ...args);

/** A page on a local server with the package at /pkg/ and the given files mounted; `run` evaluates in it. `backCache` is `launch`'s. */
export async function openPage(mounts = {}, { backCache = false, ...options } = {}) {
  const server = await serve({ mounts: { "/tiny.gguf": TINY, ...mounts }, ...options });
  const { browser, pid, close } = await launch({ backCache });
  const context = await browser.newContext();
  const errors = [];
  /** One more tab of the same browser, with the same storage. */
  const newTab = async () => {
    const tab = await context.newPage();
    tab.on("pageerror", (error) => errors.push(error.message));
    await tab.goto(`${server.url}/runner.html`);
    return tab;
  };
  const page = await newTab();
  return {
    page,
    browser,
    /** Process id of the browser. */
    pid,
    newTab,
    /** A session of the devtools protocol with a tab. */
    devtools: (tab = page) => context.newCDPSession(tab),
    errors,
    url: server.url,
    log: server.log,
    run: (fn, arg) => page.evaluate(fn, arg),
    async close() {
      await close();
      server.close();
    },
  };
}
