/** Downloads into a file system in memory, from a real server: resumed, read while they come, given up, committed, shared. */
import assert from "node:assert/strict";
import crypto from "node:crypto";
import http from "node:http";
import { after, before, test } from "node:test";
import { faultyFiles } from "../browser/faults.mjs";
import { fakeStorage } from "../tools/opfs.mjs";
import { bigGguf } from "../tools/gguf.mjs";
import { importJsTogether } from "./support.mjs";

const [{ openModel, pullModel }, { Library }, { Download }, { Permits }, { tuning }, { FiresideError }] = await importJsTogether([
  "storage/open", "storage/library", "storage/download", "storage/permits", "source/tuning", "errors",
]);
Object.assign(tuning, { retryDelayMs: 1, maxDelayMs: 5, stallMs: 60_000, journalBytes: 256 * 1024 });

const MB = 1024 * 1024;
const DATA = bigGguf(3 * MB);
const OTHER = bigGguf(3 * MB, 9);
const sha256 = (data) => crypto.createHash("sha256").update(data).digest("hex");
const files = faultyFiles();
let listener;
let base;

before(async () => {
  listener = http.createServer((request, response) => files.handle(request, response) || response.writeHead(404).end());
  await new Promise((resolve) => listener.listen(0, "127.0.0.1", resolve));
  base = `http://127.0.0.1:${listener.address().port}`;
});
after(() => {
  listener.closeAllConnections();
  listener.close();
});

/** Serves a file under a new name; returns its entry with its URL. */
let count = 0;
function serve(entry) {
  const path = `/file-${count++}.gguf`;
  return Object.assign(files.put(path, { data: DATA, ...entry }), { url: base + path });
}

function want(urls, more = {}) {
  return { source: { files: [urls].flat().map((url) => ({ url })), headers: {} }, cache: "opfs", integrity: null, id: null, ...more };
}

function hooks(signal = new AbortController().signal) {
  const told = { progress: [], warnings: [] };
  return { signal, told, onProgress: (p) => told.progress.push(p), onWarning: (w) => told.warnings.push(w) };
}

async function readAllOf(source, piece = 300_000) {
  const parts = [];
  for (let at = 0; at < source.len; at += piece) parts.push(await source.read(at, Math.min(piece, source.len - at)));
  return Buffer.concat(parts);
}

test("bytes are there for the reader as they come, and the model exists when all are there", async () => {
  fakeStorage();
  const file = serve({});
  const h = hooks();
  const opened = await openModel(want(file.url), h);
  assert.equal(opened.fromCache, false);
  assert.equal(sha256(await readAllOf(opened.bytes)), sha256(DATA));
  const library = await Library.open();
  assert.equal(await library.find([file.url]), null, "no record before the commit");
  const model = await opened.finish();
  assert.equal(model.sha256, sha256(DATA));
  assert.deepEqual(h.told.warnings, []);
  assert.deepEqual(await library.list(), [model]);
  const loaded = h.told.progress.map((p) => p.loaded);
  assert.deepEqual(loaded, [...loaded].sort((a, b) => a - b));
  const again = hooks();
  const stored = await openModel(want(file.url), again);
  assert.equal(stored.fromCache, true);
  assert.equal(sha256(await readAllOf(stored.bytes)), sha256(DATA));
  await stored.finish();
  assert.equal(file.requests.length, 1);
  assert.ok(again.told.progress.every((p) => p.fromCache));
});

