/** `npm run generate` itself: text, JSON, batches, errors with exit status 2, against the reference's greedy tokens. */
import assert from "node:assert/strict";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { test } from "node:test";
import { TINY, generate, generateUntil, golden, greedyRow, tinyEntry } from "./support.mjs";

const CPU = ["--backend", "cpu"];

test("the command gives the reference's text and ends with its figures", async () => {
  const { ids } = greedyRow("capital");
  const done = await generate(...CPU, "--temperature", "0", "--max-tokens", String(ids.length), "The capital of France is");
  assert.equal(done.status, 0, done.stderr);
  assert.match(done.stdout, /^ Paris/);
  const figures = done.lines.at(-1);
  assert.match(figures, /^cpu \| 5 prompt \+ \d+ completion tokens \| first token \d+ ms \| prefill [\d.]+ tok\/s \| decode [\d.]+ tok\/s \| peak wasm [\d.]+ MB \| peak GPU [\d.]+ MB/);
});

test("text is streamed: some of it is there long before all of it could be, and an interrupt ends the command", async () => {
  // Thousands of tokens that nothing but the limit ends: whoever printed them at the end would not be heard of for minutes.
  const endless = ["--max-tokens", "6000", "--logit-bias", '{"0":-100,"2":-100}'];
  const done = await generateUntil(6, ...CPU, "--temperature", "0", ...endless, "The capital of France is");
  assert.equal(done.status, 130, done.stderr);
  assert.match(done.stdout, /^ Paris/);
  assert.doesNotMatch(done.stdout, /completion tokens/);
});

test("--json is one line with the reference's tokens", async () => {
  const { ids, near_tie_steps: ties } = greedyRow("capital");
  assert.deepEqual(ties, []);
  const done = await generate(...CPU, "--json", "--temperature", "0", "--max-tokens", String(ids.length), "The capital of France is");
  assert.equal(done.status, 0, done.stderr);
  assert.equal(done.lines.length, 1);
  const line = JSON.parse(done.stdout);
  assert.deepEqual(line.tokens, ids);
  assert.match(line.text, /^ Paris/);
  assert.equal(line.backend, "cpu");
  assert.equal(line.usage.prompt_tokens, 5);
  assert.equal(line.usage.completion_tokens, ids.length);
  assert.equal(line.usage.total_tokens, 5 + ids.length);
  assert.ok(["stop", "length"].includes(line.finish_reason));
  for (const field of ["queued", "prefill", "decode", "time_to_first_token", "seed"]) assert.equal(typeof line.timings[field], "number", field);
  assert.equal("choices" in line, false);
  assert.ok(line.figures.peak_wasm_bytes > 98_362_432, "the weights are in linear memory");
});

test("--chat renders the model's template", async () => {
  const row = greedyRow("c_sky");
  const content = row.messages.at(-1)[1];
  const done = await generate(...CPU, "--json", "--chat", "--temperature", "0", "--max-tokens", "16", content);
  assert.equal(done.status, 0, done.stderr);
  const line = JSON.parse(done.stdout);
  assert.equal(line.usage.prompt_tokens, row.prompt_ids.length);
  assert.deepEqual(line.tokens, row.ids.slice(0, 16));
});

test("n choices are seeded and listed", async () => {
  const args = ["--model", TINY, ...CPU, "--json", "--n", "3", "--seed", "7", "--max-tokens", "6", "--logprobs", "2", "the people"];
  const [first, second] = [await generate(...args), await generate(...args)];
  assert.equal(first.status, 0, first.stderr);
  const [a, b] = [JSON.parse(first.stdout), JSON.parse(second.stdout)];
  assert.equal(a.choices.length, 3);
  assert.deepEqual(a.choices.map((c) => c.tokens), b.choices.map((c) => c.tokens));
  assert.deepEqual(a.choices[0].tokens, a.tokens);
  assert.equal(a.timings.seed, 7);
  assert.equal(a.choices[0].logprobs[0].top.length, 2);
});

