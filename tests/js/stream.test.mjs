/** Streams over a real port with a scripted engine: every way to read and to leave, credit for what was read, and the OpenAI SDK as a reader. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import v8 from "node:v8";
import vm from "node:vm";
import { Stream as SdkStream } from "openai/core/streaming";
import { doneEvent, importJs } from "./support.mjs";

const MESSAGES = [{ role: "user", content: "hi" }];
const coded = (code) => (error) => error.name === "FiresideError" && error.code === code;
const token = (position, text = `${position} `) => JSON.stringify({ choice: 0, position, token: position + 1, text });

/** An engine whose requests end as the test says: `send` gives tokens, `finish` the result. */
async function scripted() {
  const requests = [];
  const script = {
    submit(request, _prompt, onEvent, paced) {
      const self = { request, paced, read: 0, aborted: null, sent: 0, onEvent };
      self.send = (count) => {
        for (let i = 0; i < count; i++) onEvent("token", token(self.sent++));
      };
      self.finish = () => onEvent("done", doneEvent(Array.from({ length: self.sent }, (_, i) => `${i} `).join(""), []));
      requests.push(self);
      return requests.length - 1;
    },
    read: (id, count) => (requests[id].read += count),
    aborted: (id, why) => (requests[id].aborted = why),
  };
  const { Engine } = await importJs("index", script);
  const engine = await Engine.load(new Blob(["GGUF"]), { worker: false });
  const open = (options, body = {}) => engine.chat.completions.create({ messages: MESSAGES, stream: true, ...body }, options);
  return { engine, requests, open };
}

/** Whatever was sent before, either way, has been handled: messages of a port come in order. */
const settled = async (engine) => {
  await engine.stats();
  await engine.stats();
};

const texts = (chunks) => chunks.flatMap((c) => c.choices.map(({ delta }) => delta.content ?? "")).join("");
async function all(iterable) {
  const out = [];
  for await (const item of iterable) out.push(item);
  return out;
}

test("the iterator, readable, bytes, and both branches of a tee give the same chunks; the SDK reads the bytes", async () => {
  const { engine, requests, open } = await scripted();
  const strip = (chunks) => chunks.map(({ id, created, ...rest }) => (assert.match(id, /^chatcmpl-/), assert.ok(created > 0), rest));
  const ways = {
    iterator: (stream) => all(stream),
    readable: (stream) => all(stream.readable),
    bytes: async (stream) => {
      const text = await new Response(stream.toReadableStream()).text();
      assert.ok(text.endsWith("}\n"));
      return text.trimEnd().split("\n").map((line) => JSON.parse(line));
    },
    sdk: (stream) => all(SdkStream.fromReadableStream(stream.toReadableStream(), new AbortController())),
    tee: async (stream) => {
      const [a, b] = stream.tee();
      const [left, right] = await Promise.all([all(a), all(b.readable)]);
      assert.deepEqual(left, right);
      return left;
    },
    teeOfTee: async (stream) => {
      const [a, b] = stream.tee();
      const [c, d] = b.tee();
      const [one, two, three] = await Promise.all([all(a), all(c), all(d)]);
      assert.deepEqual(one, two);
      assert.deepEqual(one, three);
      return three;
    },
  };
  const results = {};
  for (const [name, read] of Object.entries(ways)) {
    const stream = await open();
    const reading = read(stream);
    const request = requests.at(-1);
    request.send(3);
    await settled(engine);
    request.send(2);
    request.finish();
    results[name] = strip(await reading);
  }
  const expected = results.iterator;
  assert.equal(texts(expected), "0 1 2 3 4 ");
  assert.deepEqual(expected[0].choices[0].delta, { role: "assistant", content: "" });
  assert.deepEqual(expected.at(-1).choices, [{ index: 0, delta: {}, finish_reason: "stop", logprobs: null }]);
  assert.equal(expected.at(-1).timings.seed, 7);
  for (const [name, chunks] of Object.entries(results)) assert.deepEqual(chunks, expected, name);
  await engine.dispose();
});

