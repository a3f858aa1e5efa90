/** Runs the page of checks (tests/package/fixtures/browsers) in a browser of this machine: what the browser tests and docs/browsers.md are made of. */
import fs from "node:fs";
import path from "node:path";
import { findChromium, launch } from "../../scripts/lib/chromium.mjs";
import { ROOT } from "../../scripts/lib/paths.mjs";
import { findFirefox, findWebKit, openFirefox, openWebKit } from "../../scripts/lib/webdriver.mjs";
import { POLICY, PROMPT, TOKENS, copyIn, serveFolder } from "../package/support.mjs";

/** Each with what opens it, or null where it is not installed. */
export const BROWSERS = {
  Chromium: findChromium() ? openChromium : null,
  Firefox: findFirefox() ? openFirefox : null,
  WebKitGTK: findWebKit() ? openWebKit : null,
};

async function openChromium() {
  const { browser, close } = await launch();
  const page = await browser.newPage();
  return {
    name: "Chromium",
    version: browser.version(),
    goto: (url) => page.goto(url),
    text: (selector) => page.textContent(selector),
    close,
  };
}

/** The same policy in every browser; the check of another origin needs that origin's script. */
const allowing = (origin) => POLICY.replace("'wasm-unsafe-eval'", `'wasm-unsafe-eval' ${origin}`);
const ALL_MS = 1_800_000;

/** The results of all checks in one browser. */
export async function runChecks(work, open) {
  const folder = copyIn(work, "tests/package/fixtures/browsers");
  fs.copyFileSync(path.join(ROOT, "tests/package/fixtures/workers/job.js"), path.join(folder, "job.js"));
  const elsewhere = await serveFolder(folder, { headers: { "access-control-allow-origin": "*", "cross-origin-resource-policy": "cross-origin" } });
  const server = await serveFolder(folder, { headers: { "content-security-policy": allowing(elsewhere.url) } });
  let browser;
  try {
    browser = await open();
    const query = new URLSearchParams({ prompt: PROMPT, count: TOKENS.length, elsewhere: elsewhere.url });
    await browser.goto(`${server.url}/index.html?${query}`);
    for (const end = Date.now() + ALL_MS; ; ) {
      const text = await browser.text("#result");
      if (text) return { name: browser.name, version: browser.version, results: JSON.parse(text) };
      if (Date.now() > end) throw new Error(`${browser.name} ${browser.version}: the checks did not end; at ${await browser.text("title")}`);
      await new Promise((resolve) => setTimeout(resolve, 200));
    }
  } finally {
    await browser?.close();
    server.close();
    elsewhere.close();
  }
}
