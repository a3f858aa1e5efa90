/** Many requests that end in every way, and many engines: no block is lost, memory stays flat. Real Chromium, a tiny model. */
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { faultyFiles } from "./faults.mjs";
import { gpuCycles, growth } from "./gpu-memory.mjs";
import { openPage, TINY, tinyEntry } from "./support.mjs";
import { wideGguf } from "../tools/gguf.mjs";

const REQUESTS = 1000;
const SEED = 20_261_129;
/** Live bytes may move by this: vectors that keep their room for the next step. */
const SLACK_BYTES = 64 * 1024;
/** Waves that may take more: the figures of the last second's steps double their room when the machine makes more steps than before. */
const DOUBLINGS = 3;

/** Logits apart below which either of two tokens may be the best one. */
const NEAR_TIE = 0.05;

const files = faultyFiles();
let page;

before(async () => {
  // Much larger than the noise of a GPU process: 32 MB of weights.
  files.put("/wide.gguf", { data: wideGguf(TINY, 5, 16_384) });
  page = await openPage({}, { handle: files.handle });
});

after(async () => {
  await page?.close();
});

/** Submits requests in waves, aborts many of them at random moments. `memory` is what was live whenever the engine had nothing to do. */
async function churn([backend, count, seed]) {
  const { Engine } = await import("/pkg/index.js");
  let state = seed;
  const random = (below) => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return Math.floor((state / 2 ** 32) * below);
  };
  const engine = await Engine.load("/tiny.gguf", { backend, contextLength: 160, kvCache: { blocks: 24 }, maxRunning: 4, maxQueued: 32 });
  const shared = Array.from({ length: 50 }, (_, i) => 10 + ((i * 13) % 150));
  const request = () => {
    const own = Array.from({ length: 1 + random(70) }, () => 10 + random(150));
    const choices = random(8) === 0 ? { n: 2 + random(2) } : {};
    return { prompt: random(2) ? [...shared, ...own] : own, temperature: random(2), max_tokens: random(24), seed: random(1000), logit_bias: { 297: -100, 298: -100, 299: -100 }, ...choices };
  };
  const one = async () => {
    const controller = new AbortController();
    const tokens = random(12);
    let seen = 0;
    const onToken = () => ++seen > tokens && controller.abort();
    const how = random(4);
    if (how === 0) setTimeout(() => controller.abort(), random(30));
    const options = { signal: controller.signal, ...(how === 1 ? { onToken } : {}), ...(how === 2 ? { timeout: 1 + random(40) } : {}), priority: random(3) };
    try {
      await engine.generate(request(), options);
      return "done";
    } catch (error) {
      return error.name === "AbortError" ? error.name : error.code;
    }
  };
  const outcomes = {};
  const memory = [];
  const blocks = [];
  // Vectors keep the room of the largest step, which comes first: all that may run, submitted together, as long as the blocks allow.
  const largest = Array.from({ length: 4 }, (_, i) => Array.from({ length: 90 }, (_, k) => 10 + ((i * 41 + k * 7) % 150)));
  await engine.completions.create({ prompt: largest, max_tokens: 1 });
  // The log of steps is a ring, which must be full of such steps first.
  while ((await engine.stats()).steps < 1100) await Promise.all(Array.from({ length: 25 }, one));
  for (let done = 0; done < count; done += 25) {
    for (const outcome of await Promise.all(Array.from({ length: 25 }, one))) outcomes[outcome] = (outcomes[outcome] ?? 0) + 1;
    // A request that the page gave up may still be in the Worker: it is gone once the engine answers with none left.
    let stats = await engine.stats();
    const busy = ({ sequences: s }) => s.waiting + s.prefilling + s.decoding + s.preempted > 0;
    while (busy(stats)) stats = await engine.stats();
    memory.push(stats.liveWasmBytes);
    blocks.push(stats.blocks);
  }
  const { preemptions } = await engine.stats();
  await engine.dispose();
  return { outcomes, memory, blocks, preemptions };
}

test("1000 requests with random ends leave every block free or cached, and memory flat after the first 100", async (t) => {
  const { outcomes, memory, blocks, preemptions } = await page.run(churn, ["cpu", REQUESTS, SEED]);
  t.diagnostic(JSON.stringify({ outcomes, preemptions, live: [memory[4], memory.at(-1)] }));
  for (const { total, free, cached, held, shared } of blocks) {
    assert.equal(free + cached, total);
    assert.equal(held + shared, 0);
  }
  assert.deepEqual(Object.keys(outcomes).filter((name) => !["done", "AbortError", "request.deadline"].includes(name)), []);
  assert.ok(outcomes.done > 0 && outcomes.AbortError > 0, "some end, some are aborted");
  // A leak takes some in every wave.
  const taken = memory.slice(5).map((bytes, i) => bytes - memory[4 + i]).sort((a, b) => a - b);
  const grown = taken.slice(0, -DOUBLINGS).reduce((sum, bytes) => sum + bytes, 0);
  assert.ok(grown <= SLACK_BYTES, `${grown} bytes more; live bytes: ${memory.join(", ")}`);
});

