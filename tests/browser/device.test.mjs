/** Lost devices and trapped instances: what ran goes on with the same tokens, nothing twice, nothing lost. Real Chromium, a tiny model. */
import assert from "node:assert/strict";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { after, before, test } from "node:test";
import { openPage } from "./support.mjs";

/**
 * A Worker of the page's own: fireside's, with a hand on its GPU devices. What happens at a certain token happens in the engine's own
 * thread as that token is sent, and what waits for a word waits in it: page and engine may be as quick or slow as they like.
 */
const LOSSY = `
const devices = [];
const lose = { atRequest: 0, at: [], how: "now", sent: 0 };
let open = Promise.resolve();
let letOn = () => undefined;
const now = {
  now: () => devices.at(-1)?.destroy(),
  trap: () => setTimeout(() => { throw new WebAssembly.RuntimeError("planted"); }),
};
const request = GPUAdapter.prototype.requestDevice;
GPUAdapter.prototype.requestDevice = async function (...args) {
  await open;
  const device = await request.apply(this, args);
  devices.push(device);
  // "load": lost as soon as it is there, so many times.
  if (lose.atRequest-- > 0) setTimeout(() => device.destroy());
  return device;
};
const post = MessagePort.prototype.postMessage;
MessagePort.prototype.postMessage = function (message, ...more) {
  post.call(this, message, ...more);
  if (message?.t !== "token" || ++lose.sent < (lose.at[0] ?? Infinity)) return;
  lose.at.shift();
  now[lose.how]();
};
addEventListener("message", ({ data }) => {
  if (data?.lossy === "now") now.now();
  if (data?.lossy === "load") lose.atRequest = data.times;
  // "at": lost, or trapped, as the so manieth token is sent.
  if (data?.lossy === "at") Object.assign(lose, { at: data.at, how: data.how ?? "now", sent: 0 });
  // "hold": no device until "go".
  if (data?.lossy === "hold") open = new Promise((resolve) => (letOn = resolve));
  if (data?.lossy === "go") letOn();
  if (data?.lossy === "memory") {
    const create = GPUDevice.prototype.createBuffer;
    let left = data.after;
    GPUDevice.prototype.createBuffer = function (descriptor) {
      if (left-- === 0) this.dispatchEvent(new GPUUncapturedErrorEvent("uncapturederror", { error: new GPUOutOfMemoryError("planted") }));
      return create.call(this, descriptor);
    };
  }
});
import "/pkg/worker.js";
`;

let page;
let folder;

before(async () => {
  folder = fs.mkdtempSync(path.join(os.tmpdir(), "fireside-lossy-"));
  const file = path.join(folder, "lossy.js");
  fs.writeFileSync(file, LOSSY);
  page = await openPage({ "/lossy.js": file });
  await page.run(async () => {
    const { Engine } = await import("/pkg/index.js");
    window.lossy = () => new Worker("/lossy.js", { type: "module" });
    window.open = async (worker, options = {}) => {
      const engine = await Engine.load("/tiny.gguf", { backend: "webgpu", contextLength: 160, worker, ...options });
      const events = [];
      for (const type of ["devicelost", "recovered", "failed"]) engine.addEventListener(type, ({ detail }) => events.push({ type, ...detail, code: detail.code }));
      return { engine, events };
    };
    // No special token can be drawn: an answer has as many tokens as it may.
    window.NO_END = { 297: -100, 298: -100, 299: -100 };
    window.prompt1 = Array.from({ length: 40 }, (_, i) => 10 + ((i * 13) % 150));
    window.requests = [
      { prompt: window.prompt1, temperature: 0, max_tokens: 60, logit_bias: window.NO_END },
      { prompt: "the people of", temperature: 1, seed: 7, max_tokens: 40, logprobs: 2, n: 2, logit_bias: window.NO_END },
      { prompt: "when", temperature: 0.8, seed: 3, repetition_penalty: 1.2, max_tokens: 50, stop: ["zzz"], logit_bias: window.NO_END },
    ];
    window.runAll = async (engine) => {
      const one = async (request) => {
        const seen = [];
        const result = await engine.generate(request, { onToken: (t) => seen.push([t.choice, t.position, t.token, t.text]) });
        return { seen, choices: result.choices.map((c) => ({ ...c, tokens: [...c.tokens] })) };
      };
      return Promise.all(window.requests.map(one));
    };
  });
});

after(async () => {
  await page?.close();
  fs.rmSync(folder, { recursive: true, force: true });
});

/** Token events in the order of each choice: those of several choices come interleaved. */
const byChoice = (runs) => runs.map(({ seen, choices }) => ({ choices, seen: [...seen].sort((a, b) => a[0] - b[0] || a[1] - b[1]) }));

