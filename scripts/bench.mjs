/** `npm run bench`: one JSON line a case on stdout: package bytes, and for each backend load, prefill, decode and memory.
 *
 * `-- --backend cpu,webgpu --cases load,prefill128 --reps 3 --tokens 32 --model PATH` narrows it. Tokens per CPU-second
 * count the whole browser's process tree: the figure to compare on a busy machine.
 */
import os from "node:os";
import { parseArgs } from "node:util";
import { build } from "./lib/build.mjs";
import { main, UserError } from "./lib/fail.mjs";
import { modelPath } from "./lib/model.mjs";
import { cpuSeconds, peakMemory } from "./lib/proc.mjs";
import { promptTokens } from "./lib/prompts.mjs";
import { openSession, unwrap } from "./lib/session.mjs";
import { setup } from "./lib/setup.mjs";
import { packageSize } from "./lib/size.mjs";

const CASES = ["size", "load", "prefill128", "prefill512", "decode1", "decode4", "decode8", "mixed", "memory"];
/** Prompt tokens that are computed beside a running stream in the case `mixed`. */
const MIXED_PROMPT = 1500;
/** Prompt tokens of the decode cases. */
const DECODE_PROMPT = 32;

/** SmolLM2's end-of-generation tokens, so biased that none is ever drawn: the stream must outlast the prompt. */
const NO_END = { 0: -100, 2: -100, 4: -100 };

const round = (value, digits = 2) => (Number.isFinite(value) ? Number(value.toFixed(digits)) : null);
const print = (line) => console.log(JSON.stringify(line));

function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

function options() {
  const choice = { type: "string" };
  const parsed = parseArgs({ options: { backend: choice, cases: choice, reps: choice, tokens: choice, model: choice } }).values;
  const cases = parsed.cases?.split(",") ?? CASES;
  const unknown = cases.filter((name) => !CASES.includes(name));
  if (unknown.length > 0) throw new UserError("arguments.invalid", `unknown cases: ${unknown.join(", ")} (there are ${CASES.join(", ")})`);
  const count = (name, fallback) => {
    const value = Number(parsed[name] ?? fallback);
    if (!Number.isInteger(value) || value < 1) throw new UserError("arguments.invalid", `--${name} must be a whole number above 0`);
    return value;
  };
  return { backends: (parsed.backend ?? "cpu,webgpu").split(","), cases, reps: count("reps", 3), tokens: count("tokens", 64), model: parsed.model };
}

/** Runs requests together; wall and CPU seconds up to the first token of all, and from there to the end. */
async function measured(session, requests, watch) {
  const firsts = new Set();
  const marks = { start: [performance.now(), cpuSeconds(session.pid)] };
  watch.onToken = (request) => {
    firsts.add(request);
    if (firsts.size === requests.length) marks.first ??= [performance.now(), cpuSeconds(session.pid)];
  };
  const results = (await session.generate(requests)).map(unwrap);
  marks.end = [performance.now(), cpuSeconds(session.pid)];
  marks.first ??= marks.end;
  const between = (a, b) => ({ wall: (b[0] - a[0]) / 1000, cpu: a[1] === null ? NaN : b[1] - a[1] });
  return { results, prefill: between(marks.start, marks.first), decode: between(marks.first, marks.end) };
}

function rates(tokens, times) {
  return {
    tokens_per_second: round(median(times.map(({ wall }, i) => tokens[i] / wall))),
    tokens_per_cpu_second: round(median(times.map(({ cpu }, i) => tokens[i] / cpu))),
  };
}

async function prefill(session, watch, count, { reps, nextTag }) {
  const times = [];
  for (let rep = 0; rep < reps; rep++) {
    const prompt = await promptTokens(session, count, nextTag());
    times.push((await measured(session, [{ prompt, max_tokens: 1, temperature: 0 }], watch)).prefill);
  }
  return { prompt_tokens: count, reps, ...rates(times.map(() => count), times) };
}

