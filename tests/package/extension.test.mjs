/** The installed package in an extension's page, under the content security policy that Manifest V3 allows. */
import assert from "node:assert/strict";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { after, before, test } from "node:test";
import { chromium } from "playwright-core";
import { chromiumFlags, findChromium, PATIENCE_MS } from "../../scripts/lib/chromium.mjs";
import { assertCompletes, copyIn, installed, openBrowser, openInstalled, outside } from "./support.mjs";

let work;
let plain;
let context;
let profile;

before(async () => {
  work = await openInstalled();
  plain = await openBrowser();
});

after(async () => {
  await context?.close();
  await plain?.close();
  work?.close();
  if (profile) fs.rmSync(profile, { recursive: true, force: true, maxRetries: 10, retryDelay: 200 });
});

test("the extension example completes a prompt in its own page", { timeout: 1_200_000 }, async () => {
  const folder = copyIn(work, "examples/extension", { model: "model.gguf" });
  fs.cpSync(path.join(installed(work), "pkg"), path.join(folder, "fireside"), { recursive: true });
  fs.rmSync(path.join(folder, "node_modules"), { recursive: true });
  profile = fs.mkdtempSync(path.join(os.tmpdir(), "fireside-profile-"));
  context = await chromium.launchPersistentContext(profile, {
    executablePath: findChromium(),
    args: [...chromiumFlags({ webgpu: false }), `--disable-extensions-except=${folder}`, `--load-extension=${folder}`],
    ignoreDefaultArgs: ["--disable-extensions"],
    timeout: PATIENCE_MS,
  });
  context.setDefaultTimeout(PATIENCE_MS);
  const [background] = context.serviceWorkers().length > 0 ? context.serviceWorkers() : [await context.waitForEvent("serviceworker")];
  const origin = `chrome-extension://${new URL(background.url()).host}`;
  const asked = [];
  const errors = [];
  context.on("request", (request) => asked.push(request.url()));
  const page = await context.newPage();
  page.on("pageerror", (error) => errors.push(error.message));
  page.on("console", (message) => message.type() === "error" && errors.push(message.text()));
  await page.goto(`${origin}/index.html`);
  await assertCompletes(work, plain.browser, page);
  assert.deepEqual(outside(asked), []);
  assert.deepEqual(errors, []);
  // The policy is the extension's: what it forbids does not run. (Not within the call from here, which is let through.)
  const evaluated = await page.evaluate(async () => {
    await new Promise((resolve) => setTimeout(resolve));
    try {
      // eslint-disable-next-line no-new-func -- that it fails is what is tested
      return new Function("return 'ran'")();
    } catch (error) {
      return error.name;
    }
  });
  assert.equal(evaluated, "EvalError");
});
