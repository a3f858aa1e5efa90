/** Storage in a real browser: what is kept, resumed, shared between tabs, refused and removed. Real OPFS, real (tiny) models. */
import assert from "node:assert/strict";
import crypto from "node:crypto";
import fs from "node:fs";
import { after, before, test } from "node:test";
import { faultyFiles } from "./faults.mjs";
import { openPage, TINY, tinyEntry, until } from "./support.mjs";
import { bigGguf, hugeGguf, splitGguf, spreadGguf } from "../tools/gguf.mjs";
import { SparseFile } from "../tools/sparse.mjs";
import { tuning } from "../tools/tuning.mjs";

const MB = 1_000_000;
const sha256 = (data) => crypto.createHash("sha256").update(data).digest("hex");
const data = fs.readFileSync(TINY);
const expected = tinyEntry().prompts[0].greedy_ids_f64.slice(0, 8).join();
const files = faultyFiles();
let page;

before(async () => {
  page = await openPage({}, { handle: files.handle });
  await setUp(page.page);
});

after(async () => {
  await page?.close();
});

/** What the tests' page functions share, in a tab. */
function setUp(tab) {
  return tab.evaluate(async (prompt) => {
    const fireside = await import("/pkg/index.js");
    window.fireside = fireside;
    window.load = async (source, options = {}) => {
      const progress = [];
      const warnings = [];
      const hooks = { onProgress: (p) => progress.push((window.told = p)), onWarning: (w) => warnings.push(w) };
      try {
        const engine = await fireside.Engine.load(source, { backend: "cpu", kvCache: { blocks: 8 }, ...hooks, ...options });
        const { choices } = await engine.generate({ prompt, temperature: 0, max_tokens: 8 });
        const running = await fireside.models.running();
        const { info } = engine;
        await engine.dispose();
        return { tokens: choices[0].tokens.join(), progress, warnings, running, infoWarnings: info.warnings };
      } catch (error) {
        return { name: error.name, code: error.code, message: error.message, details: error.details, progress, warnings };
      }
    };
    window.caught = (promise) => promise.then((value) => ({ value }), (error) => ({ name: error.name, code: error.code, message: error.message, details: error.details }));
  }, tinyEntry().prompts[0].ids);
}

const load = (source, options, tab = page.page) => tab.evaluate(([s, o]) => window.load(s, o), [source, options]);
const call = (name, args, tab = page.page) => tab.evaluate(([n, list]) => window.caught(window.fireside.models[n](...list)), [name, args]);
const list = async () => (await call("list", [])).value;

/** Removes a model. Who had it open a moment ago may not have let go of it yet. */
async function remove(id) {
  await until(async () => (await call("remove", [id])).code !== "storage.busy");
  assert.ok(!(await list()).some((model) => model.id === id), `${id} is still there`);
}

test("a second load reads the stored copy without network, and says so", async () => {
  const file = files.put("/kept.gguf", { data });
  const first = await load("/kept.gguf");
  assert.equal(first.tokens, expected);
  assert.ok(first.progress.every((p) => !p.fromCache));
  assert.equal(file.requests.length, 1);
  const second = await load("/kept.gguf#fragment");
  assert.equal(second.tokens, expected);
  assert.equal(file.requests.length, 1);
  assert.ok(second.progress.length > 0 && second.progress.every((p) => p.fromCache), JSON.stringify(second.progress));
  const { value } = await call("list", []);
  const [model] = value.filter(({ id }) => id.endsWith("/kept.gguf"));
  assert.equal(model.complete, true);
  assert.equal(model.bytes, data.length);
  assert.equal(model.sha256, sha256(data));
  assert.equal(model.source, `${page.url}/kept.gguf`);
  assert.ok(model.lastUsedAt >= model.addedAt);
  const byId = await load({ stored: model.id });
  assert.equal(byId.tokens, expected);
  assert.equal(byId.running.length, 1);
  assert.equal(byId.running[0].id, model.id);
  assert.equal(file.requests.length, 1);
  const uncached = await load("/kept.gguf", { cache: "none" });
  assert.equal(uncached.tokens, expected);
  assert.equal(file.requests.length, 2);
});

