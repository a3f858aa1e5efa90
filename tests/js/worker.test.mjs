/** The Worker's side of the conversation and the page's: messages that are not ours pass by, unknown ones get an answer, silence is told. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { doneEvent, importJs } from "./support.mjs";

const coded = (code) => (error) => error.name === "FiresideError" && error.code === code;
const FILE = new Blob(["GGUF"]);

/** A stand-in for the browser's Worker: the page's half of the port is what matters here. */
class FakeWorker extends EventTarget {
  sent = [];
  postMessage(message, transfer) {
    this.sent.push({ message, transfer });
  }
  terminate() {
    this.ended = true;
  }
}

/** Imports the package where `Worker` is a class that does `made` with each new one. */
async function withWorker(made, script = {}) {
  globalThis.Worker = class extends FakeWorker {
    constructor(url, options) {
      super();
      made(this, url, options);
    }
  };
  return importJs("index", script);
}

test("the Worker is a module of the package's own, and its failure to start is an error at once", async (t) => {
  t.after(() => delete globalThis.Worker);
  let asked;
  const { Engine } = await withWorker((worker, url, options) => {
    asked = { url: String(url), options };
    setTimeout(() => worker.dispatchEvent(new Event("error")));
  });
  await assert.rejects(Engine.load(FILE), (error) => coded("worker.failed")(error) && error.message.includes("worker: false"));
  assert.match(asked.url, /\/worker\.js$/);
  assert.deepEqual(asked.options, { type: "module" });
});

test("a script on another origin is an error that names the worker option", async (t) => {
  t.after(() => delete globalThis.Worker);
  const { Engine } = await withWorker(() => {
    throw new DOMException("Script cannot be accessed.", "SecurityError");
  });
  await assert.rejects(Engine.load(FILE), (error) => coded("worker.cross_origin")(error) && error.message.includes("`worker` option"));
});

test("where no Worker can be made, worker: true is refused by name and the default runs in this thread", async () => {
  const { Engine } = await importJs("index", {});
  await assert.rejects(Engine.load(FILE, { worker: true }), (error) => coded("load.unsupported")(error) && error.message.includes("worker: false"));
  const engine = await Engine.load(FILE);
  assert.equal(engine.info.modelId, "scripted");
  await engine.dispose();
});

test("a given Worker that breaks before it answers is an error, afterwards its owner's affair; it is never ended", async (t) => {
  t.after(() => delete globalThis.Worker);
  const { Engine } = await withWorker(() => undefined, { submit: (_request, _prompt, onEvent) => (onEvent("done", doneEvent()), 1) });
  const broken = new globalThis.Worker("a");
  const loading = Engine.load(FILE, { worker: broken });
  broken.dispatchEvent(new Event("error"));
  await assert.rejects(loading, coded("worker.failed"));

  const given = new globalThis.Worker("b");
  let listeners = 0;
  for (const [name, by] of [["addEventListener", 1], ["removeEventListener", -1]]) {
    given[name] = (...args) => (EventTarget.prototype[name].apply(given, args), (listeners += by));
  }
  const { port1, port2 } = new MessageChannel();
  given.postMessage = ({ port }) => {
    // A host of another thread: what the client sends is passed on to a real one.
    port1.onmessage = ({ data }) => port.postMessage(data);
    port.onmessage = ({ data }) => port1.postMessage(data);
  };
  const { serve } = await importJs("host", { submit: (_request, _prompt, onEvent) => (onEvent("done", doneEvent()), 1) });
  serve(port2);
  const engine = await Engine.load(FILE, { worker: given });
  assert.equal(listeners, 0, "nothing of ours stays on it");
  given.dispatchEvent(new Event("error"));
  assert.equal((await engine.generate({ prompt: "a" })).choices[0].text, "hi");
  await engine.dispose();
  port1.close();
  assert.equal(given.ended, undefined);
});

test("dispose settles when a given Worker was ended by its owner", async (t) => {
  t.after(() => delete globalThis.Worker);
  const { Engine } = await withWorker(() => undefined);
  const given = new globalThis.Worker("a");
  const { serve } = await importJs("host", {});
  const ended = new Promise((resolve) => {
    given.postMessage = ({ port }) => {
      const { port1, port2 } = new MessageChannel();
      port1.onmessage = ({ data }) => port.postMessage(data);
      port.onmessage = ({ data }) => port1.postMessage(data);
      given.kill = () => (port1.close(), (port.onmessage = null));
      serve(port2);
      resolve();
    };
  });
  const engine = await Engine.load(FILE, { worker: given });
  await ended;
  given.kill();
  await engine.dispose();
  assert.equal(given.ended, undefined);
});

