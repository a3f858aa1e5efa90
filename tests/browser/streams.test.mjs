/** Streams in a real page: every way to read, every way to leave in every phase, pausing for a slow reader, and the inbox of a busy Worker. */
import assert from "node:assert/strict";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { after, before, test } from "node:test";
import { defaultModel } from "../../scripts/lib/model.mjs";
import { ROOT } from "../../scripts/lib/paths.mjs";
import { openPage } from "./support.mjs";

/** A Worker of the page's own that can be kept from looking at its inbox: it spins until the page says go. */
const BUSY = `
import "/pkg/worker.js";
addEventListener("message", ({ data }) => {
  if (!data.spin) return;
  const state = new Int32Array(data.spin);
  Atomics.store(state, 0, 1);
  while (Atomics.load(state, 0) === 1);
});
`;

let page;
let folder;

before(async () => {
  folder = fs.mkdtempSync(path.join(os.tmpdir(), "fireside-streams-"));
  fs.writeFileSync(path.join(folder, "busy.js"), BUSY);
  page = await openPage({ "/busy.js": path.join(folder, "busy.js"), "/openai/": path.join(ROOT, "node_modules/openai"), "/real.gguf": await defaultModel() });
  await page.run(async () => {
    const { Engine } = await import("/pkg/index.js");
    window.Engine = Engine;
    // The tiny model with a far longer context: its positions are computed, so any length runs.
    const bytes = new Uint8Array(await (await fetch("/tiny.gguf")).arrayBuffer());
    const key = new TextEncoder().encode("llama.context_length");
    const at = bytes.findIndex((_, i) => key.every((byte, k) => bytes[i + k] === byte));
    new DataView(bytes.buffer).setUint32(at + key.length + 4, 65_536, true);
    window.load = (options) => Engine.load(new Blob([bytes]), { backend: "cpu", contextLength: 4096, ...options });
    window.tick = () => new Promise((resolve) => setTimeout(resolve));
    window.all = async (iterable) => {
      const out = [];
      for await (const item of iterable) out.push(item);
      return out;
    };
    window.text = (chunks) => chunks.map((c) => c.choices[0]?.text ?? c.choices[0]?.delta?.content ?? "").join("");
    // No special token can be drawn: an answer has as many tokens as it may.
    window.LONG = { prompt: "the people", temperature: 0, max_tokens: 200, logit_bias: { 297: -100, 298: -100, 299: -100 } };
    // More than any machine can do before it is left, however late this page's thread gets its turn.
    window.ENDLESS = { ...window.LONG, max_tokens: 60_000 };
    window.ROOM = { contextLength: 65_536, kvCache: { blocks: 4096, blockSize: 16 } };
    window.engine = await window.load({});
    // Stats that fulfil a condition; it must come about while something is still live.
    window.until = async (condition, engine = window.engine) => {
      for (;;) {
        const stats = await engine.stats();
        if (condition(stats)) return stats;
        const { waiting, prefilling, decoding, preempted } = stats.sequences;
        if (waiting + prefilling + decoding + preempted === 0) throw new Error("nothing runs any more");
        await window.tick();
      }
    };
  });
});

after(async () => {
  await page?.close();
  fs.rmSync(folder, { recursive: true, force: true });
});

test("every way to read gives the same chunks, and the per-token callback the same text", async () => {
  const got = await page.run(async () => {
    const { engine, all, text, LONG } = window;
    const { Stream } = await import("/openai/core/streaming.mjs");
    const messages = [{ role: "user", content: "the people" }];
    const open = () => engine.chat.completions.create({ ...LONG, prompt: undefined, messages, max_tokens: 70, stream: true });
    const strip = (chunks) => JSON.stringify(chunks.map((chunk) => ({ ...chunk, id: 0, created: 0, timings: 0 })));
    const iterated = await all(await open());
    const [left, right] = (await open()).tee();
    const lines = await new Response((await open()).toReadableStream()).text();
    const chunks = {
      readable: await all((await open()).readable),
      bytes: lines.trimEnd().split("\n").map((line) => JSON.parse(line)),
      sdk: await all(Stream.fromReadableStream((await open()).toReadableStream(), new AbortController())),
      left: await all(left),
      right: await all(right),
    };
    let called = "";
    const prompt = await engine.tokenize(await engine.renderChat(messages), { addSpecial: false, parseSpecial: true });
    const onToken = (t) => (called += t.text);
    const result = await engine.generate({ ...LONG, prompt, max_tokens: 70 }, { onToken });
    const whole = await engine.chat.completions.create({ ...LONG, prompt: undefined, messages, max_tokens: 70 });
    return {
      same: Object.entries(chunks).map(([name, list]) => [name, strip(list) === strip(iterated)]),
      count: iterated.length,
      texts: [text(iterated), called, result.choices[0].text, whole.choices[0].message.content],
    };
  });
  for (const [name, same] of got.same) assert.ok(same, name);
  assert.equal(got.count, 72, "who speaks, seventy tokens, the end");
  assert.equal(new Set(got.texts).size, 1);
  assert.ok(got.texts[0].length > 0);
});