test("what a killed tab had is taken up, its hash too", async () => {
  const disk = fakeStorage();
  const file = serve({ fault: (n) => (n === 1 ? { stallAfter: 2 * MB } : null) });
  const controller = new AbortController();
  const opened = await openModel(want(file.url), hooks(controller.signal));
  await opened.bytes.read(2 * MB - 1000, 900);
  disk.kill();
  controller.abort();
  const next = await openModel(want(file.url), hooks());
  const start = Number(/^bytes=(\d+)-/.exec(file.requests[1].range)[1]);
  assert.ok(start >= 2 * MB - tuning.journalBytes - 64 * 1024 && start <= 2 * MB, `resumed at ${start}`);
  assert.equal(file.requests[1].ifRange, null, "outside a page there is no own origin");
  const model = await next.finish();
  assert.equal(model.sha256, sha256(DATA));
  assert.equal(sha256(disk.file(`fireside/models/${disk.key()[0]}/0.gguf`)), sha256(DATA));
  assert.equal(file.requests[1].sent, DATA.length - start);
});

test("a tab that dies between the last byte and the record leaves a model that needs no network", async () => {
  const disk = fakeStorage();
  const file = serve({});
  const opened = await openModel(want(file.url), hooks());
  await readAllOf(opened.bytes);
  // The last entry of the journal is written when every byte is there.
  const library = await Library.open();
  while ((await library.list())[0]?.bytes !== DATA.length) await new Promise((resolve) => setTimeout(resolve, 5));
  disk.kill();
  assert.equal(await library.find([file.url]), null, "there is no record");
  const path = `fireside/models/${disk.key()[0]}/0.gguf`;
  disk.file(path, Buffer.concat([disk.file(path), Buffer.alloc(10)]));
  const next = await openModel(want(file.url), hooks());
  assert.equal(sha256(await readAllOf(next.bytes)), sha256(DATA));
  assert.equal((await next.finish()).sha256, sha256(DATA));
  assert.equal(file.requests.length, 1);
});

test("a journal that promises more than the file holds is not believed", async () => {
  const disk = fakeStorage();
  const file = serve({ fault: (n) => (n === 1 ? { stallAfter: 2 * MB } : null) });
  const controller = new AbortController();
  const opened = await openModel(want(file.url), hooks(controller.signal));
  await opened.bytes.read(MB, 10);
  disk.kill();
  controller.abort();
  disk.file(`fireside/models/${disk.key()[0]}/0.gguf`, Buffer.alloc(1000));
  const next = await openModel(want(file.url), hooks());
  assert.equal((await next.finish()).sha256, sha256(DATA));
  assert.equal(file.requests[1].range, "bytes=0-");
});

test("a part is taken up only when it can be told that the file is the same", async () => {
  for (const [change, first] of [[{ data: OTHER, etag: '"two"' }, "bytes=0-"], [{ plain: true }, "bytes=0-"], [{}, "bytes=1"]]) {
    fakeStorage();
    let version = {};
    const file = serve({ fault: (n) => ({ ...version, ...(n === 1 ? { stallAfter: 1.5 * MB } : {}) }) });
    if (change.plain) version = change;
    const controller = new AbortController();
    const opened = await openModel(want(file.url), hooks(controller.signal));
    await opened.bytes.read(MB, 10);
    controller.abort();
    await opened.abandon(controller.signal.reason);
    version = change;
    const model = await (await openModel(want(file.url), hooks())).finish();
    assert.equal(model.sha256, sha256(change.data ?? DATA));
    const { range } = file.requests.at(-1);
    assert.ok(range.startsWith(first), `${JSON.stringify(Object.keys(change))}: ${range}`);
  }
});

test("a server that shows no version is asked for some bytes again: the same ones go on, others are another file", async () => {
  for (const cache of ["opfs", "none"]) {
    for (const [version, right] of [[{}, true], [{ data: OTHER }, false]]) {
      fakeStorage();
      const file = serve({ fault: (n) => ({ plain: true, ...(n === 1 ? { pace: [64 * 1024, 1], cutAfter: 1.5 * MB } : version) }) });
      const opened = await openModel(want(file.url, { cache }), hooks());
      const read = readAllOf(opened.bytes);
      if (right) assert.equal(sha256(await read), sha256(DATA));
      else await assert.rejects(read, { code: "source.changed" }, cache);
      const [, start] = /^bytes=(\d+)-/.exec(file.requests[1].range);
      assert.ok(Number(start) > 0 && Number(start) < 1.5 * MB, `${cache}: ${start}`);
      await opened.abandon(new FiresideError("memory.gpu", ""));
    }
  }
});

