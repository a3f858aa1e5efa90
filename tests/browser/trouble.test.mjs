/** Trouble with network and storage in a real browser: each kind has its code, says what is known, and the engine runs where it can. */
import assert from "node:assert/strict";
import fs from "node:fs";
import { after, before, test } from "node:test";
import { serve } from "../../scripts/lib/server.mjs";
import { defaultModel } from "../../scripts/lib/model.mjs";
import { faultRuns } from "./fault-runs.mjs";
import { faultyFiles, IMPATIENT, PATIENT_MS, STALL_MS } from "./faults.mjs";
import { openPage, TINY, tinyEntry, until } from "./support.mjs";
import { bigGguf } from "../tools/gguf.mjs";

/** `npm run soak` does more. */
const RUNS = 30;
const MB = 1_000_000;
const data = fs.readFileSync(TINY);
const expected = tinyEntry().prompts[0].greedy_ids_f64.slice(0, 8).join();
const files = faultyFiles();
let page;
let elsewhere;

before(async () => {
  elsewhere = await serve({ handle: files.handle });
  page = await openPage({}, {
    handle(request, response) {
      if (request.url !== "/impatient.js") return files.handle(request, response);
      response.writeHead(200, { "content-type": "text/javascript", "cross-origin-embedder-policy": "require-corp" }).end(IMPATIENT);
      return true;
    },
  });
  await setUp(page.page);
});

after(async () => {
  await page?.close();
  elsewhere?.close();
});

function setUp(tab) {
  return tab.evaluate(async (prompt) => {
    window.fireside = await import("/pkg/index.js");
    window.worker = new Worker("/impatient.js", { type: "module" });
    window.load = async (source, options = {}) => {
      const warnings = [];
      const hooks = { onWarning: (w) => warnings.push(w), onProgress: (p) => (window.told = p) };
      try {
        const engine = await window.fireside.Engine.load(source, { backend: "cpu", worker: window.worker, kvCache: { blocks: 8 }, ...hooks, ...options });
        const { choices } = await engine.generate({ prompt, temperature: 0, max_tokens: 8 });
        const inInfo = engine.info.warnings.map(({ code }) => code);
        await engine.dispose();
        return { tokens: choices[0].tokens.join(), warnings, inInfo };
      } catch (error) {
        return { name: error.name, code: error.code, message: error.message, details: error.details, warnings };
      }
    };
  }, tinyEntry().prompts[0].ids);
}

const load = (source, options, tab = page.page) => tab.evaluate(([s, o]) => window.load(s, o), [source, options]);
const stored = (tab = page.page) => tab.evaluate(() => window.fireside.models.list());

/** A connection that breaks once some of the file is known to have arrived: a cut discards what is on its way. */
function cutAfterArrival(name) {
  const arrived = until(() => page.page.evaluate((file) => window.told?.file?.endsWith(file) && window.told.loaded > 0, name));
  return { gate: [100_000, arrived], cutAfter: 150_000 };
}

test("statuses that will not pass are told at once, others after some tries, with URL, status and bytes so far", async () => {
  for (const status of [403, 404, 410]) {
    const file = files.put(`/status-${status}.gguf`, { data, fault: () => ({ status }) });
    const got = await load(`/status-${status}.gguf`);
    assert.equal(got.code, "http.status");
    assert.equal(got.details.status, status);
    assert.equal(got.details.url, `${page.url}/status-${status}.gguf`);
    assert.equal(got.details.bytes, 0);
    assert.equal(file.requests.length, 1);
  }
  const broken = files.put("/broken.gguf", { data, fault: (n) => (n === 1 ? cutAfterArrival("broken.gguf") : { status: 500 }) });
  const got = await load("/broken.gguf");
  assert.equal(got.code, "http.status");
  assert.equal(got.details.status, 500);
  assert.ok(got.details.bytes > 0 && got.details.bytes <= 150_000, JSON.stringify(got.details));
  assert.ok(got.details.attempts > 3 && broken.requests.length >= got.details.attempts, JSON.stringify(got.details));
  assert.deepEqual((await stored()).filter(({ id }) => /status-/.test(id)), [], "nothing is left of what never came");
});

