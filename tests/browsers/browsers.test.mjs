/** The CPU path of the installed package in Chromium, Firefox and WebKit, under the strict policy; docs/browsers.md says what is seen here. */
import assert from "node:assert/strict";
import fs from "node:fs";
import path from "node:path";
import { after, before, describe, test } from "node:test";
import { column, rows } from "../../scripts/lib/browser-table.mjs";
import { ROOT } from "../../scripts/lib/paths.mjs";
import { TOKENS, openInstalled } from "../package/support.mjs";
import { BROWSERS, runChecks } from "./run.mjs";

let work;
before(async () => {
  work = await openInstalled();
});
after(() => work?.close());

for (const [name, open] of Object.entries(BROWSERS)) {
  describe(name, { skip: open ? false : `${name} is not installed` }, () => {
    let ran;
    before(async () => {
      ran = await runChecks(work, open);
      console.error(`${ran.name} ${ran.version}`);
    });

    test("loads the tiny model and streams the reference's tokens, in a Worker, in the page, and inside workers", () => {
      for (const place of ["worker", "page", "response", "module", "blob", "dedicated", "shared", "service"]) {
        assert.deepEqual(ran.results[place].tokens, TOKENS, `${place}: ${JSON.stringify(ran.results[place])}`);
        assert.deepEqual(ran.results[place].streamed, TOKENS, place);
      }
    });

    test("aborts come back with the signal's own reason, and the engine goes on", () => {
      assert.deepEqual(ran.results.aborts, { decode: true, tokensAfter: 0, next: TOKENS.slice(0, 2), already: true, load: true });
    });

    test("a Worker inside a worker runs, or is refused with what to do", () => {
      for (const place of ["nested", "sharedNested"]) {
        const got = ran.results[place];
        if (got.nested) {
          assert.deepEqual(got.tokens, TOKENS, `${place}: ${JSON.stringify(got)}`);
        } else {
          assert.equal(got.code, "load.unsupported", place);
          assert.match(got.message, /worker: false/);
        }
      }
    });

    test("wasm that is none is load.wasm", () => {
      assert.equal(ran.results.notWasm.code, "load.wasm", JSON.stringify(ran.results.notWasm));
      assert.equal(ran.results.notWasm.ours, true);
    });

    test("the policy was in force", () => {
      assert.equal(ran.results.policy, "EvalError");
    });

    test("a Worker script on another origin is refused by name", () => {
      assert.equal(ran.results.crossOrigin.code, "worker.cross_origin", JSON.stringify(ran.results.crossOrigin));
      assert.match(ran.results.crossOrigin.message, /`worker` option/);
    });

    test("preflight tells of SIMD", () => {
      assert.equal(ran.results.preflight.cpu?.simd, true, JSON.stringify(ran.results.preflight));
    });

    test("docs/browsers.md says the same", () => {
      const written = column(fs.readFileSync(path.join(ROOT, "docs/browsers.md"), "utf8"), name);
      assert.deepEqual(written, rows(TOKENS).map(([, word]) => word(ran.results)), "run `npm run browsers`");
    });
  });
}
