/** chat.completions in a real page with a real (tiny) model: shapes, streams, logprobs, and what is refused. */
/* global engine, caught, all, MESSAGES, chat, complete */
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { openApiPage } from "./openai-page.mjs";
import { tinyEntry } from "./support.mjs";

const [{ ids: PROMPT }] = tinyEntry().prompts;
let page;

before(async () => {
  page = await openApiPage();
});

after(async () => {
  await page?.close();
});

test("a chat answer has OpenAI's shape", async () => {
  const { answer, info, again } = await page.run(async () => ({ answer: await chat({ seed: 5 }), again: await chat({ seed: 5, model: "tiny" }), info: engine.info }));
  assert.match(answer.id, /^chatcmpl-[A-Za-z0-9]{20,}$/);
  assert.notEqual(answer.id, again.id);
  assert.deepEqual(answer.choices, again.choices);
  assert.equal(answer.object, "chat.completion");
  assert.ok(Math.abs(answer.created - Date.now() / 1000) < 3600);
  assert.equal(answer.model, "tiny");
  assert.equal(answer.model, info.modelId);
  assert.match(answer.system_fingerprint, /^fp_[0-9a-f]+$/);
  assert.equal(answer.system_fingerprint, again.system_fingerprint);
  const [choice] = answer.choices;
  assert.deepEqual(Object.keys(choice).sort(), ["finish_reason", "index", "logprobs", "message"]);
  assert.deepEqual({ ...choice, message: { ...choice.message, content: "" } }, {
    index: 0,
    message: { role: "assistant", content: "", refusal: null },
    finish_reason: "length",
    logprobs: null,
  });
  assert.ok(choice.message.content.length > 0);
  const { usage, timings } = answer;
  assert.equal(usage.completion_tokens, 8);
  assert.equal(usage.total_tokens, usage.prompt_tokens + 8);
  assert.equal(usage.prompt_tokens_details.cached_tokens, 0);
  assert.equal(timings.seed, 5);
  for (const ms of ["queued", "prefill", "decode", "time_to_first_token"]) assert.ok(timings[ms] >= 0, ms);
});

test("a chat's prompt is what the template renders: the same tokens as generate gives for it", async () => {
  const got = await page.run(async () => {
    const text = await engine.renderChat(MESSAGES);
    const tokens = await engine.tokenize(text, { addSpecial: false, parseSpecial: true });
    const direct = await engine.generate({ prompt: tokens, temperature: 0, max_tokens: 8 });
    return { direct: direct.choices[0].text, chat: await chat(), count: tokens.length };
  });
  assert.equal(got.chat.choices[0].message.content, got.direct);
  assert.equal(got.chat.usage.prompt_tokens, got.count);
});

test("streamed and whole answers are the same, choice by choice, with the usage in one more chunk", async () => {
  const got = await page.run(async () => {
    const body = { n: 3, temperature: 1, seed: 11, logprobs: true, top_logprobs: 2 };
    return { whole: await chat(body), chunks: await all(await chat({ ...body, stream: true, stream_options: { include_usage: true } })) };
  });
  const { whole, chunks } = got;
  const last = chunks.pop();
  for (const chunk of chunks) {
    assert.equal(chunk.usage, null);
    assert.equal("timings" in chunk, false);
    assert.equal(chunk.choices.length, 1);
    for (const field of ["id", "created", "model", "system_fingerprint", "object"]) assert.equal(chunk[field], chunks[0][field]);
  }
  assert.match(chunks[0].id, /^chatcmpl-/);
  assert.equal(chunks[0].object, "chat.completion.chunk");
  assert.equal(chunks[0].system_fingerprint, whole.system_fingerprint);
  assert.deepEqual(last.choices, []);
  // The second of the two found its prompt in the cache.
  assert.deepEqual({ ...last.usage, prompt_tokens_details: null }, { ...whole.usage, prompt_tokens_details: null });
  assert.equal(last.timings.seed, 11);
  for (const choice of whole.choices) {
    const own = chunks.map((c) => c.choices[0]).filter((c) => c.index === choice.index);
    assert.deepEqual(own[0], { index: choice.index, delta: { role: "assistant", content: "" }, finish_reason: null, logprobs: null });
    assert.deepEqual(own.at(-1), { index: choice.index, delta: {}, finish_reason: choice.finish_reason, logprobs: null });
    const middle = own.slice(1, -1);
    assert.ok(middle.every((c) => c.finish_reason === null && !("role" in c.delta) && c.logprobs.content.length === 1));
    assert.equal(middle.map((c) => c.delta.content).join(""), choice.message.content);
    assert.deepEqual(middle.flatMap((c) => c.logprobs.content), choice.logprobs.content);
  }
  assert.equal(new Set(whole.choices.map((c) => c.message.content)).size > 1, true, "choices differ");
});