test("a stream is read once: what comes second is told so", async () => {
  const { engine, requests, open } = await scripted();
  const stream = await open();
  requests[0].send(1);
  requests[0].finish();
  assert.equal(texts(await all(stream)), "0 ");
  await assert.rejects(all(stream), coded("stream.consumed"));
  await assert.rejects(all(stream.readable), coded("stream.consumed"));
  await assert.rejects(all(stream.toReadableStream()), coded("stream.consumed"));
  for (const branch of stream.tee()) await assert.rejects(all(branch), coded("stream.consumed"));
  await engine.dispose();
});

test("leaving early in any way ends the request quietly, whoever waits", async () => {
  const { engine, requests, open } = await scripted();
  const ways = {
    break: async (stream) => {
      for await (const chunk of stream) if (chunk) break;
    },
    throw: async (stream) => {
      const mine = new Error("mine");
      await assert.rejects(
        (async () => {
          for await (const chunk of stream) if (chunk) throw mine;
        })(),
        (error) => error === mine,
      );
    },
    return: async (stream) => {
      const iterator = stream[Symbol.asyncIterator]();
      await iterator.next();
      await iterator.next();
      const waiting = iterator.next();
      assert.deepEqual(await iterator.return(), { done: true, value: undefined });
      assert.deepEqual(await waiting, { done: true, value: undefined });
      assert.deepEqual(await iterator.next(), { done: true, value: undefined });
    },
    cancel: async (stream) => {
      await stream.cancel();
      assert.deepEqual(await all(stream), []);
    },
    controller: async (stream) => {
      const reading = all(stream);
      await settled(engine);
      stream.controller.abort();
      assert.equal(texts(await reading), "0 ");
    },
    readable: async (stream) => {
      const reader = stream.readable.getReader();
      await reader.read();
      await reader.cancel();
    },
    unreadReadable: async (stream) => {
      await stream.readable.cancel();
    },
    bytes: async (stream) => {
      await stream.toReadableStream().cancel();
    },
    bothBranches: async (stream) => {
      const [a, b] = stream.tee();
      for await (const chunk of a) if (chunk) break;
      assert.equal(requests.at(-1).aborted, null, "the other branch goes on");
      assert.equal((await b[Symbol.asyncIterator]().next()).done, false);
      await b.cancel();
    },
    controllerOfTee: async (stream) => {
      const [a, b] = stream.tee();
      const reading = all(a);
      await settled(engine);
      b.controller.abort();
      assert.equal(texts(await reading), "0 ");
      assert.deepEqual(await all(b), []);
    },
  };
  for (const [name, leave] of Object.entries(ways)) {
    const stream = await open();
    requests.at(-1).send(1);
    await leave(stream);
    await settled(engine);
    assert.equal(requests.at(-1).aborted, "cancelled", name);
  }
  await engine.dispose();
});

test("a signal makes whoever reads throw its reason, by identity, at once and once", async () => {
  const { engine, requests, open } = await scripted();
  const reason = { not: "even an error" };
  for (const read of [(s) => s[Symbol.asyncIterator](), (s) => s.readable.getReader(), (s) => s.tee()[0][Symbol.asyncIterator]()]) {
    const controller = new AbortController();
    const stream = await open({ signal: controller.signal });
    const reader = read(stream);
    const next = () => (reader.next ? reader.next() : reader.read());
    requests.at(-1).send(1);
    await next();
    await next();
    const waiting = next();
    controller.abort(reason);
    await assert.rejects(waiting, (error) => error === reason);
    if (reader.next) assert.deepEqual(await next(), { done: true, value: undefined });
    await settled(engine);
    assert.equal(requests.at(-1).aborted, "cancelled");
  }
  // What waits to be read is dropped, and the reason stays for the reader that comes later.
  const controller = new AbortController();
  const stream = await open({ signal: controller.signal });
  requests.at(-1).send(5);
  await settled(engine);
  controller.abort(reason);
  await assert.rejects(all(stream), (error) => error === reason);
  await engine.dispose();
});

test("a signal that fires before the engine has taken the request rejects the call; one that had fired asks nothing", async () => {
  const { engine, requests, open } = await scripted();
  const controller = new AbortController();
  const pending = open({ signal: controller.signal });
  const reason = new Error("too late");
  controller.abort(reason);
  await assert.rejects(pending, (error) => error === reason);
  await settled(engine);
  assert.equal(requests[0].aborted, "cancelled");
  await assert.rejects(open({ signal: controller.signal }), (error) => error === reason);
  await assert.rejects(engine.chat.completions.create({ messages: MESSAGES }, { signal: controller.signal }), (error) => error === reason);
  await settled(engine);
  assert.equal(requests.length, 1);
  await engine.dispose();
});