test("progress never goes back within a phase and ends with ready", async () => {
  const seen = until(() => page.page.evaluate(() => window.told?.file?.endsWith("/paced.gguf") && window.told.loaded > 0));
  files.put("/paced.gguf", { data, fault: () => ({ gate: [100_000, seen] }) });
  const { progress, tokens } = await load("/paced.gguf");
  assert.equal(tokens, expected);
  for (const phase of new Set(progress.map((p) => p.phase))) {
    const loaded = progress.filter((p) => p.phase === phase).map((p) => p.loaded);
    assert.deepEqual(loaded, [...loaded].sort((a, b) => a - b), phase);
  }
  assert.ok(progress.some(({ phase, loaded, total }) => phase === "download" && loaded > 0 && loaded < total), "a download is told as it goes");
  assert.equal(progress.at(-1).phase, "ready");
});

test("a killed tab's download goes on where its journal ends", async () => {
  const big = bigGguf(40 * MB);
  const file = files.put("/killed.gguf", { data: big, fault: (n) => (n === 1 ? { gate: [30 * MB, new Promise(() => undefined)] } : null) });
  const tab = await page.newTab();
  await setUp(tab);
  await tab.evaluate(() => {
    window.arrived = 0;
    void window.caught(window.fireside.models.pull("/killed.gguf", { onProgress: (p) => (window.arrived = p.loaded) }));
  });
  let arrived = 0;
  await until(async () => (arrived = await tab.evaluate(() => window.arrived)) > 25 * MB);
  const session = await page.devtools(tab);
  session.send("Page.crash").catch(() => undefined);
  await new Promise((resolve) => tab.once("crash", resolve));
  let left;
  await until(async () => ([left] = (await list()).filter(({ id }) => id.endsWith("/killed.gguf"))).length > 0);
  assert.equal(left.complete, false);
  const pulled = await call("pull", ["/killed.gguf"]);
  assert.equal(pulled.value?.sha256, sha256(big), JSON.stringify(pulled));
  assert.equal(file.requests.length, 2);
  const start = Number(/^bytes=(\d+)-/.exec(file.requests[1].range)[1]);
  console.log(`killed after ${arrived} bytes, resumed at ${start}: ${Math.max(0, arrived - start)} bytes fetched again`);
  // The journal is written every so many bytes; one more piece may have been on its way.
  assert.ok(start > 0 && start >= arrived - tuning.journalBytes - MB, `${start} after ${arrived}`);
  assert.equal(file.requests[1].ifRange, '"one"', "the server is asked whether it is the same file");
  assert.equal(file.requests[1].sent, big.length - start);
  await remove(pulled.value.id);
});

test("an abort settles with the signal's reason and leaves a part that is resumed", async () => {
  const big = bigGguf(12 * MB, 7);
  const file = files.put("/aborted.gguf", { data: big, fault: (n) => (n === 1 ? { stallAfter: 9 * MB } : null) });
  const got = await page.page.evaluate(async () => {
    const controller = new AbortController();
    const reason = new Error("enough");
    let asked = 0;
    const onProgress = ({ loaded }) => {
      if (asked === 0 && loaded > 8_000_000) {
        asked = performance.now();
        controller.abort(reason);
      }
    };
    const error = await window.fireside.models.pull("/aborted.gguf", { signal: controller.signal, onProgress }).catch((e) => e);
    return { same: error === reason, lag: performance.now() - asked };
  });
  assert.equal(got.same, true);
  const pulled = await call("pull", ["/aborted.gguf"]);
  assert.equal(pulled.value?.sha256, sha256(big), JSON.stringify(pulled));
  const start = Number(/^bytes=(\d+)-/.exec(file.requests[1].range)[1]);
  assert.ok(start >= 8 * MB, `resumed at ${start}: what arrived before an abort is journaled to the byte`);
  await remove(pulled.value.id);
});

test("an abort in any phase settles before anything else happens, and the next load succeeds", async () => {
  files.put("/phases.gguf", { data });
  const integrity = sha256(data);
  for (const phase of ["start", "download", "upload", "verify"]) {
    const got = await page.page.evaluate(async ([wanted, sum]) => {
      const controller = new AbortController();
      const reason = new Error(wanted);
      let settled = null;
      let at;
      const aborted = new Promise((resolve) => (at = resolve));
      const abort = () => {
        controller.abort(reason);
        // A macrotask after the abort the promise must have settled already.
        setTimeout(() => at(settled), 0);
      };
      const onProgress = (p) => p.phase === wanted && !controller.signal.aborted && abort();
      window.fireside.Engine.load("/phases.gguf", { backend: "cpu", integrity: sum, signal: controller.signal, onProgress }).then(
        () => (settled = "loaded"),
        (error) => (settled = error === reason ? "reason" : String(error)),
      );
      if (wanted === "start") setTimeout(abort, 0);
      return aborted;
    }, [phase, integrity]);
    assert.equal(got, "reason", phase);
    assert.equal((await load("/phases.gguf", { integrity })).tokens, expected, `after an abort in ${phase}`);
    if (phase !== "upload") await remove(`${page.url}/phases.gguf`);
  }
});

