/** What the page keeps for a lost engine, and how often it tries again. The recovery itself is tests/browser/device.test.mjs. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { importJs, importJsTogether } from "./support.mjs";

const part = (rid, request, prompt = null) => ({ kind: "generate", rid, request: JSON.stringify(request), prompt, tokens: "all", pieces: false });

test("a part without a seed gets one that any engine may draw from; one with a seed keeps it", async () => {
  const { Ledgers } = await importJs("ledger");
  const ledgers = new Ledgers();
  const seeds = Array.from({ length: 50 }, () => JSON.parse(ledgers.begin(part(1, { prompt: "a", top_k: 3 }), 0).request));
  assert.ok(seeds.every(({ seed, top_k: k }) => Number.isSafeInteger(seed) && seed >= 0 && k === 3));
  assert.equal(new Set(seeds.map(({ seed }) => seed)).size, 50);
  assert.equal(JSON.parse(ledgers.begin(part(1, { seed: 5 }), 0).request).seed, 5);
  const score = { kind: "score", rid: 2, scored: Uint32Array.of(1), topLogprobs: 0, priority: 0, pieces: false };
  assert.equal(ledgers.begin(score, 0), score);
});

test("only what the engine had accepted and what had not ended is taken over, with every token in its place", async () => {
  const { Ledgers } = await importJs("ledger");
  const ledgers = new Ledgers();
  for (const rid of [3, 4, 5, 6]) ledgers.begin(part(rid, { seed: rid }), 100);
  for (const rid of [3, 5, 6]) ledgers.accept(rid);
  ledgers.prompt(3, Uint32Array.of(7, 8));
  ledgers.token(3, { choice: 1, position: 0, token: 11, text: "x", logprob: -0.1, top: [{ token: 1, logprob: -1.2718786040597225 }] }, 130);
  ledgers.token(3, { choice: 0, position: 0, token: 10, text: "y" }, 140);
  ledgers.token(99, { choice: 0, position: 0, token: 10, text: "y" }, 140);
  ledgers.end(5);
  const taken = ledgers.taken(150);
  assert.deepEqual(taken.map(({ rid }) => rid), [3, 6]);
  assert.deepEqual(taken[0].taken.prompt, Uint32Array.of(7, 8));
  assert.deepEqual(JSON.parse(taken[0].taken.progress), {
    seed: 3,
    elapsed_ms: 50,
    first_run_ms: 0,
    first_token_ms: 30,
    choices: [[{ token: 10 }], [{ token: 11, logprob: "-0.1", top: [{ token: 1, logprob: "-1.2718786040597225" }] }]],
  });
  assert.equal(taken[1].taken, null, "without a prompt of its own it begins anew");
});

test("three losses within a minute are too many: the CPU where the options leave the choice, else the end", async () => {
  const { Losses } = await importJs("losses");
  const judge = (backend, times, kind = "device") => {
    const losses = new Losses();
    return times.map((time) => losses.judge(kind, backend, time));
  };
  assert.deepEqual(judge("webgpu", [0, 10, 20]), ["reload", "reload", "give up"]);
  assert.deepEqual(judge("auto", [0, 10, 20]), ["reload", "reload", "cpu"]);
  assert.deepEqual(judge(undefined, [0, 10, 20, 30, 40, 50]), ["reload", "reload", "cpu", "reload", "reload", "cpu"]);
  assert.deepEqual(judge("webgpu", [0, 40_000, 80_000, 120_000]), ["reload", "reload", "reload", "reload"]);
  assert.deepEqual(judge("auto", [0, 10, 20], "crash"), ["reload", "reload", "give up"]);
});

test("the last engine of a thread lets the device go, and the next load waits for headers and renews the instance", async () => {
  const calls = [];
  let header;
  const script = {
    released: () => (calls.push("released"), true),
    renewed: () => calls.push("renewed"),
    load: () => calls.push("load"),
    survey: () => new Promise((resolve) => (header = () => (calls.push("header"), resolve(undefined)))),
  };
  const [{ Engine }, { readHeader }] = await importJsTogether(["index", "instance"], script);
  const load = () => Engine.load(new Blob(["GGUF"]), { worker: false });
  const [one, two] = [await load(), await load()];
  await one.dispose();
  assert.deepEqual(calls, ["load", "load"], "another engine has the device");
  await two.dispose();
  assert.deepEqual(calls.splice(0), ["load", "load", "released"]);
  const reading = readHeader({ len: 0, read: () => Promise.resolve(new Uint8Array(0)) });
  const third = load();
  while (!header) await new Promise((resolve) => setTimeout(resolve, 1));
  await new Promise((resolve) => setTimeout(resolve, 20));
  assert.deepEqual(calls, [], "a header is being read in the instance");
  header();
  await Promise.all([reading, third]);
  assert.deepEqual(calls, ["header", "renewed", "load"]);
  await (await third).dispose();
});

test("a load that fails before there is an instance is told as it is", async () => {
  const script = {
    init: () => {
      throw new TypeError("no module");
    },
    released: () => {
      throw new Error("there is no instance");
    },
  };
  const [{ Engine }] = await importJsTogether(["index"], script);
  await assert.rejects(Engine.load(new Blob(["GGUF"]), { worker: false }), { code: "load.wasm" });
});