test("a stream in the page's own thread is the same, paused and left likewise", async () => {
  const got = await page.run(async () => {
    const { all, text, tick, LONG } = window;
    const expected = (await window.engine.completions.create(LONG)).choices[0].text;
    const engine = await window.load({ worker: false });
    const stream = await engine.completions.create({ ...LONG, stream: true });
    const stats = async () => engine.stats();
    await window.until(({ tokens }) => tokens.completion >= 64, engine);
    for (let i = 0; i < 20; i++) await tick();
    const paused = (await stats()).tokens.completion;
    const streamed = text(await all(stream));
    for await (const chunk of await engine.completions.create({ ...LONG, stream: true })) if (chunk) break;
    const { sequences, blocks } = await stats();
    await engine.dispose();
    return { same: streamed === expected, paused, aborted: sequences.aborted, held: blocks.held };
  });
  assert.deepEqual(got, { same: true, paused: 64, aborted: 1, held: 0 });
});

test("an unread stream pauses at 64 chunks, and goes on as it is read", async () => {
  const got = await page.run(async () => {
    const { engine, until, tick, all, LONG } = window;
    const completed = async () => (await engine.stats()).tokens.completion;
    const before = await completed();
    const stream = await engine.completions.create({ ...LONG, stream: true });
    await until(({ tokens }) => tokens.completion >= before + 64);
    // Others run to their end meanwhile; they are not paused, however long they are, and nothing of the stream is computed.
    let called = 0;
    const onToken = () => called++;
    await engine.generate({ ...LONG, max_tokens: 150 }, { onToken });
    const whole = await engine.completions.create({ ...LONG, max_tokens: 150 });
    const paused = (await completed()) - before - 300;
    const { ticks } = await engine.stats();
    for (let i = 0; i < 20; i++) await tick();
    const idle = (await engine.stats()).ticks - ticks;
    const reader = stream[Symbol.asyncIterator]();
    for (let i = 0; i < 10; i++) await reader.next();
    await until(({ tokens }) => tokens.completion - before - 300 >= 74);
    for (let i = 0; i < 20; i++) await tick();
    const after = (await completed()) - before - 300;
    const rest = await all({ [Symbol.asyncIterator]: () => reader });
    const total = (await completed()) - before - 300;
    return { called, whole: whole.usage.completion_tokens, paused, idle, after, rest: rest.length, total };
  });
  assert.deepEqual(got, { called: 150, whole: 150, paused: 64, idle: 0, after: 74, rest: 191, total: 200 });
});

test("a tee is paced by its faster branch, and keeps the rest for the slower one", async () => {
  const got = await page.run(async () => {
    const { engine, until, tick, all, text, LONG } = window;
    const alone = (await engine.completions.create(LONG)).choices[0].text;
    const before = (await engine.stats()).tokens.completion;
    const [fast, slow] = (await engine.completions.create({ ...LONG, stream: true })).tee();
    await until(({ tokens }) => tokens.completion >= before + 64);
    for (let i = 0; i < 20; i++) await tick();
    const paused = (await engine.stats()).tokens.completion - before;
    const first = text(await all(fast));
    return { paused, alone, first, second: text(await all(slow)) };
  });
  assert.equal(got.paused, 64);
  assert.equal(got.first, got.alone);
  assert.equal(got.second, got.alone);
});

test("a paused stream gives its blocks to others and goes on where it was", async () => {
  const got = await page.run(async () => {
    const { all, text, LONG } = window;
    const before = window.engine;
    const engine = (window.engine = await window.load({ kvCache: { blocks: 16, blockSize: 16 } }));
    try {
      const expected = (await engine.completions.create(LONG)).choices[0].text;
      const stream = await engine.completions.create({ ...LONG, stream: true });
      await window.until(({ tokens }) => tokens.completion >= 264);
      const other = await engine.completions.create({ ...LONG, max_tokens: 240 });
      const { preemptions } = await engine.stats();
      return { expected, preemptions, other: other.usage.completion_tokens, text: text(await all(stream)) };
    } finally {
      window.engine = before;
      await engine.dispose();
    }
  });
  assert.equal(got.other, 240);
  assert.equal(got.preemptions, 1);
  assert.equal(got.text, got.expected);
});