test("a reader far ahead is served by a request of its own, and those bytes are not fetched again", async () => {
  const disk = fakeStorage();
  const data = bigGguf(24 * MB);
  let open;
  const gate = new Promise((resolve) => (open = resolve));
  const file = serve({ data, fault: (n) => (n === 1 ? { gate: [MB, gate] } : null) });
  const opened = await openModel(want(file.url), hooks());
  const far = 14 * MB;
  assert.deepEqual(Buffer.from(await opened.bytes.read(far, 9 * MB)), data.subarray(far, far + 9 * MB));
  assert.equal(file.requests[1].range, `bytes=${far}-${far + 9 * MB - 1}`);
  open();
  assert.equal((await opened.finish()).sha256, sha256(data), "hashed in order though it came out of order");
  assert.equal(file.requests.length, 3, "the stream stops where the bytes are there, and goes on behind them");
  assert.equal(file.requests[2].range, `bytes=${far + 9 * MB}-`);
  assert.equal(sha256(disk.file(`fireside/models/${disk.key()[0]}/0.gguf`)), sha256(data));
});

/** Counts bodies that are open at the same time, as the package sees them; `restore` ends it. */
function countingFetch() {
  const { fetch } = globalThis;
  const count = { now: 0, most: 0, restore: () => (globalThis.fetch = fetch) };
  globalThis.fetch = async (...args) => {
    count.most = Math.max(count.most, ++count.now);
    const response = await fetch(...args);
    const reader = response.body.getReader();
    let open = true;
    const end = () => {
      if (open) count.now--;
      open = false;
    };
    const read = async () => {
      const piece = await reader.read();
      if (piece.done) end();
      return piece;
    };
    const cancel = (reason) => (end(), reader.cancel(reason));
    return { status: response.status, headers: response.headers, url: response.url, body: { getReader: () => ({ read, cancel }), cancel } };
  };
  return count;
}

test("the files of a model download a few at a time, every header at once", async () => {
  fakeStorage();
  const parts = Array.from({ length: 8 }, () => serve({ fault: () => ({ pace: [128 * 1024, 2] }) }));
  const count = countingFetch();
  try {
    const opened = await openModel(want(parts.map(({ url }) => url)), hooks());
    for (let i = 0; i < 8; i++) assert.deepEqual(Buffer.from(await opened.bytes.read(i * DATA.length, 4)), Buffer.from("GGUF"));
    const model = await opened.finish();
    assert.deepEqual(model.files.map((file) => file.sha256), Array(8).fill(sha256(DATA)));
  } finally {
    count.restore();
  }
  // Besides the streams: first contact with a file whose turn has not come.
  assert.ok(count.most > 1 && count.most <= tuning.connections + 1, `${count.most} connections at once`);
  assert.equal(count.now, 0, "none is left open");
});

test("storage that fills up in the middle: the reader goes on, nothing is kept, and it is said how much was missing", async () => {
  const disk = fakeStorage();
  const file = serve({});
  const h = hooks();
  const opened = await openModel(want(file.url, { integrity: [sha256(DATA)] }), h);
  disk.system.quota = 1.2 * MB;
  assert.equal(sha256(await readAllOf(opened.bytes)), sha256(DATA));
  assert.equal(await opened.finish(), null, "the sum is right, and nothing is kept");
  assert.deepEqual(h.told.warnings.map(({ code }) => code), ["storage.quota"]);
  assert.ok(h.told.warnings[0].details.missing > MB && h.told.warnings[0].details.missing < DATA.length, JSON.stringify(h.told.warnings));
  assert.deepEqual(disk.key(), []);
  assert.equal(disk.system.handles.size, 0);
});