test("a given Worker that says nothing is warned of", async (t) => {
  t.after(() => delete globalThis.Worker);
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const { Engine } = await withWorker(() => undefined);
  const warned = [];
  const controller = new AbortController();
  const given = new globalThis.Worker("a");
  const loading = Engine.load(FILE, { worker: given, onWarning: (w) => warned.push(w.code), signal: controller.signal });
  t.mock.timers.tick(9_999);
  assert.deepEqual(warned, []);
  t.mock.timers.tick(1);
  assert.deepEqual(warned, ["worker.silent"]);
  controller.abort();
  await assert.rejects(loading, { name: "AbortError" });
  t.mock.timers.tick(10_000);
});

test("the host answers what it does not know, and ignores what asks for no answer", async () => {
  const { serve } = await importJs("host", {});
  const { port1, port2 } = new MessageChannel();
  const got = [];
  const three = new Promise((resolve) => {
    port1.onmessage = ({ data }) => got.push(data) === 3 && resolve();
  });
  serve(port2);
  for (const message of [null, 5, "call", {}, { t: "toString" }, { t: "abort" }, { t: "call", id: "1" }]) port1.postMessage(message);
  port1.postMessage({ t: "nonsense", id: 7 });
  port1.postMessage({ t: "call", id: 8, op: "stats", args: null });
  await three;
  assert.deepEqual(got.map(({ t: kind, id, error }) => [kind, id, error?.code]), [
    ["hello", undefined, undefined],
    ["error", 7, "worker.bad_message"],
    ["error", 8, "engine.disposed"],
  ]);
  port1.close();
});

test("only our own message to a Worker is taken for a connection", async () => {
  const { isConnect, isToClient } = await importJs("messages");
  const { port1 } = new MessageChannel();
  assert.equal(isConnect({ fireside: "connect", port: port1 }), true);
  for (const other of [null, "connect", {}, { fireside: "connect" }, { fireside: "connect", port: {} }, { fireside: "other", port: port1 }]) {
    assert.equal(isConnect(other), false);
  }
  assert.equal(isToClient({ t: "error", id: 1, error: { code: "a.b", message: "", details: {} } }), true);
  for (const other of [null, { t: "error", id: 1 }, { t: "token", rid: "1", value: {} }, { t: "crashed", error: {} }, { t: "constructor" }]) {
    assert.equal(isToClient(other), false);
  }
  port1.close();
});

test("the page takes an unknown message for a warning of different versions", async (t) => {
  t.after(() => delete globalThis.Worker);
  let port;
  const { Engine } = await withWorker((worker) => (worker.postMessage = (message) => ({ port } = message)));
  const warning = new Promise((resolve) => {
    Engine.load(FILE, { onWarning: resolve }).catch(() => undefined);
  });
  port.postMessage({ t: "from the future" });
  assert.equal((await warning).code, "engine.unknown_event");
  port.close();
});

test("persistent storage is asked for once and only when wanted; a refusal is a warning and stops nothing", async (t) => {
  const before = Object.getOwnPropertyDescriptor(globalThis, "navigator");
  t.after(() => (before ? Object.defineProperty(globalThis, "navigator", before) : delete globalThis.navigator));
  let asked = 0;
  let answer = () => Promise.resolve(true);
  const storage = { persist: () => (asked++, answer()) };
  Object.defineProperty(globalThis, "navigator", { value: { storage }, configurable: true });
  const { Engine } = await importJs("index", {});
  const load = async (options) => {
    const engine = await Engine.load(FILE, { worker: false, ...options });
    await new Promise((resolve) => setTimeout(resolve));
    const codes = engine.info.warnings.map(({ code }) => code);
    await engine.dispose();
    return codes;
  };
  assert.deepEqual(await load({}), []);
  assert.deepEqual(await load({ persist: false }), []);
  assert.equal(asked, 0);
  assert.deepEqual(await load({ persist: true }), []);
  assert.equal(asked, 1);
  answer = () => Promise.resolve(false);
  assert.deepEqual(await load({ persist: true }), ["storage.not_persisted"]);
  answer = () => Promise.reject(new Error("no"));
  assert.deepEqual(await load({ persist: true }), ["storage.not_persisted"]);
  // The person has not answered yet: loading does not wait for it.
  answer = () => new Promise(() => undefined);
  assert.deepEqual(await load({ persist: true }), []);
  Object.defineProperty(globalThis, "navigator", { value: {}, configurable: true });
  assert.deepEqual(await load({ persist: true }), ["storage.not_persisted"]);
  await assert.rejects(Engine.load(FILE, { persist: 1 }), coded("load.invalid"));
});
