/** The installed package inside workers of the page's own: as far as the platform lets it, and beyond that an error that says what to do. */
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { PROMPT, TOKENS, copyIn, openBrowser, openInstalled, openPage, serveFolder } from "./support.mjs";

let work;
let browser;
let server;
let page;
let opened;

before(async () => {
  work = await openInstalled();
  browser = await openBrowser();
  server = await serveFolder(copyIn(work, "tests/package/fixtures/workers"));
  opened = await openPage(browser.browser, server.url);
  ({ page } = opened);
  await page.waitForFunction(() => window.ready);
});

after(async () => {
  await browser?.close();
  server?.close();
  work?.close();
});

const complete = (kind, options) => {
  const job = { prompt: PROMPT, count: TOKENS.length, options };
  return page.evaluate(([name, given]) => window.ask(name, given), [kind, job]);
};

for (const kind of ["dedicated", "shared", "service"]) {
  test(`a ${kind} worker runs the engine in its own thread`, async () => {
    const got = await complete(kind, { worker: false });
    assert.deepEqual(got.tokens, TOKENS, got.message);
    assert.deepEqual(got.streamed, TOKENS);
  });

  test(`a ${kind} worker's default is a Worker where one can be made, else its own thread`, async () => {
    const got = await complete(kind, {});
    assert.deepEqual(got.tokens, TOKENS, got.message);
    const inWorker = await complete(kind, { worker: true });
    if (got.nested) {
      assert.deepEqual(inWorker.tokens, TOKENS, inWorker.message);
    } else {
      assert.equal(inWorker.code, "load.unsupported");
      assert.match(inWorker.message, /worker: false/);
      assert.equal(inWorker.ours, true);
    }
    // What the platform has today; a change would make the documentation wrong.
    assert.equal(got.nested, kind === "dedicated");
  });

  test(`a ${kind} worker cannot ask for persistent storage: a warning`, async () => {
    const got = await complete(kind, { worker: false, persist: true });
    assert.deepEqual(got.tokens, TOKENS, got.message);
    assert.deepEqual(got.warnings, ["storage.not_persisted"]);
  });

  test(`preflight answers in a ${kind} worker`, async () => {
    const got = await page.evaluate((name) => window.ask(name, { preflight: true }), kind);
    assert.equal(got.cpu?.simd, true, got.message);
  });
}

test("nothing went wrong in the page unseen", () => {
  assert.deepEqual(opened.errors, []);
});
