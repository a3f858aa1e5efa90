/** What the scripts do without a browser: the command line, downloads that break, the static server, the figures. */
import assert from "node:assert/strict";
import fs from "node:fs";
import http from "node:http";
import os from "node:os";
import path from "node:path";
import { after, test } from "node:test";
import { figures } from "../../www/figures.js";

const folder = fs.mkdtempSync(path.join(os.tmpdir(), "fireside-scripts-"));
after(() => fs.rmSync(folder, { recursive: true, force: true }));
process.env.FIRESIDE_CACHE = folder;
// Where the cache is they read once, when they are imported.
const { parseGenerate } = await import("../../scripts/lib/generate-args.mjs");
const { serve } = await import("../../scripts/lib/server.mjs");
const { downloadModel } = await import("../../scripts/lib/download.mjs");

const coded = (code) => (error) => error.code === code;
const request = (...argv) => parseGenerate(argv).requests[0];

test("flags become the fields of a request", () => {
  const given = request("--temperature", "0", "--top_k", "5", "--presence-penalty", "-0.5", "--stop", "a", "--stop", "b", "--logit-bias", '{"5":1}', "hi");
  assert.deepEqual(given, { max_tokens: 128, temperature: 0, top_k: 5, presence_penalty: -0.5, stop: ["a", "b"], logit_bias: { 5: 1 }, prompt: "hi" });
  assert.deepEqual(request("--system", "be brief", "hi").messages, [{ role: "system", content: "be brief" }, { role: "user", content: "hi" }]);
  assert.deepEqual(request("--chat", "hi").messages, [{ role: "user", content: "hi" }]);
  assert.equal(request("--", "--temperature").prompt, "--temperature");
  assert.equal(parseGenerate(["--help"]).help, true);
});

test("a request file's lines keep their own fields over the flags'", () => {
  const file = path.join(folder, "requests.jsonl");
  fs.writeFileSync(file, '{"prompt":"a","temperature":1}\n\n[1]\n{"messages":[{"role":"user","content":"x"}]}\n');
  const { requests, batch } = parseGenerate(["--requests", file, "--temperature", "0", "--system", "s"]);
  assert.equal(batch, true);
  assert.deepEqual(requests[0], { temperature: 1, messages: [{ role: "system", content: "s" }, { role: "user", content: "a" }] });
  assert.equal(requests[1].code, "requests.invalid");
  assert.deepEqual(requests[2].messages.map((m) => m.role), ["system", "user"]);
  assert.equal(requests[2].temperature, 0);
});

test("a bad command line is arguments.invalid", () => {
  for (const argv of [[], ["a", "b"], ["--nope", "a"], ["--seed", "x", "a"], ["--logit-bias", "{", "a"], ["--backend", "x", "a"], ["--temperature"]]) {
    assert.throws(() => parseGenerate(argv), coded("arguments.invalid"), argv.join(" "));
  }
  assert.throws(() => parseGenerate(["--requests", path.join(folder, "none")]), coded("requests.unreadable"));
});