test("--requests answers every line in order, errors among them", async () => {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), "fireside-requests-"));
  const file = path.join(folder, "requests.jsonl");
  const { prompts } = tinyEntry();
  const lines = [
    JSON.stringify({ prompt: prompts[0].ids, temperature: 0, max_tokens: 12 }),
    "not json",
    JSON.stringify({ prompt: "the", temperature: 0, max_tokens: 1 }),
    JSON.stringify({ prompt: "the", bogus: 1 }),
    "",
    JSON.stringify({ prompt: prompts[0].ids, temperature: 0, max_tokens: 3 }),
  ];
  fs.writeFileSync(file, lines.join("\n"));
  const done = await generate("--model", TINY, ...CPU, "--requests", file);
  fs.rmSync(folder, { recursive: true });
  const answers = done.lines.map((line) => JSON.parse(line));
  assert.equal(answers.length, 5);
  assert.deepEqual(answers[0].tokens, prompts[0].greedy_ids_f64.slice(0, 12));
  assert.equal(answers[1].error.code, "requests.invalid");
  assert.equal(answers[2].usage.completion_tokens, 1);
  assert.equal(answers[3].error.code, "request.unsupported");
  assert.deepEqual(answers[4].tokens, prompts[0].greedy_ids_f64.slice(0, 3));
  assert.equal(done.status, 2);
});

test("errors are one line with a code, exit status 2", async () => {
  const cases = [
    [["--bogus", "x"], "arguments.invalid"],
    [[], "arguments.invalid"],
    [["--temperature", "warm", "x"], "arguments.invalid"],
    [["--backend", "gpu", "x"], "arguments.invalid"],
    [["--model", "/no/such/file.gguf", "x"], "model.not_found"],
    [["--model", golden("hostile/bad_magic.gguf"), "x"], "gguf.bad_magic"],
    [["--model", golden("hostile/trunc_data.gguf"), "x"], /^gguf\./],
    [["--model", golden("tiny/tiny-gemma3-f16.gguf"), "x"], "model.unsupported_architecture"],
    [["--model", TINY, ...CPU, "--top-p", "7", "x"], "request.invalid"],
    [["--model", TINY, ...CPU, "--n", "0", "x"], "request.invalid"],
    [["--model", TINY, ...CPU, "--adapter", "a", "x"], "request.unsupported"],
    [["--model", TINY, ...CPU, "--response-format", '{"type":"json_object"}', "x"], "request.unsupported"],
  ];
  for (const [args, code] of cases) {
    const done = await generate("--json", ...args);
    const label = `${args.join(" ")}: ${done.stdout} ${done.stderr}`;
    assert.equal(done.status, 2, label);
    assert.equal(done.lines.length, 1, label);
    const { error } = JSON.parse(done.stdout);
    assert.match(error.code, code instanceof RegExp ? code : new RegExp(`^${code.replace(".", "\\.")}$`), label);
    assert.ok(error.message.length > 0 && typeof error.details === "object", label);
    assert.equal(done.stderr.trimEnd().split("\n").at(-1), `error: ${error.message} (${error.code})`, label);
  }
});

test("WebGPU gives the reference's first tokens with few dispatches and one readback a step", { timeout: 1_200_000 }, async () => {
  const { ids } = greedyRow("capital");
  const done = await generate("--backend", "webgpu", "--json", "--temperature", "0", "--max-tokens", "3", "The capital of France is");
  assert.equal(done.status, 0, done.stderr);
  const line = JSON.parse(done.stdout);
  assert.equal(line.backend, "webgpu");
  assert.deepEqual(line.tokens, ids.slice(0, 3));
  assert.ok(line.figures.dispatches_per_layer > 0 && line.figures.dispatches_per_layer <= 10, `${line.figures.dispatches_per_layer} dispatches a layer`);
  assert.equal(line.figures.readbacks_per_step, 1);
  assert.ok(line.figures.peak_gpu_bytes > 98_000_000);
  assert.ok(line.figures.peak_wasm_bytes < 200_000_000, "the file is never whole in linear memory");
});
