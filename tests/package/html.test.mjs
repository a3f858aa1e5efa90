/** The installed package in pages without a bundler: the HTML example, a strict policy, nothing from outside, two engines, the `wasm` option, stored for long. */
import assert from "node:assert/strict";
import fs from "node:fs";
import path from "node:path";
import { after, before, test } from "node:test";
import { POLICY, PROMPT, TOKENS, assertCompletes, copyIn, installed, openBrowser, openInstalled, openPage, outside, referenceText, serveFolder, until, useForm } from "./support.mjs";

const COUNT = TOKENS.length;
let work;
let browser;
let server;
let page;
let opened;

before(async () => {
  work = await openInstalled();
  browser = await openBrowser();
  server = await serveFolder(copyIn(work, "tests/package/fixtures/plain"), { mounts: { "/fireside.wasm": wasmFile(), "/unnamed": wasmFile() } });
  opened = await openPage(browser.browser, server.url);
  ({ page } = opened);
});

after(async () => {
  await browser?.close();
  server?.close();
  work?.close();
});

const wasmFile = () => path.join(installed(work), "pkg/wasm/fireside_bg.wasm");

test("the HTML example completes a prompt, and stops when asked", async () => {
  const own = await serveFolder(copyIn(work, "examples/html"));
  const { page: example, errors, close } = await openPage(browser.browser, own.url);
  try {
    await assertCompletes(work, browser.browser, example);
    await example.evaluate(() => {
      // Whatever comes first is answered by a press of the button.
      const stop = () => document.querySelector("[name=stop]").click();
      new MutationObserver(stop).observe(document.querySelector("#text"), { childList: true });
    });
    await example.click("[name=go]");
    await example.waitForFunction(() => document.querySelector("#status").textContent === "stopped");
    assert.deepEqual(errors, []);
  } finally {
    await close();
    own.close();
  }
});

test("the HTML example streams a chat", async () => {
  const own = await serveFolder(copyIn(work, "examples/html"));
  const { page: example, errors, close } = await openPage(browser.browser, own.url);
  try {
    await example.check("[name=chat]");
    const got = await useForm(example);
    const expected = await page.evaluate(async ([content, count]) => {
      const engine = await window.load();
      const body = { messages: [{ role: "user", content }], max_tokens: count, temperature: 0 };
      const { choices, usage } = await engine.chat.completions.create(body);
      await engine.dispose();
      return { text: choices[0].message.content, tokens: usage.completion_tokens };
    }, [PROMPT, COUNT]);
    assert.equal(got.text, expected.text);
    assert.notEqual(got.text, await referenceText(work, browser.browser), "the template makes another prompt");
    assert.match(got.status, new RegExp(`^${expected.tokens} tokens, `));
    assert.ok(got.pieces > 2, `the text came in ${got.pieces} pieces`);
    assert.deepEqual(errors, []);
  } finally {
    await close();
    own.close();
  }
});

test("two engines in one page answer at once, each in a Worker of its own", async () => {
  const got = await page.evaluate(async ([prompt, count]) => {
    const engines = await Promise.all([window.load(), window.load()]);
    const runs = await Promise.all(engines.map((engine) => window.run(engine, prompt, count)));
    await engines[0].dispose();
    const after = await window.run(engines[1], prompt, 4);
    await engines[1].dispose();
    return [...runs.map(({ tokens }) => tokens), after.tokens];
  }, [PROMPT, COUNT]);
  assert.deepEqual(got, [TOKENS, TOKENS, TOKENS.slice(0, 4)]);
});

test("nothing is fetched but what the page names", async () => {
  const all = [...opened.asked];
  assert.ok(all.some((url) => url.endsWith("fireside_bg.wasm")), "the list sees what Workers fetch");
  assert.deepEqual(outside(all), []);
  // The list would have seen an attempt, from the page and from a Worker.
  const attempt = "fetch('https://example.com/').catch(() => 0).then(() => globalThis.postMessage?.(1))";
  await page.evaluate(async () => void (await fetch("https://example.com/page").catch(() => 0)));
  await page.evaluate((code) => new Promise((resolve) => (new Worker(URL.createObjectURL(new Blob([code]))).onmessage = resolve)), attempt);
  await until(() => outside(opened.asked).length >= 2);
  assert.deepEqual(outside(opened.asked), ["https://example.com/page", "https://example.com/"]);
});

