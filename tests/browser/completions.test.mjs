/** completions, text and tokens, models and trace in a real page with a real (tiny) model. */
/* global engine, caught, all, MESSAGES, chat, complete */
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { openApiPage } from "./openai-page.mjs";
import { tinyEntry } from "./support.mjs";

const [{ ids: PROMPT, greedy_ids_f64: GREEDY }] = tinyEntry().prompts;
let page;

before(async () => {
  page = await openApiPage();
});

after(async () => {
  await page?.close();
});

test("halves of a character are never split: their texts are empty until it is whole", async () => {
  const got = await page.run(async () => {
    // Byte tokens of a two-byte character, forced one after the other.
    const whole = "é";
    const tokens = [...(await engine.tokenize(`x${whole}`, { addSpecial: false }))];
    return { tokens, text: await engine.detokenize(tokens), count: (await engine.tokenize("x", { addSpecial: false })).length };
  });
  assert.equal(got.text.trim(), "xé");
  const pieces = got.tokens.slice(got.count);
  if (pieces.length < 2) return assert.fail("the tiny model has é as one token: choose another character");
  // A prompt that ends in the first byte, and a bias that makes the second the only choice.
  const made = await page.run(async ([start, next, text]) => {
    const body = { prompt: [...(await engine.tokenize(text)), start], max_tokens: 2, temperature: 0, logit_bias: { [next]: 100 }, logprobs: 1 };
    const chunks = await all(await engine.completions.create({ ...body, stream: true }));
    return { chunks: chunks.map((c) => c.choices[0]), whole: await engine.completions.create(body) };
  }, [pieces[0], pieces[1], "x"]);
  // The prompt's half is the prompt's: a lone continuation byte becomes U+FFFD, never half of anything.
  const text = made.chunks.map((c) => c.text).join("");
  assert.equal(text, made.whole.choices[0].text);
  assert.equal(text.length > 0 && !/[\uD800-\uDFFF]/.test(text), true);
  assert.match(made.whole.choices[0].logprobs.tokens[0], /^bytes:\\x[0-9a-f]{2}$/);
});

test("with P prompts and n choices, choice i of prompt p has index p * n + i, streamed or not", async () => {
  const got = await page.run(async () => {
    const body = { prompt: ["the people", "of the", "the"], n: 2, temperature: 1, seed: 21, max_tokens: 6 };
    const single = [];
    for (const prompt of body.prompt) single.push((await complete({ ...body, prompt })).choices.map((c) => c.text));
    const chunks = await all(await complete({ ...body, stream: true, stream_options: { include_usage: true } }));
    return { whole: await complete(body), single, chunks };
  });
  const { whole, single, chunks } = got;
  assert.match(whole.id, /^cmpl-/);
  assert.equal(whole.object, "text_completion");
  assert.equal(whole.model, "tiny");
  assert.deepEqual(whole.choices.map((c) => c.index), [0, 1, 2, 3, 4, 5]);
  assert.deepEqual(whole.choices.map((c) => c.text), single.flat());
  assert.ok(whole.choices.every((c) => c.logprobs === null && ["stop", "length"].includes(c.finish_reason)));
  const last = chunks.pop();
  assert.deepEqual(last.choices, []);
  assert.equal(last.usage.completion_tokens, whole.usage.completion_tokens);
  assert.equal(last.usage.total_tokens, whole.usage.total_tokens);
  assert.ok(chunks.every((c) => c.usage === null && c.object === "text_completion" && /^cmpl-/.test(c.id)));
  for (const choice of whole.choices) {
    const own = chunks.map((c) => c.choices[0]).filter((c) => c.index === choice.index);
    assert.equal(own.map((c) => c.text).join(""), choice.text);
    assert.deepEqual(own.at(-1), { index: choice.index, text: "", finish_reason: choice.finish_reason, logprobs: null });
    assert.ok(own.slice(0, -1).every((c) => c.finish_reason === null));
  }
});

