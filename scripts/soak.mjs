/** `npm run soak`: the heavy checks, one JSON line each; fails when a figure is out of its bounds.
 *
 * Perplexity of a fixed text and greedy continuations of the real model in the browser's CPU backend, seeded faults of network and
 * server, loads from storage, memory of the GPU process, a million damaged files, guided fuzzing and long property tests natively.
 * `-- --checks model,faults` does some of them.
 */
import fs from "node:fs";
import path from "node:path";
import { parseArgs } from "node:util";
import { build } from "./lib/build.mjs";
import { run } from "./lib/exec.mjs";
import { main, UserError } from "./lib/fail.mjs";
import { guidedFuzz } from "./lib/fuzz.mjs";
import { defaultModel } from "./lib/model.mjs";
import { ROOT } from "./lib/paths.mjs";
import { gpuAnonymousBytes } from "./lib/proc.mjs";
import { openSession } from "./lib/session.mjs";
import { setup } from "./lib/setup.mjs";
import { faultRuns } from "../tests/browser/fault-runs.mjs";
import { gpuCycles, growth } from "../tests/browser/gpu-memory.mjs";
import { openPage } from "../tests/browser/support.mjs";

const WINDOW = 1024;
/** Relative. */
const PERPLEXITY_BOUND = 1e-3;
/** Nats between the two best tokens below which either may win. */
const NEAR_TIE = 0.05;
const PROPTEST_CASES = "20000";
/** Random schedules of up to 64 requests against the scheduler, each checked after every step and replayed. */
const FIRESIDE_SCHEDULES = "10000";
const FAULT_RUNS = 240;
const WARM_LOADS = 5;
const GPU_CYCLES = 20;
/** Damaged files that the reader, the tokenizer and the templates are given. */
const FUZZ_INPUTS = 1_000_000;
/** Seconds of guided fuzzing for each target. */
const GUIDED_SECONDS = 120;

const golden = (name) => path.join(ROOT, "tests/goldens", name);
const print = (line) => console.log(JSON.stringify(line));

/** Values of a little-endian float32 or float64 .npy file. */
function readNpy(file) {
  const data = fs.readFileSync(file);
  const start = 10 + data.readUInt16LE(8);
  const header = data.toString("latin1", 10, start);
  const wide = /'<f8'/.test(header);
  if (!wide && !/'<f4'/.test(header)) throw new Error(`${file} holds neither f4 nor f8: ${header}`);
  const count = (data.length - start) / (wide ? 8 : 4);
  return Array.from({ length: count }, (_, i) => (wide ? data.readDoubleLE(start + 8 * i) : data.readFloatLE(start + 4 * i)));
}

/** Windows of `WINDOW` tokens, each scored by itself; the first token of each has no score. */
async function perplexity(session) {
  const { ids } = JSON.parse(fs.readFileSync(golden("ppl/smollm2.declaration.json"), "utf8"));
  const expected = readNpy(golden("ppl/smollm2.declaration.win1024.nll.npy"));
  const got = [];
  for (let at = 0; at < ids.length; at += WINDOW) {
    const { logprobs } = await session.score(ids.slice(at, at + WINDOW));
    got.push(...logprobs.slice(1));
  }
  if (got.length !== expected.length) throw new UserError("soak.failed", `${got.length} scores, ${expected.length} expected`);
  const ppl = (nats) => Math.exp(nats.reduce((sum, x) => sum + x, 0) / nats.length);
  const [ours, reference] = [ppl(got.map((x) => -x)), ppl(expected)];
  const worst = Math.max(...got.map((x, i) => Math.abs(-x - expected[i])));
  const ok = Math.abs(ours / reference - 1) <= PERPLEXITY_BOUND;
  print({ check: "perplexity", text: "declaration", window: WINDOW, perplexity: ours, reference, worst_nats: worst, ok });
  return ok;
}

/** At every step of the reference's greedy text that is no near tie, our best token given the same text is the same. */
async function greedy(session) {
  const rows = fs.readFileSync(golden("greedy/smollm2.jsonl"), "utf8").trim().split("\n").map((line) => JSON.parse(line));
  let ok = true;
  for (const { name, prompt_ids: prompt, ids, steps } of rows) {
    const { top } = await session.score([...prompt, ...ids], { topLogprobs: 1 });
    const certain = ids.flatMap((_, i) => (steps[i].gap < NEAR_TIE ? [] : [i]));
    const wrong = certain.filter((i) => top[prompt.length + i][0].token !== ids[i]);
    print({ check: "greedy", name, prompt_tokens: prompt.length, steps: ids.length, certain: certain.length, wrong, ok: wrong.length === 0 });
    ok &&= wrong.length === 0;
  }
  return ok;
}

