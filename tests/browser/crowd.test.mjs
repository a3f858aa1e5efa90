/** In the browser, on both backends: a request's log-probabilities are the same bits alone, in a crowd, in any chunks of its prompt. */
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { openPage } from "./support.mjs";

let page;

before(async () => {
  page = await openPage({});
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