test("a quota that is known beforehand is said before a byte is written; a pull is refused", async () => {
  const disk = fakeStorage({ quota: MB });
  const file = serve({});
  const h = hooks();
  const opened = await openModel(want(file.url), h);
  assert.equal(sha256(await readAllOf(opened.bytes)), sha256(DATA));
  await opened.finish();
  const { needed, available, missing } = h.told.warnings[0].details;
  assert.deepEqual([needed, missing], [DATA.length, DATA.length - available]);
  await assert.rejects(pullModel(want(file.url), hooks(), async () => undefined), { code: "storage.quota" });
  assert.deepEqual(disk.key(), []);
});

test("a file that is not the right one is not kept, and a commit that fails is a warning", async () => {
  const disk = fakeStorage();
  const file = serve({});
  const wrong = await openModel(want(file.url, { integrity: ["0".repeat(64)] }), hooks());
  await assert.rejects(wrong.finish(), (error) => error instanceof FiresideError && error.code === "integrity.mismatch");
  assert.deepEqual(disk.key(), []);
  const h = hooks();
  const opened = await openModel(want(file.url), h);
  await readAllOf(opened.bytes);
  await new Promise((resolve) => setTimeout(resolve, 50));
  disk.system.quota = 0;
  assert.equal(await opened.finish(), null);
  assert.deepEqual(h.told.warnings.map(({ code }) => code), ["storage.quota"]);
  assert.deepEqual(disk.key(), []);
});

test("what the reader finds to be no model is dropped, what it was interrupted in is kept; neither waits for the rest", async () => {
  for (const [code, kept] of [["gguf.bad_magic", 0], ["model.missing_tensor", 0], ["memory.gpu", 1]]) {
    const disk = fakeStorage();
    // The rest of the file never comes: whoever waited for it would wait for ever.
    const opened = await openModel(want(serve({ fault: () => ({ stallAfter: MB }) }).url), hooks());
    await opened.bytes.read(0, 100);
    await opened.abandon(new FiresideError(code, ""));
    assert.equal(disk.key().length, kept, code);
    assert.equal(disk.system.handles.size, 0);
  }
});

test("a plain source's connection is closed when the reader is done with it", async () => {
  fakeStorage();
  for (const end of [(opened) => opened.finish(), (opened) => opened.abandon(new Error("enough"))]) {
    let closed;
    const closing = new Promise((resolve) => (closed = resolve));
    const file = serve({ fault: (_n, request) => (request.on("close", closed), { stallAfter: MB }) });
    const opened = await openModel(want(file.url, { cache: "none" }), hooks());
    await opened.bytes.read(0, 100);
    await end(opened);
    await closing;
  }
});

test("two that want one model at once: one downloads, the other waits, is told, and reads the stored copy", async () => {
  fakeStorage();
  let open;
  const gate = new Promise((resolve) => (open = resolve));
  const file = serve({ fault: () => ({ gate: [MB, gate] }) });
  const [one, two] = [hooks(), hooks()];
  const first = await openModel(want(file.url), one);
  const second = openModel(want(file.url), two);
  while (!two.told.progress.some((p) => !p.fromCache)) await new Promise((resolve) => setTimeout(resolve, 5));
  open();
  await readAllOf(first.bytes);
  await first.finish();
  const opened = await second;
  assert.equal(opened.fromCache, true);
  await opened.finish();
  assert.equal(file.requests.length, 1);
});

test("who waited for another's download and finds the wrong file fetches the right one", async () => {
  fakeStorage();
  const file = serve({ fault: (n) => (n === 1 ? { data: OTHER } : null) });
  const first = await openModel(want(file.url), hooks());
  const second = openModel(want(file.url, { integrity: [sha256(DATA)] }), hooks());
  await first.finish();
  const opened = await second;
  assert.equal((await opened.finish()).sha256, sha256(DATA));
  assert.equal(file.requests.length, 2);
});