/** Runs once undisturbed and once with losses; both must be the same to the last token and text. */
async function sameWithLosses(lossesAt, kind) {
  return page.run(async ([at, how]) => {
    const calm = await window.open(true);
    const expected = await window.runAll(calm.engine);
    await calm.engine.dispose();
    const worker = window.lossy();
    const { engine, events } = await window.open(worker);
    worker.postMessage({ lossy: "at", at, how });
    const got = await window.runAll(engine);
    const stats = await engine.stats();
    const after = await engine.generate({ prompt: "the", temperature: 0, max_tokens: 3 });
    await engine.dispose();
    worker.terminate();
    return { expected, got, events, blocks: stats.blocks, after: after.choices[0].tokens.length };
  }, [lossesAt, kind]);
}

for (const [name, marks, kind] of [
  ["a device lost in mid-decode", [30], "now"],
  ["a device lost twice in a row", [10, 60], "now"],
  ["a trap in wasm", [30], "trap"],
]) {
  test(`${name}: the same tokens as without`, async () => {
    const { expected, got, events, blocks, after } = await sameWithLosses(marks, kind);
    assert.deepEqual(byChoice(got), byChoice(expected));
    assert.deepEqual(events.map(({ type }) => type), marks.flatMap(() => ["devicelost", "recovered"]));
    assert.ok(events.filter(({ type }) => type === "recovered").every(({ backend, resumed }) => backend === "webgpu" && resumed > 0), JSON.stringify(events));
    assert.equal(blocks.free + blocks.cached, blocks.total);
    assert.equal(after, 3);
  });
}

test("a request that is made and given up while the engine is away never runs", async () => {
  const got = await page.run(async () => {
    const worker = window.lossy();
    const { engine } = await window.open(worker);
    const controller = new AbortController();
    const lost = new Promise((resolve) => {
      engine.addEventListener("devicelost", () => {
        const given = { prompt: "the", max_tokens: 100, logit_bias: window.NO_END };
        resolve([
          engine.generate(given, { signal: controller.signal }).catch(({ name }) => name),
          engine.generate(given, { timeout: 0 }).catch(({ code }) => code),
        ]);
        controller.abort();
      });
    });
    const recovered = new Promise((resolve) => engine.addEventListener("recovered", resolve));
    worker.postMessage({ lossy: "hold" });
    worker.postMessage({ lossy: "at", at: [5] });
    const running = engine.generate({ prompt: window.prompt1, temperature: 0, max_tokens: 20, logit_bias: window.NO_END }, { onToken: () => undefined });
    const codes = await Promise.all(await lost);
    worker.postMessage({ lossy: "go" });
    await recovered;
    await running;
    const { sequences } = await engine.stats();
    await engine.dispose();
    worker.terminate();
    return { codes, sequences };
  });
  assert.deepEqual(got.codes.sort(), ["AbortError", "request.deadline"]);
  assert.equal(Object.values(got.sequences).reduce((sum, n) => sum + n, 0), 1, JSON.stringify(got.sequences));
});

test("a device lost during load or prefill is replaced", async () => {
  const got = await page.run(async () => {
    const worker = window.lossy();
    worker.postMessage({ lossy: "load", times: 1 });
    const { engine } = await window.open(worker);
    const first = engine.generate({ prompt: window.prompt1, temperature: 0, max_tokens: 8 });
    worker.postMessage({ lossy: "now" });
    const tokens = [...(await first).choices[0].tokens];
    await engine.dispose();
    worker.terminate();
    const calm = await window.open(true);
    const expected = [...(await calm.engine.generate({ prompt: window.prompt1, temperature: 0, max_tokens: 8 })).choices[0].tokens];
    await calm.engine.dispose();
    return { tokens, expected };
  });
  assert.deepEqual(got.tokens, got.expected);
});

test("a device that keeps getting lost ends in a typed error, or on the CPU where the options leave it", async () => {
  const got = await page.run(async () => {
    const worker = window.lossy();
    const { engine, events } = await window.open(worker);
    worker.postMessage({ lossy: "load", times: 100 });
    worker.postMessage({ lossy: "at", at: [5] });
    const request = { prompt: "the people", max_tokens: 100, logit_bias: window.NO_END };
    const running = engine.generate(request, { onToken: () => undefined }).then(() => "done", ({ code }) => code);
    const code = await running;
    const later = await engine.generate({ prompt: "a" }).then(() => "done", (error) => error.code);
    worker.terminate();
    return { code, later, events };
  });
  assert.equal(got.code, "device.lost");
  assert.equal(got.later, "device.lost");
  assert.deepEqual([got.events[0].type, got.events.at(-1).type, got.events.at(-1).code], ["devicelost", "failed", "device.lost"]);
});

