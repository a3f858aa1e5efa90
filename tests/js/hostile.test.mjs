/** Values of the wrong kind from callers, over a scripted engine: every one is refused as a FiresideError, or has its effect. What the engine judges is tested elsewhere. */
import assert from "node:assert/strict";
import { test } from "node:test";
import vm from "node:vm";
import { serve } from "../../scripts/lib/server.mjs";
import { fakeStorage } from "../tools/opfs.mjs";
import { doneEvent, importJs } from "./support.mjs";

const FILE = new Blob(["GGUF"]);
const LONE = "Hello 🙂".slice(0, 7);
const coded = (code, field) => (error) => error.name === "FiresideError" && error.code === code && (field === undefined || error.details.field === field);

async function loaded(script = {}, options = {}) {
  const { Engine, models, preflight } = await importJs("index", script);
  return { Engine, models, preflight, engine: await Engine.load(FILE, { worker: false, ...options }) };
}

/** A script that answers each request and keeps it. */
function answering() {
  const requests = [];
  const submit = (request, prompt, onEvent) => {
    requests.push(request);
    setTimeout(() => onEvent("done", doneEvent()));
    return requests.length;
  };
  return { requests, submit };
}

function revoked() {
  const { proxy, revoke } = Proxy.revocable({}, {});
  revoke();
  return proxy;
}

function fail() {
  throw new TypeError("from the caller");
}

const throwing = (field) => Object.defineProperty({}, field, { get: fail, enumerable: true });

/** Objects whose fields no option reads: each would be without effect. */
const NOT_PLAIN = [
  AbortSignal.abort(),
  new Headers(),
  new Map([["signal", 1]]),
  new Set(),
  new Date(),
  /x/,
  new Number(1),
  Object.create({ timeout: 1 }),
  Object.create(Object.create(null)),
  new (class Options {})(),
  revoked(),
];

test("half a pair becomes U+FFFD wherever text crosses", async () => {
  const script = answering();
  let modelId;
  script.load = (_source, options) => ({ modelId } = options);
  const { engine } = await loaded(script, { modelId: LONE });
  assert.equal(modelId, "Hello \ufffd");
  await engine.generate({ prompt: LONE, stop: [LONE, "\\ud83d", "🙂"] });
  await engine.chat.completions.create({ messages: [{ role: "user", content: LONE }] });
  await engine.completions.create({ prompt: LONE });
  const [plain, chat, text] = script.requests;
  assert.equal(plain.prompt, "Hello \ufffd");
  assert.deepEqual(plain.stop, ["Hello \ufffd", "\\ud83d", "🙂"]);
  assert.equal(chat.messages[0].content, "Hello \ufffd");
  assert.equal(text.prompt, "Hello \ufffd");
  const rendered = await engine.renderChat([{ role: "user", content: LONE }], { templateArgs: { [LONE]: LONE } });
  assert.equal(rendered, '[{"role":"user","content":"Hello \ufffd"}]{"templateArgs":{"Hello \ufffd":"Hello \ufffd"}}');
  await engine.dispose();
});

test("what is no plain object is no options, no request and no field of one", async () => {
  const { requests, submit } = answering();
  const { Engine, models, engine } = await loaded({ submit });
  for (const value of NOT_PLAIN) {
    await assert.rejects(Engine.load("http://localhost/x.gguf", value), coded("load.invalid"));
    await assert.rejects(models.pull("http://localhost/x.gguf", value), coded("load.invalid"));
    await assert.rejects(Engine.load("http://localhost/x.gguf", { kvCache: value }), coded("load.invalid"));
    await assert.rejects(engine.generate({ prompt: "a" }, value), coded("request.invalid"));
    await assert.rejects(engine.generate(value), coded("request.invalid"));
    await assert.rejects(engine.chat.completions.create({ messages: [] }, value), coded("request.invalid"));
    await assert.rejects(engine.completions.create(value), coded("request.invalid"));
    await assert.rejects(engine.tokenize("a", value), coded("request.invalid"));
  }
  for (const value of [new Map([[5, 1]]), new Set(), /x/, new String("x"), new Uint8Array(2), Object.create({ 5: 1 })]) {
    await assert.rejects(engine.generate({ prompt: "a", logit_bias: value }), coded("request.invalid", "logit_bias"));
  }
  assert.equal(requests.length, 0);
  const other = vm.runInNewContext("({ prompt: 'a', logit_bias: { 5: 1 } })");
  await engine.generate(other, Object.assign(Object.create(null), { priority: 1 }));
  assert.deepEqual(requests[0].logit_bias, { 5: 1 });
  assert.equal(requests[0].priority, 1);
  await engine.dispose();
});

