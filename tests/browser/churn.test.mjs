/** Many requests that end in every way, and many engines: no block is lost, memory stays flat. Real Chromium, a tiny model. */
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { openPage } from "./support.mjs";

const REQUESTS = 1000;
const SEED = 20_261_129;
/** Live bytes may move by this: vectors that keep their room for the next step. */
const SLACK_BYTES = 64 * 1024;
/** Waves that may take more: the figures of the last second's steps double their room when the machine makes more steps than before. */
const DOUBLINGS = 3;

let page;

before(async () => {
  page = await openPage({});
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
