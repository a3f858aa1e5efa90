/** Byte sources against a real server: ranges, servers without them, connections that break, files that change. */
import assert from "node:assert/strict";
import crypto from "node:crypto";
import { once } from "node:events";
import http from "node:http";
import net from "node:net";
import { test } from "node:test";
import { faultyFiles } from "../browser/faults.mjs";
import { SparseFile } from "../tools/sparse.mjs";
import { importJs, importJsTogether } from "./support.mjs";

const DATA = Uint8Array.from({ length: 20_000_000 }, (_, i) => (i * 2654435761) >>> 24);
DATA.set(Buffer.from("GGUF"));
const { openUrl } = await importJs("source/http");
const { BlobSource } = await importJs("source/blob");
const never = new AbortController().signal;
const coded = (code) => (error) => error.code === code;

/** A server that answers as `behave` says; counts requests and bytes. */
async function server(behave) {
  const seen = { requests: [], bytes: 0 };
  const listener = http.createServer((request, response) => {
    seen.requests.push(request.headers.range ?? "whole");
    const match = /^bytes=(\d+)-(\d*)$/.exec(request.headers.range ?? "");
    const plan = { data: DATA, etag: '"one"', ranges: true, breakAfter: Infinity, ...behave(request, seen) };
    if (plan.status) return response.writeHead(plan.status).end("no");
    response.setHeader("etag", plan.etag);
    const start = plan.ranges && match ? Number(match[1]) : 0;
    const end = plan.ranges && match?.[2] ? Number(match[2]) + 1 : plan.data.length;
    if (plan.ranges && match) response.setHeader("content-range", `bytes ${start}-${end - 1}/${plan.data.length}`);
    response.setHeader("content-length", end - start);
    response.writeHead(plan.ranges && match ? 206 : 200);
    const body = plan.data.subarray(start, Math.min(end, start + plan.breakAfter));
    seen.bytes += body.length;
    response.write(body, () => (end - start > plan.breakAfter ? response.destroy() : response.end()));
  });
  await new Promise((resolve) => listener.listen(0, "127.0.0.1", resolve));
  const close = () => {
    listener.closeAllConnections();
    listener.close();
  };
  return { url: `http://127.0.0.1:${listener.address().port}/model.gguf`, seen, close };
}

async function withServer(behave, use) {
  const running = await server(behave);
  try {
    await use(running);
  } finally {
    running.close();
  }
}

const open = (url, onBytes = () => undefined, more = {}) => openUrl({ url, headers: {} }, { signal: never, onBytes, ...more });
async function expectBytes(source, offset, length) {
  assert.deepEqual(Buffer.from(await source.read(offset, length)), Buffer.from(DATA.subarray(offset, offset + length)), `${offset}+${length}`);
}

test("a forward pass is one request and fetches nothing twice", async () => {
  await withServer(
    () => ({}),
    async ({ url, seen }) => {
      const progress = [];
      const source = await open(url, (loaded) => progress.push(loaded));
      assert.equal(source.len, DATA.length);
      await expectBytes(source, 0, 100);
      await expectBytes(source, 0, 70_000);
      await expectBytes(source, 50, 3_000_000);
      for (let at = 3_000_064; at < DATA.length; at += 700_064) await expectBytes(source, at, Math.min(700_000, DATA.length - at));
      assert.deepEqual(seen.requests, ["bytes=0-"]);
      assert.equal(progress.at(-1), DATA.length);
      assert.deepEqual(progress, [...progress].sort((a, b) => a - b));
    },
  );
});

test("jumps open a new response, reads behind the window are asked for by themselves", async () => {
  await withServer(
    () => ({}),
    async ({ url, seen }) => {
      const source = await open(url);
      await expectBytes(source, 15_000_000, 1000);
      await expectBytes(source, 10, 20);
      await expectBytes(source, 15_001_000, 1000);
      await expectBytes(source, DATA.length, 0);
      assert.deepEqual(seen.requests, ["bytes=0-", "bytes=15000000-", "bytes=10-29"]);
      await assert.rejects(source.read(DATA.length - 1, 2), coded("source.short_read"));
    },
  );
});

test("reads at the same time are all served", async () => {
  await withServer(
    () => ({}),
    async ({ url }) => {
      const source = await open(url);
      await Promise.all([0, 9_000_000, 5, 19_000_000].map((at) => expectBytes(source, at, 5000)));
    },
  );
});

test("a server without ranges is read once", async () => {
  await withServer(
    () => ({ ranges: false }),
    async ({ url, seen }) => {
      const source = await open(url);
      assert.equal(source.len, DATA.length);
      await expectBytes(source, 12_000_000, 1000);
      await expectBytes(source, 0, 1000);
      assert.equal(seen.requests.length, 1);
    },
  );
});