test("a wrong file is refused while the rest of it is held, with and without ranges, kept or not, and as one part of several", async () => {
  const zip = Buffer.concat([Buffer.from("PK\x03\x04"), Buffer.alloc(4 * MB, 7)]);
  const html = Buffer.concat([Buffer.from("<!doctype html><title>Sign in</title>"), Buffer.alloc(4 * MB, 32)]);
  const sound = bigGguf(4 * MB);
  const held = new Promise(() => undefined);
  const codes = {};
  for (const [name, how] of [["ranges", {}], ["no ranges", { whole: true }], ["no length", { whole: true, unsized: true }]]) {
    for (const cache of ["none", "opfs"]) {
      const at = (kind) => `/${kind}-${cache}-${name.replace(" ", "-")}.gguf`;
      const put = (kind, bytes) => files.put(at(kind), { data: bytes, fault: () => ({ ...how, gate: [65_536, held] }) });
      put("zip", zip);
      put("html", html);
      const code = async (source) => (await load(source, { cache, worker: true })).code;
      codes[`${name}, ${cache}`] = [await code(at("zip")), await code(at("html"))];
      // Into storage without a length: nothing is known of a part until it is all there, so that the next is not asked for.
      if (how.unsized && cache === "opfs") continue;
      put("sound", sound);
      codes[`${name}, ${cache}`].push(await code([at("sound"), at("zip")]));
    }
  }
  const wrong = ["gguf.bad_magic", "http.not_a_model"];
  assert.deepEqual(codes, {
    "ranges, none": [...wrong, "gguf.bad_magic"],
    "ranges, opfs": [...wrong, "gguf.bad_magic"],
    "no ranges, none": [...wrong, "gguf.bad_magic"],
    "no ranges, opfs": [...wrong, "gguf.bad_magic"],
    "no length, none": [...wrong, "gguf.bad_magic"],
    "no length, opfs": wrong,
  });
  assert.ok(!(await stored()).some(({ id }) => /zip|html|sound/.test(id)), "nothing of it is kept");
});

test("a stalled connection is picked up; one that stalls for ever ends with a code", async () => {
  files.put("/stalls.gguf", { data, fault: (n) => (n < 3 ? { stallAfter: 60_000 } : null) });
  const patience = (stallMs) => page.page.evaluate((ms) => window.worker.postMessage({ stallMs: ms }), stallMs);
  await patience(STALL_MS);
  assert.equal((await load("/stalls.gguf")).tokens, expected);
  files.put("/stalled.gguf", { data, fault: () => ({ stallAfter: 0 }) });
  const got = await load("/stalled.gguf");
  await patience(PATIENT_MS);
  assert.equal(got.code, "http.stalled");
  assert.equal(got.details.bytes, 0);
  assert.equal(got.details.url, `${page.url}/stalled.gguf`);
});

