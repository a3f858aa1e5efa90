/** The client and host over a real port, with a scripted engine: settling, callbacks, errors, and refusals. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { doneEvent, importJs } from "./support.mjs";

const FILE = new Blob(["GGUF"]);
const coded = (code) => (error) => error.name === "FiresideError" && error.code === code;

async function loaded(script, options = {}) {
  const { Engine } = await importJs("index", script);
  return Engine.load(FILE, { worker: false, ...options });
}

test("a request's tokens come in order and its result has typed arrays", async () => {
  const seen = [];
  const engine = await loaded({
    submit(request, prompt, onEvent) {
      seen.push(request, prompt);
      setTimeout(() => {
        onEvent("token", JSON.stringify({ choice: 0, position: 0, token: 1, text: "h" }));
        onEvent("token", JSON.stringify({ choice: 0, position: 1, token: 2, text: "i" }));
        onEvent("done", doneEvent());
      });
      return 5;
    },
  });
  const texts = [];
  const result = await engine.generate({ prompt: [3, 4], temperature: 0, stop: "x" }, { onToken: (t) => texts.push(t.text) });
  assert.deepEqual(texts, ["h", "i"]);
  assert.deepEqual(result.choices[0].tokens, Uint32Array.of(1, 2));
  assert.deepEqual(seen[1], Uint32Array.of(3, 4));
  const { seed, ...fields } = seen[0];
  assert.deepEqual(fields, { temperature: 0, stop: "x" });
  assert.ok(Number.isSafeInteger(seed) && seed >= 0, "the page draws the seed: it outlives an engine");
  await engine.dispose();
});

test("an engine that answers within submit loses no event", async () => {
  const engine = await loaded({
    submit(_request, _prompt, onEvent) {
      onEvent("done", doneEvent("at once"));
      return 1;
    },
  });
  assert.equal((await engine.generate({ prompt: "a" })).choices[0].text, "at once");
  await engine.dispose();
});

test("an abort settles at once with the signal's own reason and reaches the engine", async () => {
  const aborted = [];
  const engine = await loaded({ submit: () => 9, aborted: (...args) => aborted.push(args) });
  const controller = new AbortController();
  const reason = new Error("enough");
  const pending = engine.generate({ prompt: "a" }, { signal: controller.signal });
  await engine.stats();
  controller.abort(reason);
  await assert.rejects(pending, (error) => error === reason);
  await engine.stats();
  assert.deepEqual(aborted, [[9, "cancelled"]]);
  await assert.rejects(engine.generate({ prompt: "a" }, { signal: AbortSignal.abort() }), { name: "AbortError" });
  await engine.dispose();
});

test("an abort right after submission still reaches the engine", async () => {
  const aborted = [];
  const engine = await loaded({ submit: () => 2, aborted: (...args) => aborted.push(args) });
  const controller = new AbortController();
  const pending = engine.generate({ prompt: "a" }, { signal: controller.signal });
  controller.abort();
  await assert.rejects(pending, { name: "AbortError" });
  await engine.stats();
  assert.deepEqual(aborted, [[2, "cancelled"]]);
  await engine.dispose();
});

test("a timeout ends the request with request.deadline", async () => {
  const aborted = [];
  const engine = await loaded({ submit: () => 4, aborted: (...args) => aborted.push(args) });
  await assert.rejects(engine.generate({ prompt: "a" }, { timeout: 30 }), coded("request.deadline"));
  await engine.stats();
  assert.deepEqual(aborted, [[4, "deadline"]]);
  await engine.dispose();
});

test("an error thrown by onToken ends the request and is what it rejects with", async () => {
  const aborted = [];
  const script = {
    submit(_request, _prompt, onEvent) {
      setTimeout(() => onEvent("token", JSON.stringify({ choice: 0, position: 0, token: 1, text: "h" })));
      return 1;
    },
    aborted: (...args) => aborted.push(args),
  };
  const engine = await loaded(script);
  const thrown = new Error("from the callback");
  const onToken = () => {
    throw thrown;
  };
  await assert.rejects(engine.generate({ prompt: "a" }, { onToken }), (error) => error === thrown);
  await engine.stats();
  assert.deepEqual(aborted, [[1, "cancelled"]]);
  await engine.dispose();
});

test("errors keep code, message and details across the port, thrown or sent", async () => {
  const wire = { code: "request.context_exceeded", message: "Too long.", details: { got: 9000 } };
  const engine = await loaded({
    submit(request, _prompt, onEvent) {
      if (request.prompt === "thrown") throw wire;
      setTimeout(() => onEvent("error", JSON.stringify(wire)));
      return 1;
    },
  });
  for (const prompt of ["thrown", "sent"]) {
    await assert.rejects(engine.generate({ prompt }), (error) => {
      assert.ok(error instanceof Error);
      assert.equal(error.code, wire.code);
      assert.equal(error.message, wire.message);
      assert.deepEqual(error.details, wire.details);
      return true;
    });
  }
  await engine.dispose();
});

test("dispose ends every request, is idempotent, and later calls are refused", async () => {
  let disposed = 0;
  const engine = await loaded({ submit: () => 1, disposed: () => disposed++ });
  const pending = assert.rejects(engine.generate({ prompt: "a" }), coded("engine.disposed"));
  await Promise.all([engine.dispose(), engine.dispose()]);
  await pending;
  await assert.rejects(engine.stats(), coded("engine.disposed"));
  await assert.rejects(engine.generate({ prompt: "a" }), coded("engine.disposed"));
  assert.equal(disposed, 1);
});

test("a loop that fails ends every request with a code and says so by event", async () => {
  let fail;
  const engine = await loaded({ submit: () => 1, run: () => new Promise((_, reject) => (fail = reject)) });
  const failed = new Promise((resolve) => engine.addEventListener("failed", (event) => resolve(event.detail)));
  const pending = assert.rejects(engine.generate({ prompt: "a" }), coded("engine.crashed"));
  await engine.stats();
  fail(new WebAssembly.RuntimeError("unreachable"));
  await pending;
  assert.equal((await failed).code, "engine.crashed");
  await engine.dispose();
});

test("loading: progress never goes back, ends with ready; warnings are collected; an abort settles at once", async () => {
  const progress = [];
  const warnings = [];
  const engine = await loaded(
    {
      load(source, options, onEvent) {
        assert.equal(source.len, 4);
        assert.deepEqual(options, { backend: "cpu", kvCache: { blocks: 8 } });
        for (const at of [10, 5, 20]) onEvent("progress", JSON.stringify({ phase: "upload", loaded: at, total: 20, fromCache: false }));
        onEvent("warning", JSON.stringify({ code: "a.b", message: "m", details: {} }));
      },
    },
    { backend: "cpu", kvCache: { blocks: 8 }, onProgress: (p) => progress.push([p.phase, p.loaded]), onWarning: (w) => warnings.push(w.code) },
  );
  assert.deepEqual(progress, [["upload", 10], ["upload", 20], ["ready", 1]]);
  assert.deepEqual(warnings, ["a.b"]);
  assert.deepEqual(engine.info.warnings.map((w) => w.code), ["a.b"]);
  await engine.dispose();

  const { Engine } = await importJs("index", { load: () => new Promise(() => undefined) });
  const controller = new AbortController();
  const pending = Engine.load(FILE, { worker: false, signal: controller.signal });
  setTimeout(() => controller.abort(new Error("left")), 20);
  await assert.rejects(pending, { message: "left" });
  await assert.rejects(Engine.load(FILE, { worker: false, signal: AbortSignal.abort() }), { name: "AbortError" });
});

test("what a load cannot honour is refused before anything is fetched", async () => {
  const { Engine } = await importJs("index");
  const cases = [
    [{ wurker: false }, "load.unsupported"],
    [{ precision: "fast" }, "load.unsupported"],
    [{ cache: "disk" }, "load.invalid"],
    [{ integrity: "00" }, "load.invalid"],
    [{ integrity: ["0".repeat(64), 5] }, "load.invalid"],
    [{ threads: 4 }, "load.unsupported"],
    [{ kvCache: { size: 1 } }, "load.unsupported"],
    [{ backend: "gpu" }, "load.invalid"],
    [{ contextLength: 0 }, "load.invalid"],
    [{ contextLength: 1.5 }, "load.invalid"],
    [{ kvCache: { blocks: 1, bytes: 1 } }, "load.invalid"],
    [{ worker: "yes" }, "load.invalid"],
    [{ signal: {} }, "load.invalid"],
    [{ onProgress: 1 }, "load.invalid"],
    [{ headers: { Range: "bytes=0-" } }, "load.invalid"],
  ];
  for (const [options, code] of cases) await assert.rejects(Engine.load("http://localhost/x.gguf", options), coded(code), JSON.stringify(options));
  for (const model of [[], null, 3, {}]) await assert.rejects(Engine.load(model), coded("load.invalid"));
  for (const model of [["http://a/", 3], { stored: 5 }]) await assert.rejects(Engine.load(model), coded("load.invalid"));
  await assert.rejects(Engine.load({ stored: "x", id: "y" }), coded("load.unsupported"));
  await assert.rejects(Engine.load(new Blob(["GGUF"]), { worker: false, integrity: ["0".repeat(64), "1".repeat(64)] }), coded("load.invalid"));
  await assert.rejects(Engine.load("not a url"), coded("load.invalid"));
});

test("what JSON would lose is refused, everything else is the engine's to judge", async () => {
  const requests = [];
  const engine = await loaded({
    submit(request, _prompt, onEvent) {
      requests.push(request);
      setTimeout(() => onEvent("done", doneEvent()));
      return 1;
    },
  });
  const cases = [
    [{ prompt: "a", temperature: NaN }, "request.invalid"],
    [{ prompt: "a", top_p: Infinity }, "request.invalid"],
    [{ prompt: "a", logit_bias: { 5: NaN } }, "request.invalid"],
    [{ prompt: "a", stop: () => "x" }, "request.invalid"],
    [{ prompt: "a", n: 1n }, "request.invalid"],
    [{ prompt: [1, -1] }, "request.invalid"],
    [{ prompt: [1.5] }, "request.invalid"],
    [{ prompt: 5 }, "request.invalid"],
    ["a", "request.invalid"],
  ];
  for (const [request, code] of cases) await assert.rejects(engine.generate(request), coded(code));
  const options = [
    [{ priority: 0.5 }, "request.invalid"],
    [{ timeout: -1 }, "request.invalid"],
    [{ onToken: "x" }, "request.invalid"],
    [{ signal: "x" }, "request.invalid"],
    [{ timeOut: 1 }, "request.unsupported"],
  ];
  for (const [given, code] of options) await assert.rejects(engine.generate({ prompt: "a" }, given), coded(code), JSON.stringify(given));
  assert.equal(requests.length, 0);
  await engine.generate({ prompt: "a", temperature: null, stop: null, seed: 3, later: 1 }, { priority: 2, timeout: 1e12 });
  assert.deepEqual(requests, [{ prompt: "a", temperature: null, stop: null, seed: 3, later: 1, priority: 2 }]);
  for (const call of [
    () => engine.loadAdapter("a", "b"),
    () => engine.unloadAdapter("a"),
  ]) {
    await assert.rejects(call(), coded("request.unsupported"));
  }
  await engine.dispose();
});

test("score gives NaN for the first token; tokenize and detokenize pass their options", async () => {
  const engine = await loaded({
    score(tokens, top, onEvent, priority) {
      assert.deepEqual([[...tokens], top, priority], [[1, 2, 3], 2, 4]);
      setTimeout(() => onEvent("done", JSON.stringify({ logprobs: [null, -1.5, -0.25], top: [[], [{ token: 2, logprob: -1.5 }], []] })));
      return 1;
    },
  });
  const scored = await engine.score([1, 2, 3], { topLogprobs: 2, priority: 4 });
  assert.deepEqual([...scored.logprobs], [NaN, -1.5, -0.25]);
  assert.equal(scored.top[1][0].token, 2);
  assert.deepEqual(await engine.tokenize("abc"), Uint32Array.of(3, 1, 0));
  assert.deepEqual(await engine.tokenize("abc", { addSpecial: false, parseSpecial: true }), Uint32Array.of(3, 0, 1));
  assert.equal(await engine.detokenize([1, 2]), "1,2false");
  assert.equal((await engine.stats()).steps, 3);
  assert.equal(await engine.renderChat([{ role: "user", content: "x" }], { addGenerationPrompt: false }), '[{"role":"user","content":"x"}]{"addGenerationPrompt":false}');
  await engine.dispose();
});