test("whatever ends a request early, in every phase: it settles at once, and the blocks are free at the next look", async () => {
  const got = await page.run(async () => {
    const { all, tick, LONG, ENDLESS } = window;
    const engine = await window.load({ maxRunning: 1, prefillChunk: 8, prefixCache: false, ...window.ROOM });
    const prompt = Array.from({ length: 30_000 }, (_, i) => 10 + ((i * 13) % 150));
    const idle = ({ sequences, blocks }) => [sequences.waiting, sequences.prefilling, sequences.decoding, sequences.preempted, blocks.held].join();
    const until = (condition) => window.until(condition, engine);
    // What is pending is told in this very turn, or in the next macrotask at the latest.
    const settled = (promise) => Promise.race([promise.then((v) => ["resolved", v], (e) => ["rejected", e]), tick().then(() => ["late"])]);
    const reason = { mine: true };
    const ways = {
      signal: { leave: (stream, controller) => controller.abort(reason), expect: (r) => r[0] === "rejected" && r[1] === reason },
      cancel: { leave: (stream) => stream.cancel(), expect: (r) => r[0] === "resolved" },
      controller: { leave: (stream) => stream.controller.abort(), expect: (r) => r[0] === "resolved" },
    };
    const phases = {
      queued: { body: ENDLESS, first: { ...ENDLESS, prompt }, when: ({ sequences }) => sequences.waiting === 1 },
      prefill: { body: { ...ENDLESS, prompt }, when: ({ sequences }) => sequences.prefilling === 1 },
      decode: { body: ENDLESS, when: ({ sequences }) => sequences.decoding === 1 },
    };
    const rows = [];
    for (const [phase, { body, first, when }] of Object.entries(phases)) {
      for (const [way, { leave, expect }] of Object.entries(ways)) {
        const blocker = first && (await engine.completions.create({ ...first, stream: true }));
        const controller = new AbortController();
        const stream = await engine.completions.create({ ...body, stream: true }, { signal: controller.signal });
        const reading = all(stream);
        reading.catch(() => undefined);
        const { steps } = await until(when);
        leave(stream, controller);
        const result = await settled(reading);
        await blocker?.cancel();
        rows.push([`${phase} by ${way}`, expect(result), idle(await engine.stats()), steps > 0 || phase === "queued"]);
      }
      // The same of a promise.
      const blocker = first && (await engine.completions.create({ ...first, stream: true }));
      const controller = new AbortController();
      const whole = engine.completions.create(body, { signal: controller.signal });
      whole.catch(() => undefined);
      await until(when);
      controller.abort(reason);
      const result = await settled(whole);
      await blocker?.cancel();
      rows.push([`${phase} of a promise`, result[0] === "rejected" && result[1] === reason, idle(await engine.stats()), true]);
    }
    const { aborted, finished } = (await engine.stats()).sequences;
    const alive = (await engine.completions.create({ ...LONG, max_tokens: 3 })).usage.completion_tokens;
    await engine.dispose();
    return { rows, aborted, finished, alive };
  });
  for (const [name, ok, idle, begun] of got.rows) assert.deepEqual([name, ok, idle, begun], [name, true, "0,0,0,0,0", true]);
  assert.equal(got.rows.length, 12);
  assert.equal(got.finished, 0);
  assert.equal(got.aborted, 16, "each once, and those that were in the way");
  assert.equal(got.alive, 3);
});

test("requests settle in the page while the Worker does not look", async () => {
  const got = await page.run(async () => {
    const { all, tick, LONG, ENDLESS } = window;
    const worker = new Worker("/busy.js", { type: "module" });
    const engine = await window.load({ worker, ...window.ROOM });
    const reason = new Error("mine");
    const controller = new AbortController();
    const { signal } = controller;
    const left = await engine.completions.create({ ...ENDLESS, stream: true });
    const cut = await engine.completions.create({ ...ENDLESS, stream: true }, { signal });
    const pending = [
      engine.generate(ENDLESS, { signal }),
      engine.completions.create({ ...LONG, stream: true }, { signal }),
      engine.score(Array(60_000).fill(5), { signal }),
    ];
    const state = new Int32Array(new SharedArrayBuffer(4));
    worker.postMessage({ spin: state.buffer });
    while (Atomics.load(state, 0) === 0) await tick();
    // From here on the Worker is deaf. Requests made now are never even received.
    pending.push(engine.completions.create({ ...LONG, stream: true }, { signal }), engine.generate(LONG, { signal }));
    const reads = [all(left), all(cut)];
    const outcomes = [...pending, ...reads].map((p) => p.then(() => "resolved", (e) => (e === reason ? "reason" : String(e))));
    await tick();
    left.controller.abort();
    controller.abort(reason);
    const late = tick().then(() => "late");
    const settled = await Promise.all(outcomes.map((o) => Promise.race([o, late])));
    const timeout = await engine.generate(LONG, { timeout: 5 }).catch((e) => e.code);
    Atomics.store(state, 0, 2);
    const { sequences, blocks } = await engine.stats();
    await engine.dispose();
    worker.terminate();
    return { settled, timeout, live: sequences.waiting + sequences.prefilling + sequences.decoding + sequences.preempted, held: blocks.held };
  });
  // The second stream may have been taken before the Worker went deaf: it is then resolved, and nobody reads it.
  assert.ok(["reason", "resolved"].includes(got.settled[1]));
  assert.deepEqual(got.settled.filter((_, i) => i !== 1), ["reason", "reason", "reason", "reason", "resolved", "reason"]);
  assert.equal(got.timeout, "request.deadline");
  assert.deepEqual([got.live, got.held], [0, 0]);
});