test("prompts come as text, texts, ids, or lists of ids", async () => {
  const got = await page.run(async (ids) => {
    const texts = async (prompt) => (await complete({ prompt, max_tokens: 4 })).choices.map((c) => c.text);
    const bad = async (prompt) => (await caught(complete({ prompt }))).code;
    return {
      ids: await texts(ids),
      lists: await texts([ids, ids]),
      one: await texts("the"),
      many: await texts(["the", "the"]),
      reference: await engine.detokenize((await engine.generate({ prompt: ids, temperature: 0, max_tokens: 4 })).choices[0].tokens),
      bad: await Promise.all([[], 5, {}, null, ["a", 1], [1, "a"], [[1], "a"], [1.5], [-1], [[]], [[999999]], [NaN]].map(bad)),
    };
  }, PROMPT);
  assert.equal(got.ids[0].trim(), got.reference.trim());
  assert.deepEqual(got.lists, [got.ids[0], got.ids[0]]);
  assert.deepEqual(got.many, [got.one[0], got.one[0]]);
  assert.deepEqual(got.bad, [...Array(9).fill("request.invalid"), "request.empty_prompt", "request.invalid", "request.invalid"]);
});

test("completions logprobs are columns over the text, echoed prompt and all", async () => {
  const got = await page.run(async () => {
    const body = { prompt: "the people", logprobs: 2, max_tokens: 6 };
    const echoed = await complete({ ...body, echo: true });
    const tokens = await engine.tokenize("the people");
    const { choices } = await engine.generate({ prompt: tokens, temperature: 0, max_tokens: 6 });
    const scored = await engine.score([...tokens, ...choices[0].tokens], { topLogprobs: 2 });
    return {
      plain: (await complete(body)).choices[0],
      echoed,
      bare: (await complete({ ...body, logprobs: null, echo: true })).choices[0],
      chunks: (await all(await complete({ ...body, echo: true, stream: true }))).map((c) => c.choices[0]),
      scored: [...scored.logprobs],
      prompt: tokens.length,
      only: (await complete({ ...body, echo: true, max_tokens: 0 })).choices[0],
    };
  });
  const { plain, echoed, bare, chunks, scored, prompt, only } = got;
  assert.deepEqual(Object.keys(plain.logprobs).sort(), ["text_offset", "token_logprobs", "tokens", "top_logprobs"]);
  for (const column of Object.values(plain.logprobs)) assert.equal(column.length, 6);
  plain.logprobs.tokens.forEach((token, i) => {
    const at = plain.logprobs.text_offset[i];
    if (!token.startsWith("bytes:")) assert.equal(plain.text.slice(at, at + token.length), token);
    assert.equal(plain.logprobs.top_logprobs[i][token], plain.logprobs.token_logprobs[i]);
    assert.equal(Object.keys(plain.logprobs.top_logprobs[i]).length, 2);
  });
  const [choice] = echoed.choices;
  assert.equal(choice.text, `the people${plain.text}`);
  assert.equal(bare.text, choice.text);
  assert.equal(bare.logprobs, null);
  assert.equal(echoed.usage.completion_tokens, 6);
  assert.equal(echoed.usage.prompt_tokens, prompt);
  for (const column of Object.values(choice.logprobs)) assert.equal(column.length, prompt + 6);
  assert.deepEqual(choice.logprobs.tokens.slice(prompt), plain.logprobs.tokens);
  assert.deepEqual(choice.logprobs.text_offset.slice(prompt), plain.logprobs.text_offset.map((at) => at + "the people".length));
  assert.ok(Number.isNaN(choice.logprobs.token_logprobs[0]), "nothing comes before the first token");
  assert.deepEqual(choice.logprobs.top_logprobs[0], {});
  choice.logprobs.token_logprobs.slice(1).forEach((value, i) => assert.ok(Math.abs(value - scored[i + 1]) < 1e-4));
  const offsets = choice.logprobs.text_offset;
  assert.deepEqual(offsets, [...offsets].sort((a, b) => a - b));
  assert.equal(offsets[0], 0);
  // Streamed: the prompt in a chunk of its own, then the same columns piece by piece.
  assert.equal(chunks[0].text, "the people");
  assert.equal(chunks.map((c) => c.text).join(""), choice.text);
  const joined = { text_offset: [], token_logprobs: [], tokens: [], top_logprobs: [] };
  for (const { logprobs } of chunks) for (const name of Object.keys(joined)) joined[name].push(...(logprobs?.[name] ?? []));
  assert.deepEqual(joined, choice.logprobs);
  assert.equal(only.text, "the people");
  assert.equal(only.logprobs.tokens.length, prompt);
});