test("the library lists what is unfinished, renames, and refuses to remove what is in use", async () => {
  const disk = fakeStorage();
  const file = serve({ fault: (n) => (n === 1 ? { stallAfter: 2 * MB } : null) });
  const library = await Library.open();
  const controller = new AbortController();
  const opened = await openModel(want(file.url), hooks(controller.signal));
  await opened.bytes.read(MB, 10);
  await assert.rejects(library.remove(file.url), { code: "storage.busy" });
  controller.abort();
  await opened.abandon(controller.signal.reason);
  const [left] = await library.list();
  assert.equal(left.complete, false);
  assert.ok(left.bytes >= MB && left.bytes < DATA.length);
  const named = await pullModel(want(file.url, { id: "a name" }), hooks(), async () => undefined);
  assert.equal(named.id, "a name");
  const other = serve({});
  await pullModel(want(other.url, { id: "a name" }), hooks(), async () => undefined);
  assert.deepEqual((await library.list()).map(({ id, source }) => [id, source]), [["a name", other.url]], "one id names one model");
  await library.remove("a name");
  assert.deepEqual(disk.key(), []);
  await assert.rejects(library.remove("a name"), { code: "storage.not_found" });
});

test("what somebody holds open without a lock of ours is busy too", async () => {
  for (const name of ["NoModificationAllowedError", "InvalidModificationError"]) {
    const disk = fakeStorage();
    const file = serve({});
    await pullModel(want(file.url), hooks(), async () => undefined);
    disk.system.root.children.get("fireside").children.get("models").removeEntry = async () => {
      throw new DOMException("An access handle is open.", name);
    };
    await assert.rejects((await Library.open()).remove(file.url), { code: "storage.busy" });
  }
});

test("a body that goes on past the size that its server announced is http.wrong_length", async (t) => {
  fakeStorage();
  const size = DATA.length - 1000;
  const liar = http.createServer((_, response) => {
    const headers = { etag: '"one"', "content-range": `bytes 0-${size - 1}/${size}`, "transfer-encoding": "chunked" };
    response.writeHead(206, headers).end(DATA);
  });
  await new Promise((resolve) => liar.listen(0, "127.0.0.1", resolve));
  t.after(() => (liar.closeAllConnections(), liar.close()));
  const url = `http://127.0.0.1:${liar.address().port}/x.gguf`;
  await assert.rejects(pullModel(want(url), hooks(), async () => undefined), (error) => error.code === "http.wrong_length");
});

test("a record whose files are gone or cut is no model, and is fetched again", async () => {
  const disk = fakeStorage();
  const file = serve({});
  await pullModel(want(file.url), hooks(), async () => undefined);
  const path = `fireside/models/${disk.key()[0]}/0.gguf`;
  disk.file(path, disk.file(path).subarray(0, 1000));
  const opened = await openModel(want(file.url), hooks());
  assert.equal(opened.fromCache, false);
  assert.equal((await opened.finish()).sha256, sha256(DATA));
});

test("a stop in the middle of first contact leaves no handle open", async () => {
  const disk = fakeStorage();
  const file = serve({ fault: () => ({ status: 404 }) });
  await assert.rejects(openModel(want(file.url), hooks()), { code: "http.status" });
  assert.equal(disk.system.handles.size, 0);
  assert.deepEqual(disk.key(), [], "no empty folder stays");
  const library = await Library.open();
  const part = await library.openPart("k", 0);
  const options = { id: "i", files: 1, signal: AbortSignal.abort(new Error("no")), onBytes: () => undefined, permits: new Permits(1), room: async () => undefined, certain: false };
  await assert.rejects(Download.start({ url: file.url, headers: {} }, part, options), /no/);
  assert.equal(disk.system.handles.size, 0);
});