test("a load settles at once when its signal fires, in a Worker and in this thread", async () => {
  const got = await page.run(async () => {
    const { tick } = window;
    const reason = new Error("left");
    const outcomes = [];
    for (const worker of [true, false]) {
      for (const phase of ["before", "asked", "download", "upload"]) {
        const controller = new AbortController();
        const { signal } = controller;
        if (phase === "before") controller.abort(reason);
        let abort;
        const aborted = new Promise((resolve) => (abort = () => resolve(controller.abort(reason))));
        const onProgress = (p) => p.phase === phase && abort();
        const loading = window.Engine.load("/real.gguf", { backend: "cpu", worker, signal, onProgress }).then(
          (engine) => engine.dispose().then(() => "loaded"),
          (error) => (error === reason ? "reason" : String(error)),
        );
        if (phase === "asked") abort();
        if (phase !== "before") await aborted;
        outcomes.push([worker, phase, await Promise.race([loading, tick().then(() => "late")])]);
      }
    }
    const engine = await window.load({ worker: false });
    const alive = (await engine.generate({ prompt: "the", max_tokens: 1 })).usage.completion_tokens;
    await engine.dispose();
    return { outcomes, alive };
  });
  for (const [worker, phase, outcome] of got.outcomes) assert.equal(outcome, "reason", `worker ${worker}, ${phase}`);
  assert.equal(got.alive, 1);
});

test("a Worker whose script cannot be had is worker.failed, at load", async () => {
  await page.page.route("**/pkg/worker.js", (route) => route.abort());
  const code = await page.run(() => window.load({ worker: true }).then(() => "loaded", (error) => error.code));
  await page.page.unroute("**/pkg/worker.js");
  assert.equal(code, "worker.failed");
});

test("a Worker looks at its inbox many times within a long step", { timeout: 1_800_000 }, async (t) => {
  const round = () => page.run(async () => {
    const { inbox, inboxPrompt: prompt } = window;
    let going = true;
    const running = inbox.generate({ prompt, max_tokens: 1 }).finally(() => (going = false));
    const waits = [];
    while (going) {
      const asked = performance.now();
      await inbox.stats();
      waits.push(performance.now() - asked);
    }
    const { timings } = await running;
    waits.sort((a, b) => a - b);
    const [median, most, longest] = [0.5, 0.99, 1].map((share) => waits[Math.ceil(share * waits.length) - 1].toFixed(0));
    return { looks: waits.length, ms: timings.prefill, waits: `half waited ${median} ms at most, 99 of 100 ${most} ms, the longest ${longest} ms` };
  });
  await page.run(async () => {
    window.inbox = await window.Engine.load("/real.gguf", { backend: "cpu", prefixCache: false, prefillChunk: 512 });
    window.inboxPrompt = Array.from({ length: 512 }, (_, i) => 100 + ((i * 37) % 9000));
    // The engine learns the speed of the machine in its first step.
    await window.inbox.generate({ prompt: window.inboxPrompt.slice(0, 64), max_tokens: 1 });
  });
  // 50 ms between looks is the promise; a machine that others use as well may take twice that. Where it stood still as a whole for
  // a moment it says nothing of the engine, whose own doing would be the same in every round.
  const rounds = [];
  const kept = ({ looks, ms }) => looks >= ms / 100;
  while (rounds.length < 5 && !rounds.some(kept)) {
    const got = await round();
    t.diagnostic(`${got.looks} looks in ${Math.round(got.ms)} ms of prefill; ${got.waits}`);
    rounds.push(got);
  }
  await page.run(() => window.inbox.dispose());
  assert.ok(rounds.some(kept), rounds.map(({ looks, ms }) => `${looks} looks in ${Math.round(ms)} ms`).join(", "));
});

test("nothing went wrong in the page unseen", () => {
  assert.deepEqual(page.errors, []);
});