test("without include_usage there is no usage, and the last chunk has the timings", async () => {
  const chunks = await page.run(async () => all(await chat({ stream: true, seed: 3 })));
  assert.ok(chunks.every((chunk) => !("usage" in chunk)));
  assert.equal(chunks.at(-1).timings.seed, 3);
  assert.equal(chunks.at(-1).choices[0].finish_reason, "length");
  assert.ok(chunks.slice(0, -1).every((chunk) => !("timings" in chunk)));
});

test("nothing to generate is an answer too", async () => {
  const got = await page.run(async () => ({
    whole: await chat({ max_tokens: 0, n: 2 }),
    chunks: await all(await chat({ max_tokens: 0, n: 2, stream: true })),
    text: await complete({ max_tokens: 0 }),
  }));
  assert.deepEqual(got.whole.choices.map((c) => [c.message.content, c.finish_reason]), [["", "length"], ["", "length"]]);
  assert.deepEqual(got.chunks.map((c) => [c.choices[0].index, c.choices[0].delta.role, c.choices[0].finish_reason]), [
    [0, "assistant", null],
    [0, undefined, "length"],
    [1, "assistant", null],
    [1, undefined, "length"],
  ]);
  assert.equal(got.text.choices[0].text, "");
  assert.equal(got.text.usage.completion_tokens, 0);
});

test("chat logprobs: the log-softmax of the unmodified logits, whatever the sampling; bytes make the text", async () => {
  const got = await page.run(async () => {
    const plain = await chat({ logprobs: true, top_logprobs: 20 });
    const none = await chat({ logprobs: true });
    const text = await engine.renderChat(MESSAGES);
    const prompt = await engine.tokenize(text, { addSpecial: false, parseSpecial: true });
    const tokens = [...(await engine.generate({ prompt, temperature: 0, max_tokens: 8 })).choices[0].tokens];
    const scored = await engine.score([...prompt, ...tokens]);
    const biased = await chat({ logprobs: true, logit_bias: { [tokens[0]]: -100 }, max_tokens: 1 });
    return { plain: plain.choices[0], none: none.choices[0], scored: [...scored.logprobs.slice(prompt.length)], biased: biased.choices[0] };
  });
  const { content, refusal } = got.plain.logprobs;
  assert.equal(refusal, null);
  assert.equal(content.length, 8);
  content.forEach((token, i) => {
    assert.deepEqual(Object.keys(token).sort(), ["bytes", "logprob", "token", "top_logprobs"]);
    assert.ok(Math.abs(token.logprob - got.scored[i]) < 1e-4);
    assert.equal(token.top_logprobs.length, 20);
    const { token: best, logprob, bytes } = token.top_logprobs[0];
    assert.deepEqual([best, logprob, bytes], [token.token, token.logprob, token.bytes], "greedy");
    const values = token.top_logprobs.map((t) => t.logprob);
    assert.deepEqual(values, [...values].sort((a, b) => b - a));
  });
  const bytes = content.flatMap((token) => token.bytes ?? []);
  assert.equal(new TextDecoder().decode(Uint8Array.from(bytes)), got.plain.message.content);
  assert.deepEqual(got.none.logprobs.content.map((t) => [t.token, t.top_logprobs.length]), content.map((t) => [t.token, 0]));
  // What was made unlikely is not drawn, and its reported likelihood is still the model's.
  const second = content[0].top_logprobs[1];
  assert.deepEqual([got.biased.logprobs.content[0].token, got.biased.logprobs.content[0].logprob], [second.token, second.logprob]);
});

test("max_tokens and max_completion_tokens are one limit", async () => {
  const got = await page.run(async () => ({
    both: (await chat({ max_tokens: 3, max_completion_tokens: 3 })).usage.completion_tokens,
    newer: (await chat({ max_tokens: null, max_completion_tokens: 2 })).usage.completion_tokens,
    differ: await caught(chat({ max_tokens: 3, max_completion_tokens: 2 })),
    plain: await caught(complete({ max_completion_tokens: 2 })),
  }));
  assert.equal(got.both, 3);
  assert.equal(got.newer, 2);
  assert.equal(got.differ.code, "request.invalid");
  assert.equal(got.plain.code, "request.unsupported");
});

