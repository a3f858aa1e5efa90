/** The package's API in a real page with a real (tiny) model: streaming, aborts, refusals, scores, Workers. */
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { golden, openPage, tinyEntry } from "./support.mjs";

let page;
const entry = tinyEntry();

before(async () => {
  page = await openPage({ "/bad.gguf": golden("hostile/bad_magic.gguf"), "/empty.gguf": golden("hostile/empty.gguf") });
  // What the tests' page functions share.
  await page.run(async () => {
    const fireside = await import("/pkg/index.js");
    window.fireside = fireside;
    window.load = (options, model = "/tiny.gguf") => fireside.Engine.load(model, { backend: "cpu", ...options });
    window.caught = async (promise) => {
      try {
        return { value: await promise };
      } catch (error) {
        return { name: error.name, code: error.code, message: error.message, ours: error instanceof fireside.FiresideError };
      }
    };
    window.engine = await window.load();
  });
});

after(async () => {
  await page?.close();
});

test("greedy tokens are the reference's, and deltas make the text", async () => {
  const got = await page.run(async (ids) => {
    let text = "";
    const tokens = [];
    const onToken = (t) => {
      text += t.text;
      tokens.push(t.token);
    };
    const result = await window.engine.generate({ prompt: ids, temperature: 0, max_tokens: 16 }, { onToken });
    return { text, tokens, whole: result.choices[0].text, all: [...result.choices[0].tokens], usage: result.usage };
  }, entry.prompts[0].ids);
  assert.deepEqual(got.all, entry.prompts[0].greedy_ids_f64.slice(0, 16));
  assert.deepEqual(got.tokens, got.all);
  assert.equal(got.text, got.whole);
  assert.equal(got.usage.prompt_tokens, entry.prompts[0].ids.length);
});

test("a Worker, this thread, a given Worker and a Blob give the same tokens", async () => {
  const got = await page.run(async (ids) => {
    const blob = await (await fetch("/tiny.gguf")).blob();
    const given = new Worker("/pkg/worker.js", { type: "module" });
    const engines = [
      await window.load({ worker: true }),
      await window.load({ worker: false }),
      await window.load({ worker: given }),
      await window.load({ worker: given }),
      await window.load({}, blob),
      await window.load({}, new File([blob], "tiny.gguf")),
      await window.load({}, [new URL("/tiny.gguf", location.href)]),
    ];
    const runs = engines.map((engine) => engine.generate({ prompt: ids, temperature: 0, max_tokens: 8 }));
    const tokens = (await Promise.all(runs)).map(({ choices }) => [...choices[0].tokens]);
    await Promise.all(engines.map((engine) => engine.dispose()));
    given.terminate();
    return tokens;
  }, entry.prompts[0].ids);
  for (const tokens of got) assert.deepEqual(tokens, entry.prompts[0].greedy_ids_f64.slice(0, 8));
});

test("eight requests at once give what each gives alone", async () => {
  const prompts = entry.prompts.filter((p) => p.adapter === null).map((p) => p.ids);
  const same = await page.run(async (list) => {
    const request = (i) => ({ prompt: list[i % list.length], temperature: 0, max_tokens: 4 + i });
    const tokens = async (i) => [...(await window.engine.generate(request(i))).choices[0].tokens].join();
    const together = await Promise.all(Array.from({ length: 8 }, (_, i) => tokens(i)));
    const alone = [];
    for (let i = 0; i < 8; i++) alone.push(await tokens(i));
    return together.map((text, i) => text === alone[i]);
  }, prompts);
  assert.deepEqual(same, Array(8).fill(true));
});

