/** The README's example, copied out of it and run in a page: what it prints must be what it says. */
import assert from "node:assert/strict";
import fs from "node:fs";
import path from "node:path";
import { test } from "node:test";
import { launch } from "../../scripts/lib/chromium.mjs";
import { defaultModel } from "../../scripts/lib/model.mjs";
import { ROOT } from "../../scripts/lib/paths.mjs";
import { serve } from "../../scripts/lib/server.mjs";

test("the example runs as it stands", { timeout: 300_000 }, async () => {
  const readme = fs.readFileSync(path.join(ROOT, "README.md"), "utf8");
  const examples = [...readme.matchAll(/^```html\n([\s\S]*?)^```$/gm)].map((match) => match[1]);
  assert.equal(examples.length, 1, "the README has one page to copy");
  const server = await serve({ mounts: { "/models/SmolLM2-135M-Instruct.Q4_1.gguf": await defaultModel() } });
  const { browser, close } = await launch();
  try {
    const page = await browser.newPage();
    const errors = [];
    page.on("pageerror", (error) => errors.push(error.message));
    await page.route("**/example.html", (route) => route.fulfill({ body: examples[0], contentType: "text/html" }));
    await page.goto(`${server.url}/example.html`);
    await page.waitForFunction(() => document.body.innerText.includes("Paris"), undefined, { timeout: 240_000 });
    assert.deepEqual(errors, []);
  } finally {
    await close();
    server.close();
  }
});