test("whatever a value throws while it is read is told as a fault of the request or load", async () => {
  const { requests, submit } = answering();
  const { Engine, models, preflight, engine } = await loaded({ submit });
  const detached = new Uint32Array(2);
  structuredClone(detached, { transfer: [detached.buffer] });
  const bytes = new Uint8Array(2);
  structuredClone(bytes, { transfer: [bytes.buffer] });
  for (const ids of [{ length: 2 ** 40 }, detached, bytes, revoked(), throwing("length"), Object.defineProperty({ length: 1 }, 0, { get: fail })]) {
    await assert.rejects(engine.detokenize(ids), coded("request.invalid"));
    await assert.rejects(engine.score(ids), coded("request.invalid"));
    await assert.rejects(engine.generate({ prompt: ids }), coded("request.invalid"));
  }
  const anonymous = { constructor: { name: Symbol("x") } };
  const deep = {};
  for (let i = 0, at = deep; i < 200_000; i++) at = at.a = {};
  const cycle = {};
  cycle.cycle = cycle;
  const toJSON = () => undefined;
  const cases = [anonymous, deep, cycle, { toJSON }, { toJSON: fail }, throwing("stop"), { stop: revoked() }, { stop: { toJSON } }];
  for (const [i, value] of cases.entries()) {
    await assert.rejects(engine.generate(value), coded("request.invalid"), `case ${i}`);
    await assert.rejects(engine.generate({ prompt: "a", x: [value] }), coded("request.invalid"), `case ${i}, nested`);
  }
  await assert.rejects(engine.generate({ toJSON: () => "x" }), coded("request.invalid"), "text is no request");
  const told = async (value, pattern) => assert.rejects(engine.generate({ prompt: "a", x: value }), (error) => coded("request.invalid")(error) && pattern.test(error.message));
  await told(cycle, /cycles/);
  await told(deep, /less deeply/);
  await told({ toJSON: fail }, /from the caller/);
  await assert.rejects(engine.renderChat(Object.assign([], { toJSON })), coded("request.invalid"));
  await assert.rejects(engine.chat.completions.create({ messages: Object.assign([], { toJSON }) }), coded("request.invalid"));
  await assert.rejects(engine.chat.completions.create({ messages: revoked() }), coded("request.invalid"));
  await assert.rejects(engine.completions.create({ prompt: [throwing("length")] }), coded("request.invalid"));
  await assert.rejects(engine.tokenize(anonymous), coded("request.invalid"));
  assert.equal(requests.length, 0);
  for (const model of [revoked(), throwing("stored"), [revoked()], anonymous]) {
    await assert.rejects(Engine.load(model), coded("load.invalid"));
    await assert.rejects(models.pull(model), coded("load.invalid"));
    await assert.rejects(preflight(model), coded("load.invalid"));
  }
  for (const options of [throwing("signal"), { integrity: revoked() }, { headers: throwing("x") }]) {
    await assert.rejects(Engine.load("http://localhost/x.gguf", options), coded("load.invalid"));
    await assert.rejects(models.pull("http://localhost/x.gguf", options), coded("load.invalid"));
  }
  await engine.dispose();
});

test("headers, addresses and numbers that no load can honour are refused by the page, by name", async () => {
  const { Engine, models } = await importJs("index");
  const url = "http://localhost:1/x.gguf";
  for (const headers of [{ "bad header": "x" }, { x: "a\nb" }, { "": "x" }, { x: "€" }, new Map([["x", "y"]]), new Headers({ range: "bytes=0-" })]) {
    await assert.rejects(Engine.load(url, { headers }), (error) => coded("load.invalid")(error) && error.details.field.startsWith("headers"));
    await assert.rejects(models.pull(url, { headers }), coded("load.invalid"));
  }
  await assert.rejects(Engine.load("http://user:secret@localhost:1/x.gguf"), (error) => coded("load.invalid", "model")(error) && !error.message.includes("secret"));
  await assert.rejects(models.pull(url, { id: "x".repeat(1025) }), coded("load.invalid", "id"));
  await assert.rejects(Engine.load(url, { maxQueued: 0 }), coded("load.invalid", "maxQueued"));
  await assert.rejects(Engine.load(url, { kvCache: { blockSize: 1025 } }), coded("load.invalid", "kvCache.blockSize"));
  await assert.rejects(Engine.load(url, { threads: 2 }), coded("load.unsupported", "threads"));
  await assert.rejects(Engine.load(url, { precision: "fast" }), coded("load.unsupported", "precision"));
  const { checkSource } = await importJs("load-options");
  assert.deepEqual(checkSource(url, new Headers({ Authorization: "x" })), { files: [{ url }], headers: { authorization: "x" } });
});