test("an abort settles with the signal's reason, at once, and the engine goes on", async () => {
  const got = await page.run(async () => {
    const controller = new AbortController();
    const reason = new Error("enough");
    let count = 0;
    let late = false;
    const onToken = () => {
      if (++count < 3) return;
      controller.abort(reason);
      // A macrotask after the abort the promise must have settled already.
      setTimeout(() => (late = true));
    };
    const request = { prompt: "the people", temperature: 0, max_tokens: 400, logit_bias: { 297: -100, 298: -100, 299: -100 } };
    const settled = await window.engine.generate(request, { signal: controller.signal, onToken }).then(
      () => "finished",
      (error) => [error === reason, late],
    );
    const before = count;
    const next = await window.engine.generate({ prompt: "the", temperature: 0, max_tokens: 2 });
    const already = await window.caught(window.engine.generate({ prompt: "the" }, { signal: AbortSignal.abort() }));
    const { sequences } = await window.engine.stats();
    return { settled, before, count, tokens: next.choices[0].tokens.length, already, sequences };
  });
  assert.deepEqual(got.settled, [true, false], "with the reason, and in the very turn of the abort");
  assert.equal(got.before, got.count, "no token comes after the abort");
  assert.equal(got.tokens, 2);
  assert.equal(got.already.name, "AbortError");
  assert.equal(got.sequences.decoding + got.sequences.prefilling + got.sequences.waiting, 0);
  assert.ok(got.sequences.aborted >= 1);
});

test("timeouts, refusals and wrong values have their codes", async () => {
  const got = await page.run(async () => {
    const { engine, caught } = window;
    const request = { prompt: "the", max_tokens: 2 };
    const bad = (fields) => caught(engine.generate({ ...request, ...fields }));
    // Nobody reads it, so that it pauses and can never be done before its time is over.
    const unread = async () => {
      const stream = await engine.completions.create({ prompt: "the people", stream: true, logit_bias: { 297: -100, 298: -100, 299: -100 } }, { timeout: 1 });
      const live = ({ sequences: { waiting, prefilling, decoding, preempted } }) => waiting + prefilling + decoding + preempted;
      while (live(await engine.stats()) > 0);
      await stream.readable.pipeTo(new WritableStream());
    };
    return {
      deadline: await caught(unread()),
      unknown: await bad({ max_token: 3 }),
      format: await bad({ response_format: { type: "json_object" } }),
      adapter: await bad({ adapter: "x" }),
      temperature: await bad({ temperature: -1 }),
      topP: await bad({ top_p: 2 }),
      n: await bad({ n: 0 }),
      bias: await bad({ logit_bias: { 999999: 1 } }),
      token: await bad({ prompt: [999999] }),
      long: await bad({ prompt: Array(100_000).fill(5) }),
      chat: await caught(engine.chat.completions.create({ messages: [] })),
      option: await caught(window.load({ wurker: 1 })),
      dtype: await caught(window.load({ kvCache: { dtype: "f16" } })),
      magic: await caught(window.load({}, "/bad.gguf")),
      empty: await caught(window.load({}, "/empty.gguf")),
      missing: await caught(window.load({}, "/none.gguf")),
      cancelled: await caught(window.load({ signal: AbortSignal.abort() })),
    };
  });
  const codes = Object.fromEntries(Object.entries(got).map(([name, { code }]) => [name, code]));
  assert.equal(got.cancelled.name, "AbortError");
  assert.match(codes.empty, /^gguf\./);
  assert.deepEqual({ ...codes, empty: "", cancelled: "" }, {
    deadline: "request.deadline",
    unknown: "request.unsupported",
    format: "request.unsupported",
    adapter: "request.unsupported",
    temperature: "request.invalid",
    topP: "request.invalid",
    n: "request.invalid",
    bias: "request.invalid",
    token: "request.invalid",
    long: "request.context_exceeded",
    chat: "request.invalid",
    option: "load.unsupported",
    dtype: "load.unsupported",
    magic: "gguf.bad_magic",
    empty: "",
    missing: "http.status",
    cancelled: "",
  });
  for (const [name, error] of Object.entries(got)) if (name !== "cancelled") assert.equal(error.ours, true, name);
});