test("two tabs that want one model download it once, and both are told how far it is", async () => {
  let open;
  const gate = new Promise((resolve) => (open = resolve));
  const file = files.put("/shared.gguf", { data, fault: () => ({ gate: [100_000, gate] }) });
  const tab = await page.newTab();
  await setUp(tab);
  // What an earlier load was told says nothing of this one: it would let the second tab begin first, and be the one that downloads.
  const begin = (t) => t.evaluate(() => {
    window.told = null;
    window.sharing = window.load("/shared.gguf", { onProgress: (p) => (window.told = p) });
  });
  const told = (t) => t.evaluate(() => window.told);
  await begin(page.page);
  await until(async () => (await told(page.page))?.loaded > 0);
  await begin(tab);
  await until(async () => (await told(tab))?.loaded > 0);
  assert.equal((await told(tab)).fromCache, false, "what it is told comes from the tab that downloads");
  open();
  const [one, two] = await Promise.all([page.page, tab].map((t) => t.evaluate(() => window.sharing)));
  assert.equal(one.tokens, expected);
  assert.equal(two.tokens, expected);
  assert.equal(file.requests.length, 1);
  assert.equal((await told(tab)).fromCache, true, "the second tab reads the stored copy");
  await tab.close();
});

test("engines are listed across tabs while they run", async () => {
  const tab = await page.newTab();
  await setUp(tab);
  const open = () => {
    const options = { backend: "cpu", kvCache: { blocks: 8 } };
    return window.fireside.Engine.load("/kept.gguf", options).then((engine) => void (window.engine = engine));
  };
  await tab.evaluate(open);
  await page.page.evaluate(open);
  // Engines that ended a moment ago may still be told of.
  let running;
  await until(async () => ({ value: running } = await call("running", [])) && running.length <= 2);
  assert.equal(running.length, 2);
  assert.ok(running.every(({ id }) => id.endsWith("/kept.gguf")));
  assert.notEqual(running[0].tab, running[1].tab);
  await tab.close();
  await page.page.evaluate(() => window.engine.dispose());
  await until(async () => (await call("running", [])).value.length === 0);
});

test("integrity: the right sum loads, a wrong one keeps nothing, a damaged copy is fetched again", async () => {
  const file = files.put("/summed.gguf", { data });
  const wrong = await load("/summed.gguf", { integrity: "0".repeat(64) });
  assert.equal(wrong.code, "integrity.mismatch");
  assert.equal(wrong.details.got, sha256(data));
  assert.ok(!(await list()).some(({ id }) => id.endsWith("/summed.gguf")), "nothing of it is kept");
  const right = await load("/summed.gguf", { integrity: sha256(data).toUpperCase() });
  assert.equal(right.tokens, expected);
  const requests = file.requests.length;
  const verified = await load("/summed.gguf", { integrity: [sha256(data)] });
  assert.equal(verified.tokens, expected);
  assert.ok(verified.progress.some(({ phase }) => phase === "verify"));
  assert.equal(file.requests.length, requests);
  await damage(page.page, "/summed.gguf");
  const healed = await load("/summed.gguf", { integrity: sha256(data) });
  assert.equal(healed.tokens, expected);
  assert.equal(file.requests.length, requests + 1, "the damaged copy was not used");
  const plain = await load("/summed.gguf", { integrity: "1".repeat(64), cache: "none" });
  assert.equal(plain.code, "integrity.mismatch");
});

/** Changes bytes of the stored model from that place, as a bad disk would. */
function damage(tab, place) {
  return tab.evaluate(async (source) => {
    const root = await navigator.storage.getDirectory();
    const folder = await (await root.getDirectoryHandle("fireside")).getDirectoryHandle("models");
    for await (const handle of folder.values()) {
      const record = await (await handle.getFileHandle("record.json")).getFile();
      if (!(await record.text()).includes(source)) continue;
      const file = await handle.getFileHandle("0.gguf");
      const writer = await file.createWritable({ keepExistingData: true });
      await writer.write({ type: "write", position: 150_000, data: new Uint8Array([1, 2, 3, 4, 5, 6, 7, 8]) });
      await writer.close();
      return;
    }
    throw new Error("there is no such model");
  }, place);
}