/** Every run ends in a right model or a typed error, and the next load succeeds (tests/browser/fault-runs.mjs). */
async function faults() {
  const kinds = {};
  const wrong = [];
  const seeds = Array.from({ length: FAULT_RUNS }, (_, i) => 1000 + i);
  await faultRuns(seeds, ({ seed, kind, outcome, faults: found }) => {
    kinds[kind] ??= {};
    kinds[kind][outcome] = (kinds[kind][outcome] ?? 0) + 1;
    if (found.length > 0) wrong.push({ seed, kind, found });
  });
  print({ check: "faults", runs: FAULT_RUNS, kinds, wrong, ok: wrong.length === 0 });
  return wrong.length === 0;
}

/** The first load downloads and keeps, the next ones read what is kept; a warm load must be the quicker one. */
async function storedLoads(model) {
  const session = await openSession({ model });
  try {
    const times = [];
    for (let i = 0; i <= WARM_LOADS; i++) {
      const start = performance.now();
      await session.load({ backend: "cpu", cache: "opfs" });
      times.push(Math.round(performance.now() - start));
      await session.page.evaluate(() => window.runner.dispose());
    }
    const [cold, ...warm] = times;
    const ok = Math.min(...warm) < cold;
    print({ check: "stored loads", cold_ms: cold, warm_ms: warm, ok });
    return ok;
  } finally {
    await session.close();
  }
}

/** Every input ends in a sound table or a typed error, within twice its size of memory: the test fails otherwise. */
async function fuzz() {
  const started = performance.now();
  await run("cargo", ["test", "--test", "gguf_hostile"], { env: { FIRESIDE_FUZZ_INPUTS: String(FUZZ_INPUTS) } });
  print({ check: "hostile files", inputs: FUZZ_INPUTS, seconds: Math.round((performance.now() - started) / 1000), ok: true });
  return true;
}

/** libFuzzer in the same rooms, guided by what each input reaches. */
async function guided() {
  const inputs = await guidedFuzz(GUIDED_SECONDS);
  const ok = Object.values(inputs).every((count) => count > 0);
  print({ check: "guided fuzzing", seconds_each: GUIDED_SECONDS, inputs, ok });
  return ok;
}

/** The real model loaded, used and disposed of on WebGPU: what a cycle leaves in the GPU process is a small part of the model, or nothing. */
async function gpuMemory(model) {
  if (gpuAnonymousBytes(process.pid) === null) {
    print({ check: "GPU memory", skipped: "it is read from /proc", ok: true });
    return true;
  }
  const page = await openPage({ "/model.gguf": model });
  try {
    // One device, which a small engine keeps: with devices of their own each would make every pipeline anew, for minutes.
    const options = { source: "/model.gguf", worker: "given", beside: "/tiny.gguf", cycles: GPU_CYCLES, kept: 1 };
    const { engine, before, after, holding, freed } = await gpuCycles(page, options);
    const grown = growth(after);
    const ok = grown < engine.weights / 10 && holding - freed > 0.9 * engine.weights;
    print({ check: "GPU memory", cycles: GPU_CYCLES, ...engine, before, after, grown, holding, freed, ok });
    return ok;
  } finally {
    await page.close();
  }
}

async function propertyTests() {
  const started = performance.now();
  await run("cargo", ["test", "--lib"], { env: { PROPTEST_CASES, FIRESIDE_SCHEDULES } });
  const seconds = Math.round((performance.now() - started) / 1000);
  print({ check: "property tests", cases: Number(PROPTEST_CASES), schedules: Number(FIRESIDE_SCHEDULES), seconds, ok: true });
  return true;
}

/** The real model's figures. */
async function accuracy(model) {
  const session = await openSession({ model });
  try {
    await session.load({ backend: "cpu", prefixCache: false });
    const right = await perplexity(session);
    return (await greedy(session)) && right;
  } finally {
    await session.close();
  }
}

/** By the names that `--checks` takes. `browser`: needs the package and the model. */
const CHECKS = {
  model: { browser: true, work: accuracy },
  faults: { browser: true, work: faults },
  stored: { browser: true, work: storedLoads },
  gpu: { browser: true, work: gpuMemory },
  fuzz: { browser: false, work: fuzz },
  guided: { browser: false, work: guided },
  properties: { browser: false, work: propertyTests },
};

function chosen() {
  const { checks } = parseArgs({ options: { checks: { type: "string" } } }).values;
  const names = checks?.split(",") ?? Object.keys(CHECKS);
  const unknown = names.filter((name) => !Object.hasOwn(CHECKS, name));
  if (unknown.length > 0) throw new UserError("arguments.invalid", `unknown checks: ${unknown.join(", ")} (there are ${Object.keys(CHECKS).join(", ")})`);
  return names.map((name) => CHECKS[name]);
}

await main(async () => {
  const checks = chosen();
  await setup();
  const browser = checks.some((check) => check.browser);
  const model = browser ? await defaultModel() : null;
  if (browser) await build();
  let ok = true;
  for (const { work } of checks) ok = (await work(model)) && ok;
  if (!ok) throw new UserError("soak.failed", "a figure is out of its bounds");
});