test("a connection that breaks is picked up where it broke", async () => {
  await withServer(
    () => ({ breakAfter: 6_000_000 }),
    async ({ url, seen }) => {
      const source = await open(url);
      for (let at = 0; at < DATA.length; at += 1_000_000) await expectBytes(source, at, 1_000_000);
      assert.ok(seen.requests.length >= 4 && seen.requests.length <= 8, seen.requests.join());
    },
  );
});

test("a connection that only breaks ends with http.truncated", async () => {
  await withServer(
    (_request, seen) => (seen.requests.length > 1 ? { status: 503 } : { breakAfter: 1000 }),
    async ({ url }) => assert.rejects((await open(url)).read(0, 5000), coded("http.status")),
  );
  await withServer(
    () => ({ breakAfter: 0 }),
    async ({ url }) => assert.rejects(open(url), (error) => error.code === "http.network" && error.details.url === url && error.details.bytes === 0),
  );
});

test("a file that changes while it is read is refused", async () => {
  await withServer(
    (_request, seen) => (seen.requests.length > 1 ? { etag: '"two"' } : { breakAfter: 1_000_000 }),
    async ({ url }) => assert.rejects((await open(url)).read(0, 5_000_000), coded("source.changed")),
  );
});

test("a file is hashed on its way, what the reader passed over too", async () => {
  const { Sha256 } = await importJs("source/sha256");
  const expected = crypto.createHash("sha256").update(DATA).digest("hex");
  await withServer(
    () => ({ breakAfter: 9_000_000 }),
    async ({ url }) => {
      const source = await open(url, undefined, { hash: new Sha256() });
      await expectBytes(source, 0, 1_000_000);
      await expectBytes(source, 12_000_000, 1_000_000);
      assert.equal(await source.digest(), expected);
    },
  );
  await withServer(
    () => ({ ranges: false }),
    async ({ url }) => assert.equal(await (await open(url)).digest(), expected),
  );
});

test("a header is asked for piece by piece, and no more than is read", async () => {
  await withServer(
    () => ({}),
    async ({ url, seen }) => {
      const source = await open(url, undefined, { headerOnly: true });
      assert.equal(source.len, DATA.length);
      await expectBytes(source, 0, 1_048_576);
      assert.deepEqual(seen.requests, ["bytes=0-1048575"]);
      await expectBytes(source, 1_048_576, 1_500_000);
      assert.deepEqual(seen.requests.slice(1), ["bytes=1048576-2097151", "bytes=2097152-3145727"]);
    },
  );
});

test("bytes beyond 4 GiB are read where they are", async () => {
  const at = 5 * 2 ** 30 + 12_345;
  const far = DATA.subarray(0, 100_000);
  const files = faultyFiles();
  files.put("/far.gguf", { data: new SparseFile(at + far.length + 1000, [[0, Buffer.from("GGUF")], [at, far]]) });
  const listener = http.createServer((request, response) => files.handle(request, response));
  await new Promise((resolve) => listener.listen(0, "127.0.0.1", resolve));
  const source = await open(`http://127.0.0.1:${listener.address().port}/far.gguf`);
  assert.equal(source.len, at + far.length + 1000);
  assert.deepEqual(Buffer.from(await source.read(at, far.length)), Buffer.from(far));
  assert.deepEqual(Buffer.from(await source.read(at - 10, 20)), Buffer.concat([Buffer.alloc(10), Buffer.from(far.subarray(0, 10))]));
  listener.closeAllConnections();
  listener.close();
});

test("web pages and Git LFS pointers are told apart from models", async () => {
  for (const text of ["<!DOCTYPE html><p>", "  <html>", "version https://git-lfs.github.com/spec/v1\n"]) {
    await withServer(
      () => ({ data: Buffer.from(text) }),
      async ({ url }) => assert.rejects(open(url), coded("http.not_a_model")),
    );
  }
});

test("a file of another format is refused by its first bytes, whatever the server can do", async () => {
  const files = faultyFiles();
  const listener = http.createServer((request, response) => files.handle(request, response));
  await new Promise((resolve) => listener.listen(0, "127.0.0.1", resolve));
  const at = (path) => `http://127.0.0.1:${listener.address().port}${path}`;
  const zip = Buffer.concat([Buffer.from("PK\x03\x04"), Buffer.alloc(1_000_000, 7)]);
  const held = { gate: [65_536, new Promise(() => undefined)] };
  for (const how of [{}, { whole: true }, { whole: true, unsized: true }]) {
    for (const more of [{}, { peek: true }, { headerOnly: true }]) {
      const file = files.put("/zip", { data: zip, fault: () => ({ ...how, ...held }) });
      await assert.rejects(open(at("/zip"), undefined, more), ({ code, details }) => {
        assert.deepEqual([code, details.expected, details.got, details.url], ["gguf.bad_magic", "GGUF", "PK\\x03\\x04", at("/zip")]);
        return true;
      });
      assert.equal(file.requests.length, 1);
    }
  }
  listener.closeAllConnections();
  listener.close();
});