test("a GPU without memory is memory.gpu, and the page goes on", async () => {
  const got = await page.run(async () => {
    const worker = window.lossy();
    worker.postMessage({ lossy: "memory", after: 40 });
    const code = await window.open(worker).then(() => "loaded", (error) => error.code);
    worker.terminate();
    const { engine } = await window.open(true);
    const { choices } = await engine.generate({ prompt: "the", temperature: 0, max_tokens: 2 });
    await engine.dispose();
    return { code, tokens: choices[0].tokens.length };
  });
  assert.equal(got.code, "memory.gpu");
  assert.equal(got.tokens, 2);
});

test("an engine that is disposed of while the GPU works takes nobody along", async () => {
  const got = await page.run(async () => {
    const worker = window.lossy();
    const neighbour = await window.open(worker);
    const tokens = [];
    for (const where of [worker, worker, false, false]) {
      const { engine } = await window.open(where);
      let begun;
      const first = new Promise((resolve) => (begun = resolve));
      const running = engine.generate({ prompt: "the people", max_tokens: 100, logit_bias: window.NO_END }, { onToken: begun }).catch(({ code }) => code);
      await first;
      await engine.dispose();
      tokens.push(await running);
    }
    const next = await window.open(false);
    const { choices } = await next.engine.generate({ prompt: "the", temperature: 0, max_tokens: 3 });
    await next.engine.dispose();
    const still = await neighbour.engine.generate({ prompt: "the", temperature: 0, max_tokens: 3 });
    await neighbour.engine.dispose();
    worker.terminate();
    return { tokens, events: neighbour.events, next: [...choices[0].tokens], still: [...still.choices[0].tokens] };
  });
  assert.deepEqual(got.tokens, Array(4).fill("engine.disposed"));
  assert.deepEqual(got.events, []);
  assert.equal(got.next.length, 3);
  assert.deepEqual(got.next, got.still);
});

test("the last engine of a thread takes the GPU device along, and the next one has another", async () => {
  const got = await page.run(async () => {
    const devices = [];
    const request = GPUAdapter.prototype.requestDevice;
    GPUAdapter.prototype.requestDevice = async function (...args) {
      const device = await request.apply(this, args);
      devices.push(device);
      return device;
    };
    // Of a device that stays nothing is ever heard: the wait for it is for the test's failure.
    const fate = () => Promise.race([devices[0].lost.then(({ reason }) => reason), new Promise((resolve) => setTimeout(resolve, 2000, "there"))]);
    const tokens = async ({ engine }) => [...(await engine.generate({ prompt: "the", temperature: 0, max_tokens: 3 })).choices[0].tokens].join();
    try {
      const [one, two] = [await window.open(false), await window.open(false)];
      const texts = [await tokens(one)];
      await one.engine.dispose();
      texts.push(await tokens(two));
      const shared = devices.length;
      await two.engine.dispose();
      const fates = [await fate()];
      const three = await window.open(false);
      texts.push(await tokens(three));
      await three.engine.dispose();
      return { texts: [...new Set(texts)].length, shared, fates, devices: devices.length, events: [...two.events, ...three.events] };
    } finally {
      GPUAdapter.prototype.requestDevice = request;
    }
  });
  assert.deepEqual(got, { texts: 1, shared: 1, fates: ["destroyed"], devices: 2, events: [] });
});

test("after a trap in the page's own thread the next load has a fresh instance", async () => {
  const got = await page.run(async () => {
    const { engine } = await window.open(false, { backend: "cpu" });
    const running = engine.generate({ prompt: "the people", max_tokens: 100, logit_bias: window.NO_END }).catch(({ code }) => code);
    setTimeout(() => { throw new WebAssembly.RuntimeError("planted"); });
    const code = await running;
    const next = await window.open(false, { backend: "cpu" });
    const { choices } = await next.engine.generate({ prompt: "the", temperature: 0, max_tokens: 3 });
    await next.engine.dispose();
    await engine.dispose();
    return { code, tokens: choices[0].tokens.length };
  });
  assert.equal(got.code, "engine.crashed");
  assert.equal(got.tokens, 3);
});

test("in the page's own thread a lost device ends requests with the code; dispose is no loss", async () => {
  const got = await page.run(async () => {
    const { engine, events } = await window.open(true);
    const running = engine.generate({ prompt: "the people", max_tokens: 100, logit_bias: window.NO_END }).catch(({ code }) => code);
    await engine.dispose();
    return { code: await running, events };
  });
  assert.equal(got.code, "engine.disposed");
  assert.deepEqual(got.events, []);
});
