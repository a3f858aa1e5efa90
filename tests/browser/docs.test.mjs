/** The examples of README and docs/api.md, copied out of them and run in a page: they print what they say. */
import assert from "node:assert/strict";
import fs from "node:fs";
import path from "node:path";
import { after, before, test } from "node:test";
import { launch } from "../../scripts/lib/chromium.mjs";
import { defaultModel } from "../../scripts/lib/model.mjs";
import { ROOT } from "../../scripts/lib/paths.mjs";
import { serve } from "../../scripts/lib/server.mjs";
import { TINY } from "./support.mjs";

let server;
let chromium;

/** The blocks of a language in a document, with the line that each begins at. */
function examples(file, language) {
  const text = fs.readFileSync(path.join(ROOT, file), "utf8");
  const found = [...text.matchAll(new RegExp(`^\`\`\`${language}\n([\\s\\S]*?)^\`\`\`$`, "gm"))];
  return found.map((match) => ({ code: match[1], line: text.slice(0, match.index).split("\n").length + 1 }));
}

/** Opens a page that is nothing but the given HTML. */
async function openHtml(html) {
  const page = await chromium.browser.newPage();
  const errors = [];
  page.on("pageerror", (error) => errors.push(error.message));
  await page.route("**/example.html", (route) => route.fulfill({ body: html, contentType: "text/html" }));
  await page.goto(`${server.url}/example.html`);
  return { page, errors };
}

before(async () => {
  server = await serve({ mounts: { "/models/SmolLM2-135M-Instruct.Q4_1.gguf": await defaultModel(), "/model.gguf": TINY } });
  chromium = await launch();
});

after(async () => {
  await chromium?.close();
  server?.close();
});

test("the README's page runs as it stands", { timeout: 1_200_000 }, async () => {
  const pages = examples("README.md", "html");
  assert.equal(pages.length, 1, "the README has one page to copy");
  const { page, errors } = await openHtml(pages[0].code);
  await page.waitForFunction(() => document.body.innerText.includes("Paris"), undefined, { timeout: 1_200_000 });
  assert.deepEqual(errors, []);
  await page.close();
});

test("every example of docs/api.md runs as it stands and prints what it says", { timeout: 1_200_000 }, async () => {
  const blocks = examples("docs/api.md", "js");
  assert.ok(blocks.length >= 15, `${blocks.length} examples`);
  const { page, errors } = await openHtml('<!doctype html><script type="importmap">{ "imports": { "fireside": "/pkg/index.js" } }</script>');
  const printed = [];
  page.on("console", (message) => {
    if (message.type() === "log") printed.push(message.text());
  });
  const [{ code: imports }, ...rest] = blocks;
  assert.match(imports, /^import \{ .* \} from "fireside";\n$/);
  let expected = [];
  for (const { code, line } of rest) {
    expected = [...code.matchAll(/\/\/ → (.*)$/gm)].map((match) => match[1]);
    printed.length = 0;
    // Names of an example are its own, but for the engine that the first one makes.
    const own = code.replace("const engine = ", "window.engine = ");
    const failure = await page.evaluate(async (source) => {
      const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
      return import(url).then(() => null, (error) => `${error.name}: ${error.message} ${error.code ?? ""}`);
    }, `${imports}\n${own}`);
    const where = `docs/api.md:${line}`;
    assert.equal(failure, null, where);
    assert.deepEqual(printed, expected, where);
  }
  assert.equal(expected.length, 1, "the last example prints");
  assert.deepEqual(errors, []);
  await page.close();
});
