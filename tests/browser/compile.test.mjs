/** Pipelines on WebGPU: all are made while loading, told one by one, and none is made while anybody waits for an answer. */
import assert from "node:assert/strict";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { after, before, test } from "node:test";
import { golden, openPage } from "./support.mjs";

/** fireside's Worker, with a count of the pipelines that it makes. */
const COUNTED = `
let made = 0;
for (const name of ["createComputePipeline", "createComputePipelineAsync"]) {
  const create = GPUDevice.prototype[name];
  GPUDevice.prototype[name] = function (...args) {
    made += 1;
    return create.apply(this, args);
  };
}
new BroadcastChannel("made").addEventListener("message", ({ data, target }) => {
  if (data === "how many") target.postMessage({ made });
});
import "/pkg/worker.js";
`;

const MODELS = ["tiny-llama-f16.gguf", "tiny-llama-kq.gguf", "tiny-llama-mix32.gguf"];

let page;
let folder;

before(async () => {
  folder = fs.mkdtempSync(path.join(os.tmpdir(), "fireside-counted-"));
  fs.writeFileSync(path.join(folder, "counted.js"), COUNTED);
  page = await openPage({ "/counted.js": path.join(folder, "counted.js"), "/tiny/": golden("tiny") });
  await page.run(() => {
    const channel = new BroadcastChannel("made");
    window.made = () =>
      new Promise((resolve) => {
        channel.onmessage = ({ data }) => resolve(data.made);
        channel.postMessage("how many");
      });
  });
});

after(async () => {
  await page?.close();
  fs.rmSync(folder, { recursive: true, force: true });
});

for (const model of MODELS) {
  test(`${model}: whatever is asked for later, its pipelines are there`, async () => {
    const { loaded, served, progress } = await page.run(async (name) => {
      const { Engine } = await import("/pkg/index.js");
      const progress = [];
      const worker = new Worker("/counted.js", { type: "module" });
      const engine = await Engine.load(`/tiny/${name}`, {
        backend: "webgpu",
        worker,
        contextLength: 96,
        cache: "none",
        onProgress: (p) => progress.push(p),
      });
      const loaded = await window.made();
      const prompt = Array.from({ length: 37 }, (_, i) => 3 + ((i * 13) % 90));
      const greedy = (more) => engine.generate({ prompt, temperature: 0, max_tokens: 6, logit_bias: { 2: -100 }, ...more });
      // One alone, then as many at once as there are kernels for; forks that copy a block; every way of sampling; a score.
      await greedy({});
      for (const many of [2, 3, 5, 9]) await Promise.all(Array.from({ length: many }, () => greedy({ max_tokens: 3 })));
      await greedy({ n: 3, temperature: 1, seed: 5 });
      await greedy({ temperature: 0.9, top_k: 5, top_p: 0.9, min_p: 0.01, seed: 1 });
      await greedy({ repetition_penalty: 1.2, presence_penalty: 0.5, frequency_penalty: 0.5 });
      await greedy({ logprobs: 3, temperature: 1.3, seed: 2 });
      await greedy({ logprobs: 3, repetition_penalty: 1.1 });
      await engine.score(prompt);
      const served = await window.made();
      await engine.dispose();
      // A Worker that was given stays its owner's.
      worker.terminate();
      return { loaded, served, progress };
    }, model);
    assert.ok(loaded > 10, `only ${loaded} pipelines: are they counted?`);
    assert.equal(served, loaded);
    for (const [phase, events] of [["compile", 2], ["selftest", 1]]) {
      const told = progress.filter((p) => p.phase === phase);
      // Events come at a pace: of what is quick only the end is told.
      assert.ok(told.length >= events, phase);
      assert.deepEqual(told.map((p) => p.loaded), told.map((p) => p.loaded).sort((a, b) => a - b), phase);
      assert.equal(told.at(-1).loaded, told.at(-1).total, phase);
    }
    const phases = progress.map((p) => p.phase);
    assert.ok(phases.lastIndexOf("compile") < phases.indexOf("upload"), "no weights are fetched for a device that cannot run them");
  });
}

test("given up between two pipelines: the caller has its reason at once, the device serves the next load", async () => {
  const { reason, tokens, again } = await page.run(async () => {
    const { Engine } = await import("/pkg/index.js");
    const open = (options) => Engine.load("/tiny/tiny-llama-f16.gguf", { backend: "webgpu", contextLength: 64, cache: "none", worker: false, ...options });
    const controller = new AbortController();
    let phase;
    const onProgress = (p) => {
      phase ??= p.phase === "compile" ? p.phase : undefined;
      if (phase) controller.abort("enough");
    };
    const reason = await open({ signal: controller.signal, onProgress }).catch((error) => error);
    const tokens = [];
    for (let i = 0; i < 2; i++) {
      const engine = await open();
      const result = await engine.generate({ prompt: [5, 6, 7], temperature: 0, max_tokens: 5, logit_bias: { 2: -100 } });
      tokens.push([...result.choices[0].tokens]);
      await engine.dispose();
    }
    return { reason, tokens: tokens[0], again: tokens[1] };
  });
  assert.equal(reason, "enough");
  assert.equal(tokens.length, 5);
  assert.deepEqual(again, tokens);
});