test("a file that is no model leaves nothing behind", async () => {
  files.put("/page.gguf", { data, fault: () => ({ html: true }) });
  files.put("/noise.gguf", { data: Buffer.alloc(5000, 7) });
  files.put("/pointer.gguf", { data: Buffer.from("version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 5\n") });
  files.put("/cut.gguf", { data: data.subarray(0, 100_000) });
  const codes = {};
  for (const name of ["page", "noise", "pointer", "cut"]) {
    codes[name] = (await load(`/${name}.gguf`)).code;
    codes[`pull ${name}`] = (await call("pull", [`/${name}.gguf`])).code;
  }
  assert.deepEqual(codes, {
    page: "http.not_a_model",
    "pull page": "http.not_a_model",
    noise: "gguf.bad_magic",
    "pull noise": "gguf.bad_magic",
    pointer: "http.not_a_model",
    "pull pointer": "http.not_a_model",
    cut: "gguf.tensor_out_of_bounds",
    "pull cut": "gguf.tensor_out_of_bounds",
  });
  const left = (await list()).map(({ id }) => id).filter((id) => /page|noise|pointer|cut/.test(id));
  assert.deepEqual(left, []);
});

test("split models: all parts, in any order, by one part's name, stored and not", async () => {
  const parts = splitGguf(TINY, 3, { tensorsFirst: false });
  parts.forEach((part, i) => files.put(`/split-0000${i + 1}-of-00003.gguf`, { data: part }));
  const urls = parts.map((_, i) => `/split-0000${i + 1}-of-00003.gguf`);
  assert.equal((await load(urls[0], { cache: "none" })).tokens, expected);
  const kept = await load(urls[1], { integrity: parts.map(sha256) });
  assert.equal(kept.tokens, expected, JSON.stringify(kept));
  const requests = urls.map((url) => files.get(url).requests.length);
  assert.equal((await load(urls)).tokens, expected);
  assert.deepEqual(urls.map((url) => files.get(url).requests.length), requests, "the stored parts are used");
  const [model] = (await list()).filter(({ id }) => id.includes("/split-"));
  assert.equal(model.bytes, parts.reduce((sum, part) => sum + part.length, 0));
  assert.equal(model.sha256, null);
  assert.deepEqual(model.files.map((file) => file.sha256), parts.map(sha256));
  assert.equal((await load([urls[2], urls[0], urls[1]])).tokens, expected);
  const blobs = await page.page.evaluate(async (names) => {
    const list = await Promise.all(names.map(async (name) => (await fetch(name)).blob()));
    return [await window.load([list[0], list[1], list[2]]), await window.load(list[0]), await window.load([list[0], list[1], list[1]])];
  }, urls);
  assert.equal(blobs[0].tokens, expected);
  assert.equal(blobs[1].code, "gguf.split_missing");
  assert.equal(blobs[2].code, "gguf.split_mismatch");
});

test("models can be pulled under a name, from URLs and Blobs, inspected and removed", async () => {
  files.put("/named.gguf", { data });
  const pulled = await call("pull", ["/named.gguf", { id: "my model" }]);
  assert.equal(pulled.value?.id, "my model", JSON.stringify(pulled));
  assert.equal((await load({ stored: "my model" })).tokens, expected);
  const again = await call("pull", ["/named.gguf"]);
  assert.equal(again.value.id, "my model", "one URL is stored once");
  const { value } = await call("inspect", ["my model"]);
  assert.equal(value.metadata["general.architecture"], "llama");
  assert.deepEqual(value.tensors.find(({ name }) => name === "output_norm.weight"), { name: "output_norm.weight", type: "F32", shape: [64] });
  assert.equal(value.sha256, sha256(data));
  const blob = await page.page.evaluate(async () => {
    const bytes = await (await fetch("/named.gguf")).blob();
    const { models } = window.fireside;
    return [await window.caught(models.pull(new File([bytes], "from a file.gguf"))), await window.caught(models.pull(bytes))];
  });
  assert.equal(blob[0].value.sha256, sha256(data));
  assert.equal(blob[1].code, "load.invalid");
  assert.equal((await load({ stored: "from a file.gguf" })).tokens, expected);
  assert.equal((await call("remove", ["my model"])).code, undefined);
  assert.equal((await call("remove", ["my model"])).code, "storage.not_found");
  assert.equal((await load({ stored: "my model" })).code, "storage.not_found");
  assert.equal((await call("inspect", ["my model"])).code, "storage.not_found");
});