async function decode(session, watch, batch, { reps, tokens, nextTag }) {
  const times = [];
  const counts = [];
  for (let rep = 0; rep < reps; rep++) {
    const prompts = [];
    for (let i = 0; i < batch; i++) prompts.push(await promptTokens(session, DECODE_PROMPT, nextTag()));
    const run = await measured(session, prompts.map((prompt) => ({ prompt, max_tokens: tokens, temperature: 0 })), watch);
    times.push(run.decode);
    counts.push(run.results.reduce((sum, { usage }) => sum + usage.completion_tokens - 1, 0));
  }
  const { rate } = await session.stats();
  return {
    batch,
    reps,
    ...rates(counts, times),
    dispatches_per_step: round(rate.dispatchesPerStep, 1),
    readbacks_per_step: round(rate.readbacksPerStep, 2),
    weight_bytes_per_step: rate.weightBytesPerStep,
    host_ms_per_step: round(rate.hostMsPerStep),
  };
}

/** A running stream while a long prompt is computed beside it: its steps against decode steps alone, and its longest gap. */
async function mixed(session, { nextTag }) {
  const running = { prompt: await promptTokens(session, DECODE_PROMPT, nextTag()), max_tokens: 1000, temperature: 0, logit_bias: NO_END };
  const gaps = await session.gaps(running, await promptTokens(session, MIXED_PROMPT, nextTag()));
  const [step, alone] = [median(gaps.mixed), median(gaps.alone)];
  return {
    prompt_tokens: gaps.promptTokens,
    mixed_steps: gaps.mixed.length,
    prompt_tokens_per_step: round(gaps.promptTokens / gaps.mixed.length, 1),
    decode_step_ms: round(alone),
    mixed_step_ms: round(step),
    mixed_over_decode: round(step / alone),
    longest_over_median: round(Math.max(...gaps.mixed) / step),
  };
}

async function memory(session, info) {
  const stats = await session.stats();
  const peak = peakMemory(session.pid);
  return {
    wasm_bytes: stats.peakWasmBytes,
    gpu_bytes: stats.executor.peakDeviceBytes,
    weight_bytes: info.memory.weightBytes,
    kv_bytes: info.memory.kvBytes,
    peak_renderer_bytes: peak?.renderer ?? null,
    peak_gpu_process_bytes: peak?.gpu ?? null,
  };
}

async function benchBackend(backend, model, asked) {
  const watch = { onToken: () => undefined };
  const onEvent = (event) => event.type === "token" && watch.onToken(event.request);
  const session = await openSession({ model, onEvent });
  try {
    const [started, cpu] = [performance.now(), cpuSeconds(session.pid)];
    const info = await session.load({ backend, prefixCache: false });
    const load = { seconds: round((performance.now() - started) / 1000), cpu_seconds: round(cpuSeconds(session.pid) - cpu) };
    let tag = 1;
    const plan = { ...asked, nextTag: () => tag++ };
    // The first steps compile: they are no one's figure.
    await measured(session, [{ prompt: await promptTokens(session, 16, 0), max_tokens: 2, temperature: 0 }], watch);
    const cases = {
      load: () => load,
      prefill128: () => prefill(session, watch, 128, plan),
      prefill512: () => prefill(session, watch, 512, plan),
      decode1: () => decode(session, watch, 1, plan),
      decode4: () => decode(session, watch, 4, plan),
      decode8: () => decode(session, watch, 8, plan),
      mixed: () => mixed(session, plan),
      memory: () => memory(session, info),
    };
    for (const name of asked.cases.filter((each) => each in cases)) {
      const figures = await cases[name]();
      print({ case: name, backend: info.backend, adapter: info.adapter ?? null, model: info.modelId, ...figures, load1m: round(os.loadavg()[0]) });
    }
  } finally {
    await session.close();
  }
}

await main(async () => {
  const asked = options();
  await setup();
  const model = await modelPath(asked.model);
  await build();
  if (asked.cases.includes("size")) print({ case: "size", ...packageSize() });
  for (const backend of asked.backends) await benchBackend(backend, model, asked);
});