test("objects of a frame's classes are taken by their shape", async () => {
  const { engine } = await loaded({ submit: () => 1 });
  const controller = new AbortController();
  const frames = Object.assign(Object.create({ addEventListener: (...args) => controller.signal.addEventListener(...args), removeEventListener() {} }), {});
  Object.defineProperties(frames, { aborted: { get: () => controller.signal.aborted }, reason: { get: () => controller.signal.reason }, throwIfAborted: { value: () => controller.signal.throwIfAborted() } });
  const pending = engine.generate({ prompt: "a" }, { signal: frames });
  controller.abort(new Error("left"));
  await assert.rejects(pending, { message: "left" });
  const { checkSource } = await importJs("load-options");
  const tagged = (tag, fields) => Object.create({ [Symbol.toStringTag]: tag, ...fields });
  const file = tagged("File", {});
  assert.equal(checkSource(file).files[0].blob, file);
  assert.deepEqual(checkSource(tagged("URL", { toString: () => "http://localhost/x" })).files, [{ url: "http://localhost/x" }]);
  await engine.dispose();
});

test("a body's priority and a text format's further fields are refused, the option has its effect", async () => {
  const { requests, submit } = answering();
  const { engine } = await loaded({ submit });
  await assert.rejects(engine.generate({ prompt: "a", priority: 3 }), coded("request.unsupported", "priority"));
  const format = { type: "text", x: 1 };
  await assert.rejects(engine.generate({ prompt: "a", response_format: format }), coded("request.unsupported", "x"));
  await assert.rejects(engine.chat.completions.create({ messages: [], response_format: format }), coded("request.unsupported", "x"));
  await engine.generate({ prompt: "a", response_format: { type: "text" } }, { priority: 3 });
  assert.deepEqual(requests.map(({ priority }) => priority), [3]);
  await engine.dispose();
});

test("an echo hears signal and timeout while the engine is busy, and asks it for nothing that is not told", async () => {
  const { Request, within } = await importJs("request");
  const { completionCreate } = await importJs("openai/completions");
  const calls = [];
  const client = { call: (op) => (calls.push(op), new Promise(() => undefined)), run: (_parts, limits) => Promise.resolve([limits]) };
  const create = completionCreate(() => client, () => ({ modelId: "m" }));
  const controller = new AbortController();
  const aborted = create({ prompt: "a", echo: true, logprobs: 1 }, { signal: controller.signal });
  controller.abort(new Error("left"));
  await assert.rejects(aborted, { message: "left" });
  await assert.rejects(create({ prompt: [1], echo: true }, { timeout: 20 }), coded("request.deadline"));
  assert.deepEqual(calls, ["tokenize", "detokenize"]);
  await create({ prompt: "a", echo: true }).catch(() => undefined);
  assert.deepEqual(calls, ["tokenize", "detokenize"]);
  // What the echo took is off the timeout of what follows it.
  const late = { timeout: 60_000, since: performance.now() - 60_000 };
  await assert.rejects(within(late, new Promise(() => undefined)), coded("request.deadline"));
  const wire = { submit: () => new Promise(() => undefined), abort: () => undefined, read: () => undefined, forget: () => undefined };
  const error = await new Promise((failed) => new Request(wire, 1, [{}], { done: () => undefined, failed }, late));
  assert.equal(error.details.timeout, 60_000);
});

test("a name of a foreign lock is passed over", async (t) => {
  const before = Object.getOwnPropertyDescriptor(globalThis, "navigator");
  t.after(() => (before ? Object.defineProperty(globalThis, "navigator", before) : delete globalThis.navigator));
  const names = ["%zz", "null", "5", "{}", encodeURIComponent(JSON.stringify({ id: "a", tab: "b", since: 1 }))];
  const locks = { query: () => Promise.resolve({ held: names.map((name) => ({ name: `fireside:running:${name}` })) }) };
  Object.defineProperty(globalThis, "navigator", { value: { locks }, configurable: true });
  const { running } = await importJs("storage/locks");
  assert.deepEqual(await running(), [{ id: "a", tab: "b", since: 1 }]);
});

test("a model that is removed while its header is read is not found", async (t) => {
  const before = Object.getOwnPropertyDescriptor(globalThis, "navigator");
  t.after(() => (before ? Object.defineProperty(globalThis, "navigator", before) : delete globalThis.navigator));
  const disk = fakeStorage();
  const script = {};
  const { models } = await importJs("index", script);
  await models.pull(FILE, { id: "x" });
  script.survey = () => {
    throw { code: "source.failed", message: "The file could not be read.", details: {} };
  };
  await assert.rejects(models.inspect("x"), coded("source.failed"));
  script.survey = () => {
    disk.system.root.children.clear();
    throw { code: "source.failed", message: "The file could not be read.", details: {} };
  };
  await assert.rejects(models.inspect("x"), coded("storage.not_found"));
});

test("the server answers a path that no file can have, and lives", async () => {
  const server = await serve({});
  assert.equal((await fetch(`${server.url}/a%00b`)).status, 400);
  assert.equal((await fetch(`${server.url}/${"a".repeat(5000)}`)).status, 404);
  assert.equal((await fetch(`${server.url}/index.html`)).status, 200);
  server.close();
});