test("a strict content security policy is enough, in the page and in the Worker", { timeout: 1_200_000 }, async () => {
  const policy = `${POLICY}; report-uri /violation`;
  const reports = [];
  const handle = (request, response) => {
    if (request.url !== "/violation") return false;
    let text = "";
    request.setEncoding("utf8").on("data", (piece) => (text += piece));
    request.on("end", () => (reports.push(JSON.parse(text)["csp-report"]), response.writeHead(204).end()));
    return true;
  };
  const own = await serveFolder(copyIn(work, "tests/package/fixtures/csp"), { headers: { "content-security-policy": policy }, handle });
  const { page: strict, errors, close } = await openPage(browser.browser, own.url);
  try {
    await strict.waitForFunction(() => window.ready);
    // The icon that browsers ask for on their own, whenever they find the time, is not allowed either.
    const violations = () => reports.map((report) => report["blocked-uri"]).filter((uri) => !uri.endsWith("/favicon.ico"));
    for (const worker of [true, false]) {
      const got = await strict.evaluate(([prompt, count, options]) => window.complete(prompt, count, options), [PROMPT, COUNT, { worker }]);
      assert.deepEqual(got.tokens, TOKENS);
    }
    assert.deepEqual(violations(), []);
    assert.ok(own.log.some(([, url]) => url.endsWith("/worker.js")));
    assert.deepEqual(errors, []);
    // The policy is in force, here and in a Worker: what it forbids is reported.
    const forbidden = await strict.evaluate(() => window.forbidden());
    assert.deepEqual(forbidden, { page: "EvalError", worker: "EvalError", blob: "blocked" });
    // And the server hears of it, as it would have before: of each of the three, and of nothing else.
    await until(() => violations().length >= 3);
    assert.deepEqual(violations().sort(), ["blob", "eval", "eval"]);
  } finally {
    await close();
    own.close();
  }
});

test("a policy that lacks what is needed gives errors that say so", async () => {
  const lacking = async (policy, options) => {
    const own = await serveFolder(copyIn(work, "tests/package/fixtures/csp"), { headers: { "content-security-policy": policy } });
    const { page: strict, close } = await openPage(browser.browser, own.url);
    try {
      await strict.waitForFunction(() => window.ready);
      return await strict.evaluate((given) => window.caught(window.load(given)), options);
    } finally {
      await close();
      own.close();
    }
  };
  const noWorker = await lacking(POLICY.replace("worker-src 'self'", "worker-src 'none'"), {});
  assert.equal(noWorker.code, "worker.failed", noWorker.message);
  assert.match(noWorker.message, /policy/);
  for (const worker of [true, false]) {
    const noWasm = await lacking(POLICY.replace(" 'wasm-unsafe-eval'", ""), { worker });
    assert.equal(noWasm.code, "load.wasm", noWasm.message);
    assert.match(noWasm.message, /wasm-unsafe-eval/);
  }
});

test("the engine may be called from its own callbacks", async () => {
  const got = await page.evaluate(async (prompt) => {
    const out = [];
    for (const worker of [true, false]) {
      const engine = await window.load({ worker });
      const inner = [];
      const request = { prompt, temperature: 0, max_tokens: 4 };
      const result = await engine.generate(request, {
        onToken: ({ text }) => inner.push(Promise.all([engine.stats(), engine.tokenize(text), engine.generate({ ...request, max_tokens: 2 })])),
      });
      const nested = (await Promise.all(inner)).map(([, , { choices }]) => [...choices[0].tokens]);
      // Dispose from within a callback ends the request that called it.
      const ended = await window.caught(engine.generate({ ...request, max_tokens: 400, logit_bias: { 297: -100, 298: -100, 299: -100 } }, { onToken: () => void engine.dispose() }));
      out.push({ tokens: [...result.choices[0].tokens], nested, ended: ended.code });
    }
    return out;
  }, PROMPT);
  for (const { tokens, nested, ended } of got) {
    assert.deepEqual(tokens, TOKENS.slice(0, 4));
    assert.deepEqual(nested, Array(4).fill(TOKENS.slice(0, 2)));
    assert.equal(ended, "engine.disposed");
  }
});

test("the wasm is taken from a URL, a Response and a Module, in a Worker and in the page", async () => {
  const asked = opened.asked.length;
  const got = await page.evaluate(async ([prompt, count]) => {
    const given = {
      path: () => "fireside.wasm",
      url: () => new URL("fireside.wasm", location.href),
      unnamed: () => "/unnamed",
      response: () => fetch("fireside.wasm"),
      unnamedResponse: () => fetch("/unnamed"),
      module: async () => WebAssembly.compileStreaming(fetch("fireside.wasm")),
    };
    const tokens = {};
    for (const [name, wasm] of Object.entries(given)) tokens[name] = (await window.complete(prompt, count, { wasm: await wasm() })).tokens;
    return tokens;
  }, [PROMPT, COUNT]);
  for (const [name, tokens] of Object.entries(got)) assert.deepEqual(tokens, TOKENS, name);
  const since = opened.asked.slice(asked);
  assert.ok(since.some((url) => url.endsWith("/fireside.wasm")));
  assert.deepEqual(since.filter((url) => url.endsWith("fireside_bg.wasm")), [], "the package's own is not fetched besides");
});

