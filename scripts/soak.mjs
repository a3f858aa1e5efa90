/** `npm run soak`: the heavy checks, one JSON line each; fails when a figure is out of its bounds.
 *
 * Perplexity of a fixed text and greedy continuations of the real model in the browser's CPU backend, a million
 * damaged files and long property tests natively. `-- --fuzz` does the damaged files alone.
 */
import fs from "node:fs";
import path from "node:path";
import { build } from "./lib/build.mjs";
import { run } from "./lib/exec.mjs";
import { main, UserError } from "./lib/fail.mjs";
import { defaultModel } from "./lib/model.mjs";
import { ROOT } from "./lib/paths.mjs";
import { openSession } from "./lib/session.mjs";
import { setup } from "./lib/setup.mjs";

const WINDOW = 1024;
/** Relative. */
const PERPLEXITY_BOUND = 1e-3;
/** Nats between the two best tokens below which either may win. */
const NEAR_TIE = 0.05;
const PROPTEST_CASES = "20000";
/** Damaged files that the reader, the tokenizer and the templates are given. */
const FUZZ_INPUTS = 1_000_000;

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

/** Every input ends in a sound table or a typed error, within twice its size of memory: the test fails otherwise. */
async function fuzz() {
  const started = performance.now();
  await run("cargo", ["test", "--test", "gguf_hostile"], { env: { FIRESIDE_FUZZ_INPUTS: String(FUZZ_INPUTS) } });
  print({ check: "hostile files", inputs: FUZZ_INPUTS, seconds: Math.round((performance.now() - started) / 1000), ok: true });
}

await main(async () => {
  await setup();
  if (process.argv.includes("--fuzz")) return fuzz();
  const model = await defaultModel();
  await build();
  const session = await openSession({ model });
  let ok = true;
  try {
    await session.load({ backend: "cpu", prefixCache: false });
    ok = (await perplexity(session)) && ok;
    ok = (await greedy(session)) && ok;
  } finally {
    await session.close();
  }
  await fuzz();
  await run("cargo", ["test", "--lib"], { env: { PROPTEST_CASES } });
  print({ check: "property tests", cases: Number(PROPTEST_CASES), ok: true });
  if (!ok) throw new UserError("soak.failed", "a figure is out of its bounds");
});