test("a model that is being downloaded is not removed", async () => {
  let open;
  const gate = new Promise((resolve) => (open = resolve));
  files.put("/busy.gguf", { data, fault: () => ({ gate: [100_000, gate] }) });
  const busy = load("/busy.gguf");
  await until(async () => (await list()).some(({ id, complete }) => id.endsWith("/busy.gguf") && !complete));
  assert.equal((await call("remove", [`${page.url}/busy.gguf`])).code, "storage.busy");
  open();
  assert.equal((await busy).tokens, expected);
  assert.equal((await call("remove", [`${page.url}/busy.gguf`])).code, undefined);
});

test("preflight of a model reads its header only", async () => {
  const big = bigGguf(20 * MB, 3);
  const file = files.put("/header.gguf", { data: big });
  files.put("/fits.gguf", { data });
  const got = await page.page.evaluate(async () => ({
    fits: await window.caught(window.fireside.preflight("/fits.gguf")),
    none: await window.caught(window.fireside.preflight("/header.gguf")),
    missing: await window.caught(window.fireside.preflight("/nothing.gguf")),
  }));
  assert.deepEqual(got.fits.value.fits, { webgpu: "unknown", cpu: "yes", weightBytes: got.fits.value.fits.weightBytes, kvBytesPerToken: got.fits.value.fits.kvBytesPerToken });
  assert.ok(got.fits.value.fits.weightBytes > 190_000 && got.fits.value.fits.kvBytesPerToken > 0);
  assert.equal(got.none.code, "model.unsupported_architecture");
  assert.equal(got.missing.code, "http.status");
  assert.ok(file.requests.reduce((sum, { sent }) => sum + sent, 0) <= 1024 * 1024, JSON.stringify(file.requests));
  assert.ok(!(await list()).some(({ id }) => /header|fits/.test(id)), "nothing is stored");
});

test("a model that cannot fit is refused before a byte of its weights is fetched, and it is said what would", async () => {
  const { header, length } = hugeGguf(TINY, 40, 2 ** 20);
  assert.ok(length > 8 * 2 ** 30);
  // Nothing beyond this ever comes: whoever waits for a weight waits in vain.
  const enough = 2 * 2 ** 20;
  const file = files.put("/huge.gguf", { data: new SparseFile(length, [[0, header]]), fault: () => ({ stallAfter: enough }) });
  const fits = await page.page.evaluate(() => window.caught(window.fireside.preflight("/huge.gguf")));
  assert.equal(fits.value?.fits.cpu, "no", JSON.stringify(fits));
  assert.ok(fits.value.fits.weightBytes > 8 * 2 ** 30 && fits.value.fits.reason.length > 0);
  const got = await load("/huge.gguf", { cache: "none" });
  assert.equal(got.code, "memory.wasm", JSON.stringify(got));
  assert.ok(got.details.got > got.details.expected && got.details.expected > 2 ** 31, JSON.stringify(got.details));
  assert.ok(header.length < enough && file.requests.every(({ range }) => !range || Number(/^bytes=(\d+)/.exec(range)[1]) < enough), "the header alone was asked for");
});

test("a cache larger than memory is refused with the context that fits", async () => {
  const got = await load("/kept.gguf", { kvCache: { blocks: 2 ** 31 } });
  assert.equal(got.code, "memory.kv", JSON.stringify(got));
  assert.ok(got.details.expected > 0 && got.details.contextLength > 0, JSON.stringify(got.details));
});

test("tensors beyond 4 GiB of a file are found", async () => {
  const { length, pieces } = spreadGguf(TINY, 5 * 2 ** 30);
  const file = files.put("/spread.gguf", { data: new SparseFile(length, pieces) });
  const got = await load("/spread.gguf", { cache: "none" });
  assert.equal(got.tokens, expected, JSON.stringify(got));
  assert.ok(file.requests.some(({ range }) => Number(/^bytes=(\d+)/.exec(range)[1]) > 2 ** 32));
});

test("nothing went wrong in the page unseen", () => {
  assert.deepEqual(page.errors, []);
});