test("wasm that is none, or not ours, is load.wasm", async () => {
  const got = await page.evaluate(async () => {
    const empty = new WebAssembly.Module(Uint8Array.of(0, 0x61, 0x73, 0x6d, 1, 0, 0, 0));
    const used = await fetch("fireside.wasm");
    await used.arrayBuffer();
    const bad = {
      missing: "none.wasm",
      html: "index.html",
      unreachable: "http://127.0.0.1:1/a.wasm",
      foreign: empty,
      missingResponse: await fetch("none.wasm"),
      htmlResponse: await fetch("index.html"),
      mislabelled: new Response("<!doctype html>", { headers: { "content-type": "application/wasm" } }),
      used,
    };
    const out = {};
    for (const worker of [true, false]) {
      for (const [name, wasm] of Object.entries(bad)) {
        out[`${name} ${worker}`] = await window.caught(window.load({ wasm: wasm instanceof Response && !wasm.bodyUsed ? wasm.clone() : wasm, worker }));
      }
    }
    // None of them spoils this thread for a good one.
    out.after = await window.complete("a", 1, { worker: false });
    out.url = await window.caught(window.load({ wasm: "http://[" }));
    out.type = await window.caught(window.load({ wasm: 5 }));
    return out;
  });
  const { after: fine, url, type, ...bad } = got;
  assert.equal(fine.tokens.length, 1);
  assert.equal(url.code, "load.invalid");
  assert.equal(type.code, "load.invalid");
  for (const [name, error] of Object.entries(bad)) {
    assert.equal(error.code, "load.wasm", `${name}: ${error.code} ${error.message}`);
    assert.equal(error.ours, true, name);
  }
  assert.equal(bad["missing true"].details.status, 404);
  assert.match(bad["html true"].message, /index\.html.*text\/html/);
  assert.deepEqual(bad["foreign true"].details.missing, ["memory", "wasmengine_load"]);
});

test("an abort while the given Response arrives settles at once, with the signal's reason", async () => {
  const same = await page.evaluate(async () => {
    const controller = new AbortController();
    const reason = new Error("enough");
    const never = new Response(new ReadableStream(), { headers: { "content-type": "application/wasm" } });
    const loading = window.load({ wasm: never, signal: controller.signal }).catch((error) => error);
    setTimeout(() => controller.abort(reason));
    return (await loading) === reason;
  });
  assert.equal(same, true);
});

test("persistent storage is asked for from the page: granted in silence, refused with a warning", async () => {
  const codes = () => page.evaluate(async () => {
    let heard;
    const warned = new Promise((resolve) => (heard = resolve));
    const engine = await window.load({ persist: true, onWarning: heard });
    // The answer may come after the engine: a granted one says nothing, so `persisted` is what is waited for.
    const persisted = await Promise.race([warned.then(() => false), navigator.storage.persist()]);
    const found = persisted ? [] : [(await warned).code];
    await engine.dispose();
    return { persisted, found };
  });
  assert.deepEqual(await codes(), { persisted: false, found: ["storage.not_persisted"] });
  const client = await browser.browser.newBrowserCDPSession();
  const { targetInfo } = await (await opened.context.newCDPSession(page)).send("Target.getTargetInfo");
  await client.send("Browser.grantPermissions", { permissions: ["durableStorage"], origin: server.url, browserContextId: targetInfo.browserContextId });
  assert.deepEqual(await codes(), { persisted: true, found: [] });
});

test("a package on another origin is an error at once that names the worker option; the ways out work", async () => {
  const other = await serveFolder(copyIn(work, "tests/package/fixtures/plain"), {
    headers: { "access-control-allow-origin": "*", "cross-origin-resource-policy": "cross-origin" },
  });
  const folder = copyIn(work, "tests/package/fixtures/plain");
  const there = `${other.url}/node_modules/fireside/pkg`;
  fs.writeFileSync(path.join(folder, "own-worker.js"), `/** The page's own Worker script. */\nimport "${there}/worker.js";\n`);
  const html = path.join(folder, "index.html");
  fs.writeFileSync(html, fs.readFileSync(html, "utf8").replace("./node_modules/fireside/pkg", there));
  const here = await serveFolder(folder);
  const { page: split, close } = await openPage(browser.browser, here.url);
  try {
    await split.waitForFunction(() => window.ready);
    const got = await split.evaluate(async ([prompt, count]) => {
      const refused = await window.caught(window.load());
      const own = new Worker("own-worker.js", { type: "module" });
      const given = await window.complete(prompt, count, { worker: own });
      own.terminate();
      const thread = await window.complete(prompt, count, { worker: false });
      return { refused, given: given.tokens, thread: thread.tokens };
    }, [PROMPT, COUNT]);
    assert.equal(got.refused.code, "worker.cross_origin");
    assert.match(got.refused.message, /`worker` option/);
    assert.equal(got.refused.ours, true);
    assert.deepEqual(got.given, TOKENS);
    assert.deepEqual(got.thread, TOKENS);
  } finally {
    await close();
    here.close();
    other.close();
  }
});

test("nothing went wrong in the page unseen", () => {
  // The files that are not there were asked for on purpose.
  assert.deepEqual(opened.errors.filter((text) => !text.startsWith("Failed to load resource")), []);
});