test("models, embeddings and trace", async () => {
  const got = await page.run(async () => {
    await chat();
    const trace = await engine.trace({ last: 4 });
    return {
      list: await engine.models.list(),
      card: await engine.models.retrieve("tiny"),
      other: await caught(engine.models.retrieve("x")),
      wrong: await caught(engine.models.retrieve(5)),
      info: engine.info,
      embeddings: [
        await caught(engine.embeddings.create({ input: "a" })),
        await caught(engine.embeddings.create({ input: [[1, 2], [3]], encoding_format: "base64", dimensions: 4, user: "u", model: "tiny" })),
        await caught(engine.embeddings.create({ input: 5 })),
        await caught(engine.embeddings.create({ input: "a", encoding_format: "hex" })),
        await caught(engine.embeddings.create({ input: "a", dimensions: 0 })),
        await caught(engine.embeddings.create({ input: "a", pooling: "mean" })),
      ].map((e) => [e.code, e.details.field]),
      trace,
      none: await engine.trace({ last: 0 }),
      usual: (await engine.trace()).length,
      badTrace: [await caught(engine.trace({ last: -1 })), await caught(engine.trace({ last: 1.5 })), await caught(engine.trace({ first: 1 }))].map((e) => e.code),
      steps: (await engine.stats()).steps,
    };
  });
  const { modelId, contextLength, memory } = got.info;
  assert.equal(got.list.object, "list");
  assert.deepEqual(got.list.data, [got.card]);
  assert.deepEqual({ ...got.card, created: 0 }, { id: modelId, object: "model", created: 0, owned_by: "fireside", context_window: contextLength, bytes: memory.weightBytes });
  assert.ok(Math.abs(got.card.created - Date.now() / 1000) < 3600);
  assert.deepEqual([got.other.code, got.wrong.code], ["request.unsupported", "request.invalid"]);
  assert.deepEqual(got.embeddings, [
    ["request.unsupported", "embeddings"],
    ["request.unsupported", "embeddings"],
    ["request.invalid", "input"],
    ["request.invalid", "encoding_format"],
    ["request.invalid", "dimensions"],
    ["request.unsupported", "pooling"],
  ]);
  assert.deepEqual(got.badTrace, ["request.invalid", "request.invalid", "request.unsupported"]);
  assert.deepEqual(got.none, []);
  assert.equal(got.usual, Math.min(64, got.steps));
  assert.equal(got.trace.length, 4);
  assert.deepEqual(got.trace.map((s) => s.step), [0, 1, 2, 3].map((i) => got.trace[0].step + i));
  for (const step of got.trace) {
    assert.deepEqual(Object.keys(step).sort(), ["at", "blocks", "planned", "step", "transitions"]);
    assert.deepEqual(Object.keys(step.blocks).sort(), ["allocated", "cached", "copied", "freed"]);
    for (const planned of step.planned) assert.deepEqual([typeof planned.sequence, planned.state, planned.tokens], ["string", "decoding", 1]);
  }
  const last = got.trace.at(-1);
  assert.deepEqual(last.transitions.map(({ from, event, to }) => [from, event, to]).at(-1), ["decoding", "token_decoded", "finished"]);
});