test("another origin: allowed with and without exposed headers, refused as what may be CORS, resumed", async () => {
  const at = (name) => `${elsewhere.url}/${name}`;
  files.put("/cors.gguf", { data, cors: true, expose: "ETag, Content-Range" });
  assert.equal((await load(at("cors.gguf"))).tokens, expected);
  files.put("/hidden.gguf", { data, cors: true });
  assert.equal((await load(at("hidden.gguf"))).tokens, expected);
  files.put("/hidden-whole.gguf", { data, cors: true, fault: () => ({ whole: true }) });
  assert.equal((await load(at("hidden-whole.gguf"))).tokens, expected);
  files.put("/hidden-gzip.gguf", { data, cors: true, fault: () => ({ gzip: true }) });
  assert.equal((await load(at("hidden-gzip.gguf"))).tokens, expected);
  files.put("/no-cors.gguf", { data });
  const refused = await load(at("no-cors.gguf"));
  assert.equal(refused.code, "http.network");
  assert.equal(refused.details.possiblyCors, true);
  files.put("/cut.gguf", { data, fault: () => ({ cutAfter: 0 }) });
  const cut = await load("/cut.gguf");
  assert.equal(cut.code, "http.network");
  assert.equal(cut.details.possiblyCors, false);
  // The server may see more of them: a browser asks again by itself on a connection that it had kept open.
  assert.equal(cut.details.attempts, 3);
  const resumed = files.put("/cors-cut.gguf", { data, cors: true, expose: "ETag", fault: (n) => (n === 1 ? cutAfterArrival("cors-cut.gguf") : null) });
  assert.equal((await load(at("cors-cut.gguf"))).tokens, expected);
  assert.ok(resumed.requests.every(({ ifRange }) => ifRange === null), "If-Range would have to be asked for first");
  assert.ok(resumed.requests.slice(1).some(({ range }) => Number(/^bytes=(\d+)/.exec(range)[1]) > 0));
});

test("headers are sent with every request; redirects are followed", async () => {
  const file = files.put("/guarded.gguf", {
    data,
    fault: (n, request) => (request.headers.authorization === "Bearer x" ? { cutAfter: n === 2 ? 90_000 : undefined } : { status: 401 }),
  });
  assert.equal((await load("/guarded.gguf")).details.status, 401);
  assert.equal((await load("/guarded.gguf", { headers: { authorization: "Bearer x" } })).tokens, expected);
  assert.ok(file.requests.length > 2, "the request that went on where the first one was cut");
  assert.ok(file.requests.slice(1).every(({ headers }) => headers.authorization === "Bearer x"));
  files.put("/moved.gguf", { data, fault: () => ({ redirect: "/there.gguf" }) });
  files.put("/there.gguf", { data });
  assert.equal((await load("/moved.gguf")).tokens, expected);
  files.put("/round.gguf", { data, fault: () => ({ redirect: "/round.gguf" }) });
  assert.equal((await load("/round.gguf")).code, "http.network");
});

test("a file that changes between visits starts over", async () => {
  const one = bigGguf(4 * MB, 1);
  const two = bigGguf(4 * MB, 2);
  const file = files.put("/versions.gguf", { data: one, fault: (n) => (n === 1 ? { stallAfter: 3 * MB } : null) });
  const pull = (options) => page.page.evaluate((o) => window.fireside.models.pull("/versions.gguf", o).catch((e) => e.name), options);
  const aborted = page.page.evaluate(() => {
    const controller = new AbortController();
    const onProgress = ({ loaded }) => loaded > 2_000_000 && controller.abort();
    return window.fireside.models.pull("/versions.gguf", { signal: controller.signal, onProgress }).catch((e) => e.name);
  });
  assert.equal(await aborted, "AbortError");
  Object.assign(file, { data: two, etag: '"two"' });
  const model = await pull({});
  assert.equal(model.bytes, two.length, JSON.stringify(model));
  const { createHash } = await import("node:crypto");
  assert.equal(model.sha256, createHash("sha256").update(two).digest("hex"));
  await page.page.evaluate((id) => window.fireside.models.remove(id), model.id);
});

test("where storage has no room the model runs from memory, with a warning that says how much was missing", async () => {
  files.put("/full.gguf", { data });
  const session = await page.devtools();
  await session.send("Storage.overrideQuotaForOrigin", { origin: page.url, quotaSize: 1000 });
  try {
    const got = await load("/full.gguf");
    assert.equal(got.tokens, expected, JSON.stringify(got));
    assert.deepEqual(got.warnings.map(({ code }) => code), ["storage.quota"]);
    assert.deepEqual(got.inInfo, ["storage.quota"]);
    const { needed, available, missing } = got.warnings[0].details;
    assert.equal(needed, data.length);
    assert.equal(missing, needed - (available ?? 0));
    assert.ok(missing > 0);
    assert.ok(!(await stored()).some(({ id }) => id.endsWith("/full.gguf")));
    const pulled = await page.page.evaluate(() => window.fireside.models.pull("/full.gguf").catch((e) => ({ code: e.code, details: e.details })));
    assert.equal(pulled.code, "storage.quota");
    assert.equal(pulled.details.missing, missing);
  } finally {
    await session.send("Storage.overrideQuotaForOrigin", { origin: page.url });
  }
  assert.deepEqual((await load("/full.gguf")).warnings, []);
  assert.ok((await stored()).some(({ id }) => id.endsWith("/full.gguf")));
});

