/** In the browser, on both backends: a request's log-probabilities are the same bits alone, in a crowd, in any chunks of its prompt. */
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { defaultModel } from "../../scripts/lib/model.mjs";
import { openPage } from "./support.mjs";

let page;

before(async () => {
  page = await openPage({ "/real.gguf": await defaultModel() });
  await page.run(async () => {
    const { Engine } = await import("/pkg/index.js");
    const prompt = (length, from) => Array.from({ length }, (_, i) => 10 + ((i * 13 + from * 31) % 150));
    window.requests = [3, 17, 40, 70, 5].map((length, i) => ({ prompt: prompt(length, i), temperature: 0, max_tokens: 6, logprobs: 0 }));
    const exact = ({ choices }) => choices[0].logprobs.map(({ token, logprob }) => [token, logprob]);
    // Prefix sharing is off: every prompt is computed in the chunks that the engine was told to use.
    window.bits = async (backend, options, together) => {
      const engine = await Engine.load("/tiny.gguf", { backend, prefixCache: false, contextLength: 128, ...options });
      try {
        if (together) return (await Promise.all(window.requests.map((r) => engine.generate(r)))).map(exact);
        const results = [];
        for (const request of window.requests) results.push(exact(await engine.generate(request)));
        return results;
      } finally {
        await engine.dispose();
      }
    };
  });
});

after(async () => {
  await page?.close();
});

for (const backend of ["cpu", "webgpu"]) {
  test(`${backend}: the same bits alone, together, and in chunks of 5`, async () => {
    const [alone, together, chunked] = await page.run(async (name) => [
      await window.bits(name, {}, false),
      await window.bits(name, {}, true),
      await window.bits(name, { prefillChunk: 5 }, true),
    ], backend);
    assert.equal(alone.length, 5);
    assert.ok(alone.every((tokens) => tokens.length > 0 && tokens.every(([, logprob]) => Number.isFinite(logprob))));
    assert.deepEqual(together, alone);
    assert.deepEqual(chunked, alone);
  });
}

test("cpu: the same bits in whatever tiles a layer goes through its tokens", { timeout: 1_200_000 }, async () => {
  // Tiles are as large as the time between two looks at the inbox allows: small ones until the engine knows how fast it is.
  const [first, later, chunked] = await page.run(async () => {
    const { Engine } = await import("/pkg/index.js");
    const ids = Array.from({ length: 160 }, (_, i) => 100 + ((i * 37) % 9000));
    const scores = [];
    for (const options of [{}, { prefillChunk: 7 }]) {
      const engine = await Engine.load("/real.gguf", { backend: "cpu", prefixCache: false, contextLength: 256, ...options });
      const exact = async () => Array.from((await engine.score(ids)).logprobs);
      scores.push(await exact());
      if (scores.length === 1) scores.push(await exact());
      await engine.dispose();
    }
    return scores;
  });
  assert.equal(first.length, 160);
  assert.ok(first.slice(1).every(Number.isFinite));
  assert.deepEqual(later, first);
  assert.deepEqual(chunked, first);
});