test("engines that come and go give back what they took", async (t) => {
  const live = await page.run(async () => {
    const { Engine } = await import("/pkg/index.js");
    // In the page's own thread all engines share one wasm instance, whose live bytes the first one tells.
    const options = { backend: "cpu", worker: false, contextLength: 128 };
    const watch = await Engine.load("/tiny.gguf", options);
    const figures = [];
    for (let i = 0; i < 20; i++) {
      const engine = await Engine.load("/tiny.gguf", options);
      const running = engine.generate({ prompt: [5, 6, 7], max_tokens: 100 }).catch(({ code }) => code);
      if (i % 2) await running;
      await engine.dispose();
      await running;
      // The loop of an engine that was working lets go of the rest in its next turn.
      let live = (await watch.stats()).liveWasmBytes;
      for (let same = 0; same < 3; ) {
        await new Promise((resolve) => setTimeout(resolve));
        const now = (await watch.stats()).liveWasmBytes;
        same = now === live ? same + 1 : 0;
        live = now;
      }
      figures.push(live);
    }
    await watch.dispose();
    return figures;
  });
  t.diagnostic(JSON.stringify({ live: [live[0], live[2], live.at(-1)] }));
  assert.ok(Math.abs(live.at(-1) - live[2]) <= SLACK_BYTES, `live bytes: ${live.join(", ")}`);
});

const noProc = process.platform !== "linux" && "the GPU process's memory is read from /proc";

// A device that stays for another engine's sake, and devices that go with their engines: of those fewer, for each makes every pipeline anew.
for (const [where, options] of [
  ["one device that they share", { worker: "given", beside: "/tiny.gguf", cycles: 20, kept: 3 }],
  ["devices of their own", { worker: true, cycles: 8, kept: 2 }],
]) {
  test(`${options.cycles} engines on WebGPU that come and go leave the GPU process's memory flat: ${where}`, { skip: noProc }, async (t) => {
    const { engine, before, after, holding, freed } = await gpuCycles(page, { source: "/wide.gguf", ...options });
    const grown = growth(after);
    t.diagnostic(JSON.stringify({ ...engine, grown, before, holding, freed, after }));
    assert.ok(engine.weights > 20_000_000);
    // What is not freed shows: the same measure sees the engines that are kept, and that they go. The shared device has one's buffers in hand.
    const more = 0.9 * engine.weights * (options.beside ? options.kept - 1 : options.kept);
    assert.ok(holding - after.at(-1) > more, `${options.kept} engines: ${holding} after ${after.at(-1)}`);
    assert.ok(holding - freed > 0.9 * options.kept * engine.weights, `${freed} after ${holding}`);
    // A quarter of one engine's weights over several cycles: what a cycle leaves is a small part of one.
    assert.ok(grown < engine.weights / 4, `grew by ${grown}: ${after.join(", ")}`);
  });
}

test("1,000 greedy tokens on WebGPU, one readback each, are the reference's", async () => {
  // Up to where two tokens are so near that either may win.
  const certain = ({ greedy_gaps: gaps, greedy_ids_f64: ids }) => ids.slice(0, [...gaps.map((gap) => gap < NEAR_TIE), true].indexOf(true));
  const prompts = tinyEntry().prompts.filter(({ adapter }) => adapter === null).map((prompt) => ({ ids: prompt.ids, expected: certain(prompt) }));
  const got = await page.run(async (all) => {
    const { Engine } = await import("/pkg/index.js");
    const engine = await Engine.load("/tiny.gguf", { backend: "webgpu", prefixCache: false });
    const wrong = [];
    let tokens = 0;
    const before = (await engine.stats()).executor.readbacks;
    for (let n = 0; tokens < 1000; n++) {
      const { ids, expected } = all[n % all.length];
      const { choices } = await engine.generate({ prompt: ids, temperature: 0, max_tokens: expected.length });
      tokens += choices[0].tokens.length;
      if (choices[0].tokens.join() !== expected.join()) wrong.push([n, choices[0].tokens.join(), expected.join()]);
    }
    const readbacks = (await engine.stats()).executor.readbacks - before;
    await engine.dispose();
    return { wrong, tokens, readbacks };
  }, prompts);
  assert.deepEqual(got.wrong, []);
  assert.ok(got.tokens >= 1000 && got.readbacks >= got.tokens, JSON.stringify(got));
});