test("null and undefined mean absent, in every field of every body and in options", async () => {
  const got = await page.run(async (ids) => {
    const empty = (...names) => Object.fromEntries(names.flatMap((name, i) => [[name, i % 2 ? null : undefined]]));
    const sampling = ["temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "stop", "n", "response_format", "adapter"];
    const extra = [...sampling, "model", "stream", "stream_options", "user", "metadata", "store", "unknown_to_all"];
    const options = { signal: null, timeout: undefined, priority: null };
    const results = [];
    for (const flip of [false, true]) {
      const nothing = (...names) => (flip ? empty("", ...names) : empty(...names));
      results.push([
        (await engine.chat.completions.create({ ...nothing(...extra, "max_completion_tokens", "logprobs", "top_logprobs", "tools", "tool_choice", "parallel_tool_calls"), messages: [{ role: "user", content: "the people", name: null, tool_calls: undefined }], seed: 4, max_tokens: 5 }, options)).choices,
        (await engine.completions.create({ ...nothing(...extra, "logprobs", "echo"), prompt: ids, seed: 4, max_tokens: 5 }, options)).choices,
        (await engine.generate({ ...nothing(...sampling, "logprobs"), prompt: ids, seed: 4, max_tokens: 5 }, { ...options, onToken: null })).choices[0].text,
      ]);
    }
    await engine.generate({ prompt: ids, max_tokens: 1 }, null);
    await engine.tokenize("a", null);
    await engine.detokenize([5], { special: null });
    await engine.renderChat(MESSAGES, { tools: null, addGenerationPrompt: undefined, templateArgs: null });
    await engine.score(ids, { topLogprobs: null });
    await engine.trace(null);
    return { results, bare: (await engine.chat.completions.create({ messages: MESSAGES, seed: 4, max_tokens: 5 })).choices };
  }, PROMPT);
  assert.deepEqual(got.results[0], got.results[1]);
  assert.deepEqual(got.results[0][0], got.bare);
  assert.equal(got.results[0][1][0].text, got.results[0][2]);
});

test("user, metadata and store: false are accepted and mean nothing", async () => {
  const got = await page.run(async () => {
    const fields = { user: "me", metadata: { a: "b" }, store: false };
    return [await chat(), await chat(fields), await complete(), await complete(fields)].map(({ choices }) => choices);
  });
  assert.deepEqual(got[0], got[1]);
  assert.deepEqual(got[2], got[3]);
});

test("what cannot be honoured is refused by name, before any work", async () => {
  const got = await page.run(async () => {
    const before = await engine.stats();
    const code = async (promise) => {
      const { code: got, details, ours, value } = await caught(promise);
      return value ? "accepted" : `${got} ${details.field ?? ""} ${ours}`;
    };
    const tools = [{ type: "function", function: { name: "f", parameters: {} } }];
    const rows = {};
    const chats = {
      unknown: { max_token: 3 },
      model: { model: "gpt-4o" },
      store: { store: true },
      audio: { modalities: ["audio"] },
      adapter: { adapter: "x" },
      json: { response_format: { type: "json_object" } },
      schema: { response_format: { type: "json_schema", json_schema: { schema: {} } } },
      regex: { response_format: { type: "regex", pattern: "a" } },
      grammar: { response_format: { type: "grammar", grammar: "a" } },
      tools: { tools },
      auto: { tools, tool_choice: "auto" },
      required: { tools, tool_choice: "required" },
      named: { tools, tool_choice: { type: "function", function: { name: "f" } } },
      parallel: { tools, tool_choice: "none", parallel_tool_calls: true },
      image: { messages: [{ role: "user", content: [{ type: "image_url", image_url: { url: "x" } }] }] },
      refusal: { messages: [{ role: "assistant", content: "a", refusal: "no" }] },
      prompt: { prompt: "a" },
      streamOption: { stream: true, stream_options: { include_obfuscation: true } },
    };
    const wrong = {
      stream: { stream: "yes" },
      options: { stream_options: { include_usage: true } },
      usage: { stream: true, stream_options: { include_usage: 1 } },
      messages: { messages: "hi" },
      empty: { messages: [] },
      message: { messages: [null] },
      role: { messages: [{ role: "robot", content: "a" }] },
      content: { messages: [{ role: "user", content: 5 }] },
      name: { messages: [{ role: "user", content: "a", name: 5 }] },
      calls: { messages: [{ role: "assistant", content: "a", tool_calls: "x" }] },
      logprobs: { logprobs: 2 },
      topAlone: { top_logprobs: 2 },
      topMany: { logprobs: true, top_logprobs: 21 },
      topHalf: { logprobs: true, top_logprobs: 0.5 },
      tool: { tools: [{ type: "function" }], tool_choice: "none" },
      toolList: { tools: {}, tool_choice: "none" },
      user: { user: 5 },
      metadata: { metadata: "x" },
      storeType: { store: "no" },
      modelType: { model: 5 },
      max: { max_tokens: -1 },
      maxHalf: { max_completion_tokens: 1.5 },
      nan: { temperature: NaN },
      infinite: { top_p: Infinity },
      temperature: { temperature: "warm" },
      seed: { seed: -1 },
      stop: { stop: [""] },
      n: { n: 0 },
      bias: { logit_bias: { x: 1 } },
      cycle: { metadata: null, tools: (() => { const a = [{ type: "function", function: { name: "f" } }]; a[0].function.parameters = { a }; return a; })(), tool_choice: "none" },
    };
    for (const [name, body] of Object.entries(chats)) rows[name] = await code(chat(body));
    const invalid = {};
    for (const [name, body] of Object.entries(wrong)) invalid[name] = await code(chat(body));
    const completions = {
      suffix: await code(complete({ suffix: "x" })),
      best: await code(complete({ best_of: 2 })),
      messages: await code(complete({ messages: [] })),
      tools: await code(complete({ tools })),
      model: await code(complete({ model: "other" })),
    };
    const completionsInvalid = {
      logprobs: await code(complete({ logprobs: true })),
      many: await code(complete({ logprobs: 21 })),
      echo: await code(complete({ echo: 1 })),
      none: await code(engine.completions.create({})),
      body: await code(engine.completions.create("a")),
      nothing: await code(engine.chat.completions.create()),
    };
    const options = [await code(chat({}, { headers: {} })), await code(chat({}, { maxRetries: 2 })), await code(chat({}, { timeout: "1" })), await code(chat({}, { signal: {} }))];
    const after = await engine.stats();
    return { rows, invalid, completions, completionsInvalid, options, steps: after.steps - before.steps };
  });
  for (const [name, row] of Object.entries({ ...got.rows, ...got.completions })) assert.match(row, /^request\.unsupported \S+ true$/, `${name}: ${row}`);
  for (const [name, row] of Object.entries({ ...got.invalid, ...got.completionsInvalid })) assert.match(row, /^request\.invalid .*true$/, `${name}: ${row}`);
  assert.deepEqual(got.options.map((row) => row.split(" ")[0]), ["request.unsupported", "request.unsupported", "request.invalid", "request.invalid"]);
  assert.equal(got.steps, 0);
  assert.match(got.rows.model, / model /);
  assert.match(got.rows.tools, / tools /);
});

test("tools are shown to the template, by renderChat and by a request that asks for no calls; a file without a template gets ChatML and a warning", async () => {
  const got = await page.run(async () => {
    const { Engine } = await import("/pkg/index.js");
    const bytes = new Uint8Array(await (await fetch("/tiny.gguf")).arrayBuffer());
    const find = (text) => {
      const key = new TextEncoder().encode(text);
      return bytes.findIndex((_, i) => key.every((byte, k) => bytes[i + k] === byte));
    };
    const at = find("tokenizer.chat_template");
    const start = at + "tokenizer.chat_template".length + 12;
    const length = new DataView(bytes.buffer).getUint32(start - 8, true);
    // The file's own template gives way to one of the same length that writes the tools down.
    const template = "{% for m in messages %}[{{ m.role }}] {{ m.content }} {{ m.name }}{% endfor %}{% if tools %} TOOLS {{ tools | tojson }}{% endif %}";
    bytes.set(new TextEncoder().encode(template.padEnd(length)), start);
    const load = (warnings = []) => Engine.load(new Blob([bytes]), { backend: "cpu", onWarning: (w) => warnings.push(w.code) });
    const tools = [{ type: "function", function: { name: "look_up", parameters: { type: "object" } } }];
    const own = await load();
    const rendered = await own.renderChat(MESSAGES, { tools });
    const answer = await own.chat.completions.create({ messages: MESSAGES, tools, tool_choice: "none", max_tokens: 1 });
    const count = (await own.tokenize(rendered, { addSpecial: false, parseSpecial: true })).length;
    const conversation = await own.renderChat([{ role: "developer", content: [{ type: "text", text: "a" }, { type: "text", text: "b" }] }, { role: "user", content: "c", name: "ann" }]);
    await own.dispose();
    // Without its key there is no template at all.
    bytes[at] = "T".charCodeAt(0);
    const warnings = [];
    const none = await load(warnings);
    const chatml = await none.renderChat(MESSAGES);
    const works = await none.chat.completions.create({ messages: MESSAGES, max_tokens: 2 });
    const info = none.info.warnings.map((w) => w.code);
    await none.dispose();
    return { rendered, prompt: answer.usage.prompt_tokens, count, conversation, warnings, info, chatml, works: works.object };
  });
  assert.match(got.rendered, /TOOLS \[\{"type": "function", "function": \{"name": "look_up"/);
  assert.equal(got.prompt, got.count);
  assert.match(got.conversation, /^\[system\] ab\s+\[user\] c ann/);
  assert.deepEqual(got.warnings, ["chat.no_template"]);
  assert.deepEqual(got.info, ["chat.no_template"]);
  assert.equal(got.chatml, "<|im_start|>user\nthe people<|im_end|>\n<|im_start|>assistant\n");
  assert.equal(got.works, "chat.completion");
});

test("conversations are rendered whole; an answer without calls is what tool_choice none asks for", async () => {
  const got = await page.run(async () => {
    const tools = [{ type: "function", function: { name: "look_up", description: "Looks a word up", parameters: { type: "object" } } }];
    const list = await caught(engine.renderChat(MESSAGES, { tools }));
    const none = await chat({ tools, tool_choice: "none", parallel_tool_calls: false, response_format: { type: "text" } });
    const conversation = [
      { role: "developer", content: "Be brief." },
      { role: "user", content: [{ type: "text", text: "the " }, { type: "text", text: "people" }], name: "ann" },
      { role: "assistant", content: "of", refusal: null },
      { role: "user", content: "the" },
    ];
    return {
      list,
      none: none.choices[0],
      empty: (await chat({ tools: [] })).choices[0].message.content,
      plain: (await chat()).choices[0].message.content,
      rendered: await engine.renderChat(conversation),
      usage: (await engine.chat.completions.create({ messages: conversation, max_tokens: 1 })).usage.prompt_tokens,
      open: await engine.renderChat(MESSAGES, { addGenerationPrompt: false }),
      closed: await engine.renderChat(MESSAGES),
    };
  });
  assert.equal(typeof got.list.value, "string");
  assert.equal(got.none.finish_reason, "length");
  assert.equal(got.empty, got.plain);
  for (const text of ["Be brief.", "the people"]) assert.ok(got.rendered.includes(text), got.rendered);
  assert.ok(got.usage > 0);
  assert.ok(got.closed.startsWith(got.open) && got.closed.length > got.open.length);
});

test("a prompt that fills the context is refused with both numbers, streamed or not", async () => {
  const got = await page.run(async () => {
    const { contextLength } = engine.info;
    const text = "the people ".repeat(contextLength);
    const errors = [
      await caught(complete({ prompt: Array(contextLength).fill(5) })),
      await caught(complete({ prompt: Array(contextLength).fill(5), stream: true })),
      await caught(engine.chat.completions.create({ messages: [{ role: "user", content: text }], stream: true })),
      await caught(engine.generate({ prompt: text })),
    ];
    const fits = await complete({ prompt: Array(contextLength - 1).fill(5), max_tokens: 9, logit_bias: { 297: -100, 298: -100, 299: -100 } });
    return { contextLength, errors, fits };
  });
  for (const { code, details } of got.errors) {
    assert.equal(code, "request.context_exceeded");
    assert.equal(details.context_length, got.contextLength);
    assert.ok(details.prompt_tokens >= got.contextLength);
  }
  assert.equal(got.fits.choices[0].finish_reason, "length");
  assert.equal(got.fits.usage.completion_tokens, 1);
});

test("choice i draws from (seed, i); a seed that is not given is random, and reported", async () => {
  const got = await page.run(async () => {
    const body = { temperature: 1, max_tokens: 12 };
    const [one, three] = [await chat({ ...body, seed: 9 }), await chat({ ...body, seed: 9, n: 3 })];
    const drawn = [await chat(body), await chat(body)];
    const again = await chat({ ...body, seed: drawn[0].timings.seed });
    const text = (answer) => answer.choices[0].message.content;
    return { one: text(one), three: text(three), seeds: drawn.map((d) => d.timings.seed), first: text(drawn[0]), again: text(again) };
  });
  assert.equal(got.one, got.three);
  assert.notEqual(got.seeds[0], got.seeds[1]);
  assert.equal(got.first, got.again);
});

test("nothing went wrong in the page unseen", () => {
  assert.deepEqual(page.errors, []);
});