test("the engine hears of what was read, no more: of a tee, by its faster branch", async () => {
  const { engine, requests, open } = await scripted();
  const stream = await open();
  const [request] = requests;
  assert.equal(request.paced, true);
  request.send(10);
  await settled(engine);
  assert.equal(request.read, 0, "nothing was read");
  void stream.readable;
  await settled(engine);
  assert.equal(request.read, 0, "asking for the readable reads nothing");
  const [fast, slow] = stream.tee().map((branch) => branch[Symbol.asyncIterator]());
  const take = async (reader, count) => {
    for (let i = 0; i < count; i++) await reader.next();
    await settled(engine);
  };
  await take(fast, 5);
  assert.equal(request.read, 4, "the first chunk says who speaks, and comes with the first token");
  await take(slow, 3);
  assert.equal(request.read, 4, "the slower branch reads what was kept for it");
  await take(slow, 4);
  assert.equal(request.read, 6, "now it is the faster one");

  // A whole answer and a callback are never paced.
  const whole = engine.chat.completions.create({ messages: MESSAGES });
  const called = engine.generate({ prompt: "a" }, { onToken: () => undefined });
  await settled(engine);
  assert.deepEqual(requests.slice(1).map((r) => r.paced), [false, false]);
  requests.slice(1).forEach((r) => r.finish());
  await Promise.all([whole, called]);
  await engine.dispose();
});

test("an error of the engine comes after what was delivered before it", async () => {
  const { engine, requests, open } = await scripted();
  const stream = await open();
  requests[0].send(2);
  requests[0].onEvent("error", JSON.stringify({ code: "model.non_finite", message: "gone", details: {} }));
  const seen = [];
  await assert.rejects(
    (async () => {
      for await (const chunk of stream) seen.push(chunk);
    })(),
    coded("model.non_finite"),
  );
  assert.equal(texts(seen), "0 1 ");
  const late = await open();
  const reading = assert.rejects(all(late), coded("engine.disposed"));
  await engine.dispose();
  await reading;
});

test("a timeout ends a stream with request.deadline", async () => {
  const { engine, requests, open } = await scripted();
  // Late or early: the stream is refused as it is opened, or ends as it is read.
  const read = async () => all(await open({ timeout: 20 }));
  await assert.rejects(read(), coded("request.deadline"));
  await settled(engine);
  assert.equal(requests[0].aborted, "deadline");
  await engine.dispose();
});

test("prompts of one call are taken together or not at all", async () => {
  const aborted = [];
  let count = 0;
  const script = {
    submit() {
      if (++count === 3) throw { code: "request.queue_full", message: "full", details: {} };
      return count;
    },
    aborted: (id) => aborted.push(id),
  };
  const { Engine } = await importJs("index", script);
  const engine = await Engine.load(new Blob(["GGUF"]), { worker: false });
  for (const stream of [false, true]) {
    count = 0;
    aborted.length = 0;
    await assert.rejects(engine.completions.create({ prompt: ["a", "b", "c", "d"], stream }), coded("request.queue_full"));
    assert.deepEqual([count, aborted], [3, [1, 2]]);
  }
  await engine.dispose();
});

test("a stream that nobody holds any more is cancelled; one that is being waited for is not", async () => {
  v8.setFlagsFromString("--expose-gc");
  const gc = vm.runInNewContext("gc");
  const { engine, requests, open } = await scripted();
  const waiting = (await open())[Symbol.asyncIterator]().next();
  await (async () => {
    await open();
    requests[1].send(3);
  })();
  for (let i = 0; i < 1000 && requests[1].aborted === null; i++) {
    gc();
    await sleep(10);
  }
  assert.equal(requests[1].aborted, "cancelled");
  assert.equal(requests[0].aborted, null);
  requests[0].send(1);
  assert.equal((await waiting).done, false);
  await engine.dispose();
});