test("a download goes on where it broke, is used again, and is fetched anew when the file changed", async () => {
  let data = Buffer.alloc(300_000, "a");
  let etag = '"1"';
  const ranges = [];
  // What a broken connection had on its way is lost: it breaks when what it gave has arrived.
  const arrived = async (bytes) => {
    const size = () => {
      const part = fs.readdirSync(folder, { recursive: true }).find((name) => name.endsWith("m.gguf.part"));
      return part ? fs.statSync(path.join(folder, part)).size : 0;
    };
    while (size() < bytes) await new Promise((resolve) => setTimeout(resolve, 5));
  };
  const server = http.createServer((asked, response) => {
    if (asked.url.includes("none")) return response.writeHead(404).end();
    response.setHeader("etag", etag);
    if (asked.method === "HEAD") return response.end();
    ranges.push(asked.headers.range ?? "whole");
    const start = asked.headers["if-range"] === etag ? Number(/bytes=(\d+)/.exec(asked.headers.range)[1]) : 0;
    response.writeHead(start ? 206 : 200, { "content-length": data.length - start });
    response.write(data.subarray(start, start + 120_000));
    if (data.length - start > 120_000) void arrived(start + 120_000).then(() => response.destroy());
    else response.end();
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const url = `http://127.0.0.1:${server.address().port}/m.gguf`;
  const file = await downloadModel(url);
  assert.deepEqual(fs.readFileSync(file), data);
  assert.deepEqual(ranges, ["whole", "bytes=120000-", "bytes=240000-"]);
  assert.ok(file.startsWith(folder), "in the cache that was named");
  const before = ranges.length;
  assert.equal(await downloadModel(url), file);
  assert.equal(ranges.length, before);
  data = Buffer.alloc(1000, "b");
  etag = '"2"';
  assert.deepEqual(fs.readFileSync(await downloadModel(url)), data);
  await assert.rejects(downloadModel(`${url}/none`), coded("http.status"));
  server.closeAllConnections();
  server.close();
  assert.equal(await downloadModel(url), file, "offline, the copy is used");
});

test("the static server answers ranges, conditions and nothing outside its folders", async () => {
  const file = path.join(folder, "data.bin");
  fs.writeFileSync(file, "0123456789");
  const server = await serve({ mounts: { "/data.bin": file, "/files/": folder } });
  const get = (where, headers = {}, method = "GET") => fetch(server.url + where, { headers, method });
  const text = async (...args) => (await get(...args)).text();
  assert.equal(await text("/data.bin"), "0123456789");
  assert.equal(await text("/files/data.bin", { range: "bytes=2-4" }), "234");
  assert.equal(await text("/data.bin", { range: "bytes=-3" }), "789");
  assert.equal(await text("/data.bin", { range: "bytes=8-" }), "89");
  const part = await get("/data.bin", { range: "bytes=0-0" });
  assert.deepEqual([part.status, part.headers.get("content-range")], [206, "bytes 0-0/10"]);
  assert.equal((await get("/data.bin", { range: "bytes=10-" })).status, 416);
  assert.equal((await get("/data.bin", { range: "bytes=2-4", "if-range": '"other"' })).status, 200);
  assert.equal((await get("/data.bin", { "if-none-match": part.headers.get("etag") })).status, 304);
  assert.equal(part.headers.get("cross-origin-embedder-policy"), "require-corp");
  for (const where of ["/none", "/files/../../etc/passwd", "/files/..%2f..%2fetc%2fpasswd", "/files/"]) assert.equal((await get(where)).status, 404, where);
  assert.equal((await get("/%E0%A4%A")).status, 400);
  assert.equal((await get("/data.bin", {}, "POST")).status, 405);
  server.close();
});

test("figures add up over requests", () => {
  const result = (completion) => ({
    choices: [{}],
    usage: { prompt_tokens: 10, completion_tokens: completion, prompt_tokens_details: { cached_tokens: 4 } },
    timings: { prefill: 100, decode: 1000, time_to_first_token: 120 },
  });
  const stats = { peakWasmBytes: 5e6, executor: { peakDeviceBytes: 1e6 }, rate: { dispatchesPerStep: 300, readbacksPerStep: 1, weightBytesPerStep: 9e7 } };
  const got = figures({ backend: "webgpu", layers: 30 }, [result(11), result(21)], stats);
  assert.equal(got.prompt_tokens, 20);
  assert.equal(got.completion_tokens, 32);
  assert.equal(got.prefill_tokens_per_second, 120);
  assert.equal(got.decode_tokens_per_second, 30);
  assert.equal(got.dispatches_per_layer, 10);
  assert.match(got.line, /^webgpu \| 20 prompt \+ 32 completion tokens .* 10\.0 dispatches a layer \| 1\.0 readbacks a step$/);
});
