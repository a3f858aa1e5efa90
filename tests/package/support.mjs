/** What package tests share: the installed tarball, copies of examples and fixtures beside it, pages in Chromium, the reference's tokens. */
import assert from "node:assert/strict";
import fs from "node:fs";
import path from "node:path";
import { launch, PATIENCE_MS } from "../../scripts/lib/chromium.mjs";
import { openWork } from "../../scripts/lib/package-work.mjs";
import { ROOT } from "../../scripts/lib/paths.mjs";
import { serve } from "../../scripts/lib/server.mjs";

export const TINY = path.join(ROOT, "tests/goldens/tiny/tiny-llama-f16.gguf");

const index = JSON.parse(fs.readFileSync(path.join(ROOT, "tests/goldens/tiny/index.json"), "utf8"));
const [golden] = index.find(({ file }) => file === path.basename(TINY)).prompts;
/** The reference's prompt, and its greedy tokens as far as no two come near a tie. */
export const PROMPT = golden.text;
export const TOKENS = golden.greedy_ids_f64.slice(0, 24);

/** The content security policy that docs/package.md says is enough. */
export const POLICY = /^```\n(default-src .+)\n```$/m.exec(fs.readFileSync(path.join(ROOT, "docs/package.md"), "utf8"))[1];

/** The installed tarball: the stage's own when it runs the tests, else one made for this file. */
export async function openInstalled() {
  const given = process.env.FIRESIDE_PACKAGE_WORK;
  return given ? { folder: given, close: () => undefined } : openWork();
}

/** Copies a folder of the checkout into the work folder under a name of its own, with the installed package; `model` is where the tiny model goes in it. */
export function copyIn(work, from, { model, as = path.basename(from) } = {}) {
  const folder = fs.mkdtempSync(path.join(work.folder, `${as}-`));
  fs.cpSync(path.join(ROOT, from), folder, { recursive: true });
  fs.cpSync(installed(work), path.join(folder, "node_modules/fireside"), { recursive: true });
  if (model) {
    fs.mkdirSync(path.dirname(path.join(folder, model)), { recursive: true });
    fs.copyFileSync(TINY, path.join(folder, model));
  }
  return folder;
}

/** The installed package's folder. */
export const installed = (work) => path.join(work.folder, "node_modules/fireside");

/** Serves a folder and the model beside it, and nothing of the checkout's own. */
export function serveFolder(folder, options = {}) {
  const mounts = { "/": folder, "/model.gguf": TINY, ...options.mounts };
  return serve({ isolate: false, defaults: false, ...options, mounts });
}

/** A browser without WebGPU: what is tested is the package, and the CPU is the quickest way to tokens. */
export const openBrowser = () => launch({ webgpu: false });

/** Waits until something holds; what never will is an error, not a run without an end. */
export async function until(holds) {
  for (const end = performance.now() + PATIENCE_MS; !(await holds()); ) {
    if (performance.now() > end) throw new Error(`waited in vain until ${holds}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

/**
 * For a page that draws by a schedule of its own, which may put many pieces into one: each token is held back until the text of the
 * one before is to be seen. Whoever does not show text as it comes never sees the next.
 */
function oneAtATime() {
  const { get, set } = Object.getOwnPropertyDescriptor(MessagePort.prototype, "onmessage");
  const shown = () => document.querySelector("#text").textContent;
  const change = () => new Promise((resolve) => {
    const before = shown();
    const observer = new MutationObserver(() => shown() !== before && (observer.disconnect(), resolve()));
    observer.observe(document, { childList: true, characterData: true, subtree: true });
  });
  Object.defineProperty(MessagePort.prototype, "onmessage", {
    get,
    set(handler) {
      let last = Promise.resolve();
      const inTurn = (event) => {
        const { t, value } = event.data ?? {};
        const hand = () => {
          const changed = t === "token" && value.text !== "" ? change() : undefined;
          handler.call(this, event);
          return changed;
        };
        if (t === "token" || t === "done") last = last.then(hand);
        else hand();
      };
      set.call(this, handler && inTurn);
    },
  });
}

/** A page that remembers what went wrong in it, and every address that it or its Workers asked for. `paced`: tokens come one at a time. */
export async function openPage(browser, url, { paced = false } = {}) {
  const context = await browser.newContext();
  if (paced) await context.addInitScript(oneAtATime);
  const asked = [];
  const errors = [];
  context.on("request", (request) => asked.push(request.url()));
  const page = await context.newPage();
  page.on("pageerror", (error) => errors.push(error.message));
  page.on("console", (message) => {
    // Browsers ask for an icon on their own.
    if (message.type() === "error" && !message.location().url.endsWith("/favicon.ico")) errors.push(message.text());
  });
  await page.goto(url);
  return { page, context, asked, errors, close: () => context.close() };
}

/** Addresses that are not this machine's. */
export const outside = (urls) => urls.filter((url) => /^(https?|wss?):/.test(url) && !["127.0.0.1", "localhost"].includes(new URL(url).hostname));

/** Uses an example's form as a person would: waits for the model, asks, and returns what came, and in how many pieces. */
export async function useForm(page, { prompt = PROMPT } = {}) {
  const fails = page.waitForFunction(() => /^[\w.]+: /.test(document.querySelector("#status").textContent));
  const loaded = page.waitForFunction(() => !document.querySelector("[name=go]").disabled);
  fails.catch(() => undefined);
  await Promise.race([loaded, fails]);
  const status = await page.textContent("#status");
  assert.match(status, / on cpu$/, `the model was not loaded: ${status}`);
  await page.evaluate(() => {
    window.pieces = new Set();
    const look = () => window.pieces.add(document.querySelector("#text").textContent);
    new MutationObserver(look).observe(document.querySelector("#text"), { childList: true, characterData: true, subtree: true });
  });
  await page.fill("[name=prompt]", prompt);
  await page.click("[name=go]");
  await page.waitForFunction(() => /tokens, the first/.test(document.querySelector("#status").textContent));
  return page.evaluate(() => ({ text: document.querySelector("#text").textContent, pieces: window.pieces.size, status: document.querySelector("#status").textContent }));
}

let reference;
/** The text of the reference's tokens, as the installed package gives it where its tokens are compared one by one. */
export async function referenceText(work, browser) {
  if (reference !== undefined) return reference;
  const server = await serveFolder(copyIn(work, "tests/package/fixtures/plain"));
  const { page, close } = await openPage(browser, server.url);
  try {
    const got = await page.evaluate(([prompt, count]) => window.complete(prompt, count), [PROMPT, TOKENS.length]);
    assert.deepEqual(got.tokens, TOKENS);
    assert.deepEqual(got.streamed, TOKENS);
    reference = got.text;
    return reference;
  } finally {
    await close();
    server.close();
  }
}

/** An example did what it is for: the reference's text, in several pieces. */
export async function assertCompletes(work, browser, page) {
  const got = await useForm(page);
  assert.equal(got.text, await referenceText(work, browser));
  assert.ok(got.pieces > 2, `the text came in ${got.pieces} pieces`);
}