test("storage that fills up in the middle of a download loses nothing but the copy", { timeout: 1_200_000 }, async () => {
  const real = fs.readFileSync(await defaultModel());
  let open;
  const gate = new Promise((resolve) => (open = resolve));
  files.put("/filling.gguf", { data: real, fault: (n) => (n === 1 ? { gate: [30 * MB, gate] } : null) });
  const session = await page.devtools();
  const loading = load("/filling.gguf");
  await until(() => page.page.evaluate(() => window.told?.file?.endsWith("/filling.gguf") && window.told.loaded > 25_000_000));
  await session.send("Storage.overrideQuotaForOrigin", { origin: page.url, quotaSize: 1000 });
  open();
  const got = await loading;
  await session.send("Storage.overrideQuotaForOrigin", { origin: page.url });
  assert.equal(got.code, undefined, JSON.stringify(got));
  assert.deepEqual(got.warnings.map(({ code }) => code), ["storage.quota"]);
  assert.ok(got.warnings[0].details.missing > 0 && got.warnings[0].details.missing < real.length, JSON.stringify(got.warnings));
  assert.ok(!(await stored()).some(({ id }) => id.endsWith("/filling.gguf")), "nothing half-kept");
  const whole = await load("/filling.gguf", { cache: "none" });
  assert.equal(got.tokens, whole.tokens, "the text is the same");
});

test("without storage, and in the page's own thread, models run with a warning; stored ones are read there", async () => {
  files.put("/denied.gguf", { data });
  const tab = await page.newTab();
  await setUp(tab);
  const denied = await tab.evaluate(() => {
    // As in a private window of some browsers.
    navigator.storage.getDirectory = () => Promise.reject(new DOMException("denied", "SecurityError"));
    return window.load("/denied.gguf", { worker: false });
  });
  assert.equal(denied.tokens, expected);
  assert.deepEqual(denied.warnings.map(({ code }) => code), ["storage.unavailable"]);
  assert.equal(await tab.evaluate(() => window.fireside.models.list().catch((e) => e.code)), "storage.unavailable");
  await tab.close();
  const here = await load("/denied.gguf", { worker: false });
  assert.equal(here.tokens, expected);
  assert.deepEqual(here.warnings.map(({ code }) => code), ["storage.unavailable"]);
  const kept = await load("/denied.gguf");
  assert.deepEqual(kept.warnings, []);
  const requests = files.get("/denied.gguf").requests.length;
  const again = await load("/denied.gguf", { worker: false });
  assert.equal(again.tokens, expected);
  assert.deepEqual(again.warnings, []);
  assert.equal(files.get("/denied.gguf").requests.length, requests);
});

test(`${RUNS} seeded faults: a right model or a typed error, and the next load succeeds`, { timeout: 1_200_000 }, async () => {
  const runs = await faultRuns(Array.from({ length: RUNS }, (_, i) => i + 1));
  const wrong = runs.filter(({ faults }) => faults.length > 0);
  assert.deepEqual(wrong, []);
  const loaded = runs.filter(({ outcome }) => outcome === "model").length;
  assert.ok(loaded > 0 && loaded < RUNS, `${loaded} of ${RUNS} loaded: the faults must be felt, and survived`);
});

test("nothing went wrong in the page unseen", () => {
  assert.deepEqual(page.errors, []);
});