test("what ends an answer is counted and listed, and not in its text", async () => {
  const got = await page.run(async () => {
    const long = { prompt: "the people", temperature: 0, max_tokens: 24, logit_bias: { 297: -100, 298: -100, 299: -100 } };
    const { text } = (await engine.generate(long)).choices[0];
    // Some letters that the answer has, from its middle.
    const at = Array.from(text.slice(6)).findIndex((c, i) => /[a-z]/.test(c) && /[a-z]/.test(text[7 + i])) + 6;
    const stop = text.slice(at, at + 2);
    const events = [];
    const stopped = await engine.generate({ ...long, stop: ["never there", stop] }, { onToken: (t) => events.push(t) });
    const ended = { prompt: "the people", max_tokens: 5, temperature: 0, logit_bias: { 299: 100 } };
    return {
      text,
      stop,
      stopped,
      tokens: [...stopped.choices[0].tokens],
      events,
      streamed: await all(await engine.completions.create({ ...long, stop, stream: true })),
      first: text.indexOf(stop),
      eos: await engine.generate(ended),
      eosTokens: [...(await engine.generate(ended)).choices[0].tokens],
      eosChat: await engine.chat.completions.create({ ...ended, prompt: null, messages: MESSAGES, logprobs: true }),
    };
  });
  const [choice] = got.stopped.choices;
  assert.equal(got.stop.length, 2);
  assert.equal(choice.text, got.text.slice(0, got.first));
  assert.equal(choice.finish_reason, "stop");
  assert.equal(got.stopped.usage.completion_tokens, got.tokens.length);
  assert.ok(got.tokens.length < 24);
  assert.equal(got.events.map((e) => e.text).join(""), choice.text);
  assert.deepEqual(got.events.map((e) => [e.choice, e.position, e.token]), got.tokens.map((token, i) => [0, i, token]));
  assert.deepEqual(got.events.map((e) => e.finish_reason), [...Array(got.tokens.length - 1).fill(undefined), "stop"]);
  assert.equal(got.streamed.map((c) => c.choices[0].text).join(""), choice.text);
  assert.equal(got.streamed.at(-1).choices[0].finish_reason, "stop");
  assert.deepEqual([got.eos.choices[0].text, got.eosTokens, got.eos.usage.completion_tokens, got.eos.choices[0].finish_reason], ["", [299], 1, "stop"]);
  const { message, logprobs } = got.eosChat.choices[0];
  assert.deepEqual([message.content, logprobs.content.length, logprobs.content[0].bytes], ["", 1, null]);
  assert.equal(logprobs.content[0].token, "<|im_end|>", "the end has a name, and no bytes of the text");
});

test("text to tokens and back, with special tokens or without", async () => {
  const got = await page.run(async () => {
    const ids = async (text, options) => [...(await engine.tokenize(text, options))];
    return {
      plain: await ids("the", null),
      bare: await ids("the", { addSpecial: false }),
      parsed: await ids("<|im_end|>", { addSpecial: false, parseSpecial: true }),
      literal: (await ids("<|im_end|>", { addSpecial: false })).length,
      hidden: await engine.detokenize([299, ...(await ids("the", { addSpecial: false }))]),
      shown: await engine.detokenize([299], { special: true }),
      dispose: engine[Symbol.asyncDispose] === undefined ? "function" : typeof engine[Symbol.asyncDispose],
    };
  });
  assert.deepEqual(got.plain.slice(-got.bare.length), got.bare);
  assert.deepEqual(got.parsed, [299]);
  assert.ok(got.literal > 1);
  assert.equal(got.hidden.trim(), "the");
  assert.equal(got.shown, "<|im_end|>");
  assert.equal(got.dispose, "function");
});

test("greedy tokens through completions are the reference's", async () => {
  const text = await page.run(async (ids) => {
    const { choices } = await complete({ prompt: ids, max_tokens: 16 });
    return choices[0].text;
  }, PROMPT);
  const expected = await page.run(async (ids) => {
    const [all, head] = [await engine.detokenize([...ids[0], ...ids[1]]), await engine.detokenize(ids[0])];
    return all.slice(head.length);
  }, [PROMPT, GREEDY.slice(0, 16)]);
  assert.equal(text, expected);
});

test("nothing went wrong in the page unseen", () => {
  assert.deepEqual(page.errors, []);
});
