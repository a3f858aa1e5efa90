/** Byte sources against a real server: ranges, servers without them, connections that break, files that change. */
import assert from "node:assert/strict";
import http from "node:http";
import { test } from "node:test";
import { importJs } from "./support.mjs";

const DATA = Uint8Array.from({ length: 20_000_000 }, (_, i) => (i * 2654435761) >>> 24);
const { openSource } = await importJs("source");
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

const open = (url, onBytes = () => undefined) => openSource({ url, headers: {} }, never, onBytes);
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
    async ({ url }) => assert.rejects((await open(url)).read(0, 5000), coded("http.truncated")),
  );
});

test("a file that changes while it is read is refused", async () => {
  await withServer(
    (_request, seen) => (seen.requests.length > 1 ? { etag: '"two"' } : { breakAfter: 1_000_000 }),
    async ({ url }) => assert.rejects((await open(url)).read(0, 5_000_000), coded("source.changed")),
  );
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
  const gone = await server(() => ({}));
  gone.close();
  await assert.rejects(open(gone.url), coded("http.network"));
});

test("a cancelled source stops reading", async () => {
  await withServer(
    () => ({}),
    async ({ url }) => {
      const controller = new AbortController();
      const source = await openSource({ url, headers: {} }, controller.signal, () => undefined);
      await source.read(0, 10);
      controller.abort();
      await assert.rejects(source.read(15_000_000, 1000), { name: "AbortError" });
    },
  );
});

test("a Blob is read by slices", async () => {
  const source = await openSource({ blob: new Blob([DATA]) }, never, () => undefined);
  assert.equal(source.len, DATA.length);
  await expectBytes(source, 1_000_000, 4096);
  await assert.rejects(source.read(DATA.length, 1), coded("source.short_read"));
});