test("one of several files on a server without ranges is looked at first and read when it is wanted", async () => {
  await withServer(
    () => ({ ranges: false }),
    async ({ url, seen }) => {
      const source = await open(url, undefined, { peek: true });
      assert.equal(source.len, DATA.length);
      assert.equal(seen.requests.length, 1);
      await expectBytes(source, 12_000_000, 1000);
      await expectBytes(source, 0, 1000);
      assert.equal(seen.requests.length, 2);
    },
  );
  await withServer(
    (_request, seen) => ({ ranges: false, ...(seen.requests.length > 1 ? { data: DATA.subarray(0, 1000) } : {}) }),
    async ({ url }) => assert.rejects((await open(url, undefined, { peek: true })).read(0, 10), coded("source.changed")),
  );
});

test("a stalled connection is a code of its own", async () => {
  const [quick, { tuning }] = await importJsTogether(["source/http", "source/tuning"]);
  assert.ok(tuning.stallMs >= 5000, "people's networks pause");
  const listener = http.createServer((request, response) => {
    const start = Number(/^bytes=(\d+)-/.exec(request.headers.range)[1]);
    response.writeHead(206, { "content-range": `bytes ${start}-9/10`, "content-length": 10 - start }).write(start === 0 ? "GGUF" : "");
    response.flushHeaders();
  });
  await new Promise((resolve) => listener.listen(0, "127.0.0.1", resolve));
  const url = `http://127.0.0.1:${listener.address().port}/`;
  const source = await quick.openUrl({ url, headers: {} }, { signal: never, onBytes: () => undefined });
  // Not before the first bytes are there: they may be late, and must not be taken for a stall.
  Object.assign(tuning, { stallMs: 40, retryDelayMs: 1 });
  await assert.rejects(source.read(0, 10), (error) => error.code === "http.stalled" && error.details.bytes === 4 && error.details.url === url);
  listener.closeAllConnections();
  listener.close();
});

test("HTTP errors, unreachable servers and empty files are told apart", async () => {
  await withServer(
    () => ({ status: 404 }),
    async ({ url }) => assert.rejects(open(url), coded("http.status")),
  );
  await withServer(
    () => ({ status: 416 }),
    async ({ url }) => assert.equal((await open(url)).len, 0),
  );
  // A port that is taken, so that no other test's server gets it, and at which nobody listens.
  await withServer(
    () => ({}),
    async ({ url }) => {
      const taken = net.connect(Number(new URL(url).port), "127.0.0.1");
      await once(taken, "connect");
      await assert.rejects(open(`http://127.0.0.1:${taken.localPort}/model.gguf`), coded("http.network"));
      taken.destroy();
    },
  );
});

test("a cancelled source stops reading", async () => {
  await withServer(
    () => ({}),
    async ({ url }) => {
      const controller = new AbortController();
      const source = await open(url, undefined, { signal: controller.signal });
      await source.read(0, 10);
      controller.abort();
      await assert.rejects(source.read(15_000_000, 1000), { name: "AbortError" });
    },
  );
});

test("a Blob's slices are read at most one ahead", async () => {
  const slices = [];
  const blob = { size: 5 * 8 * 2 ** 20, slice: (from, to) => (slices.push(from / 2 ** 23), { arrayBuffer: async () => new ArrayBuffer(Math.min(to, 5 * 2 ** 23) - from) }) };
  const source = new BlobSource(blob);
  await source.read(0, 1000);
  await source.read(1000, 50_000);
  assert.deepEqual(slices, [0]);
  await source.read(2 ** 23, 10);
  assert.deepEqual(slices, [0, 1, 2]);
  await source.read(2 * 2 ** 23, 10);
  assert.deepEqual(slices, [0, 1, 2, 3]);
  await source.read(10, 10);
  assert.deepEqual(slices, [0, 1, 2, 3, 0], "what is behind is not held for ever");
});

test("a Blob is read by slices", async () => {
  const source = new BlobSource(new Blob([DATA]));
  assert.equal(source.len, DATA.length);
  await expectBytes(source, 1_000_000, 4096);
  await assert.rejects(source.read(DATA.length, 1), coded("source.short_read"));
});