test("tokens round-trip, scores agree with the reported logprobs", async () => {
  const got = await page.run(async () => {
    const { engine } = window;
    const text = "the people of the";
    const tokens = await engine.tokenize(text);
    const back = await engine.detokenize(tokens);
    const { choices } = await engine.generate({ prompt: tokens, temperature: 0, max_tokens: 4, logprobs: 1 });
    const all = [...tokens, ...choices[0].tokens];
    const { logprobs, top } = await engine.score(all, { topLogprobs: 2 });
    return { text, back, tokens: [...tokens], events: choices[0].logprobs, scored: [...logprobs], top };
  });
  assert.equal(got.back.trim(), got.text);
  assert.deepEqual(got.tokens, entry.prompts[0].ids);
  assert.ok(Number.isNaN(got.scored[0]));
  got.events.forEach((event, i) => {
    const at = got.tokens.length + i;
    assert.ok(Math.abs(event.logprob - got.scored[at]) < 1e-4, `${event.logprob} and ${got.scored[at]}`);
    assert.equal(event.top[0].token, event.token);
    assert.equal(got.top[at][0].token, event.token);
  });
});

test("an idle engine takes no turns", async () => {
  const [before, later] = await page.run(async () => {
    const after = async (ms) => {
      await new Promise((resolve) => setTimeout(resolve, ms));
      return (await window.engine.stats()).ticks;
    };
    // What ran before has its last turns.
    let first = await after(0);
    for (let same = 0, looks = 0; same < 5 && looks < 200; looks++) {
      const now = await after(20);
      same = now === first ? same + 1 : 0;
      first = now;
    }
    return [first, await after(500)];
  });
  assert.equal(later, before);
});

test("dispose ends what runs, is idempotent, and what follows is refused", async () => {
  const got = await page.run(async () => {
    const engine = await window.load({ maxRunning: 2, maxQueued: 64 });
    // More than can end before dispose(), however late this page's thread gets its turn.
    const request = { prompt: "the people", max_tokens: 500, logit_bias: { 297: -100, 298: -100, 299: -100 } };
    let begun;
    const first = new Promise((resolve) => (begun = resolve));
    const running = Array.from({ length: 60 }, () => window.caught(engine.generate(request, { onToken: begun })));
    await first;
    await Promise.all([engine.dispose(), engine.dispose()]);
    const codes = (await Promise.all(running)).map(({ value, code }) => (value ? "done" : code));
    return { codes, later: await window.caught(engine.generate({ prompt: "a" })) };
  });
  assert.equal(got.codes.at(-1), "engine.disposed");
  assert.deepEqual([...new Set(got.codes)].filter((code) => code !== "done"), ["engine.disposed"]);
  assert.equal(got.later.code, "engine.disposed");
});

test("progress ends with ready, and the file is fetched once", async () => {
  const fetched = () => page.log.filter(([, url]) => url === "/tiny.gguf").length;
  const before = fetched();
  const progress = await page.run(async () => {
    const seen = [];
    const engine = await window.load({ cache: "none", onProgress: (p) => seen.push(p) });
    await engine.dispose();
    return seen;
  });
  assert.equal(fetched() - before, 1);
  assert.equal(progress.at(-1).phase, "ready");
  assert.ok(progress.some(({ phase, loaded, total }) => phase === "download" && loaded === total));
  for (const phase of new Set(progress.map((p) => p.phase))) {
    const loaded = progress.filter((p) => p.phase === phase).map((p) => p.loaded);
    assert.deepEqual(loaded, [...loaded].sort((a, b) => a - b), phase);
  }
});

test("preflight tells what this browser can do", async () => {
  const report = await page.run(() => window.fireside.preflight());
  assert.equal(report.cpu.simd, true);
  assert.equal(report.cpu.relaxedSimd, true);
  assert.equal(report.cpu.threads, true, "the test server isolates its pages");
  assert.equal(report.webgpu.available, true);
  assert.ok(report.webgpu.limits.maxStorageBuffersPerShaderStage >= 8);
  assert.ok(report.storage.quota > 0);
});

test("nothing went wrong in the page unseen", () => {
  assert.deepEqual(page.errors, []);
});
