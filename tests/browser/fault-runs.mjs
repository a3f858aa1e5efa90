/** Seeded runs against the faulty server: each ends in a right model or a typed error, never a wrong model, and the next load succeeds. */
import crypto from "node:crypto";
import fs from "node:fs";
import { faultyFiles, IMPATIENT, PATIENT_MS, plannedFault, STALL_MS } from "./faults.mjs";
import { openPage, TINY, tinyEntry } from "./support.mjs";
import { readGguf } from "../tools/gguf.mjs";

const sha256 = (data) => crypto.createHash("sha256").update(data).digest("hex");

/** The same model but for its weights: a file of the same size, the same header, other text. */
function otherVersion(data) {
  const other = Buffer.from(data);
  const { tensors } = readGguf(other);
  // Rows of the embedding in another order: every value stays a sound one.
  const embedding = tensors.find(({ name }) => name === "token_embd.weight");
  const row = embedding.bytes / embedding.dims[1];
  const half = Math.floor(embedding.dims[1] / 2) * row;
  const rotated = Buffer.concat([embedding.data.subarray(half), embedding.data.subarray(0, half)]);
  rotated.copy(embedding.data);
  const output = tensors.find(({ name }) => name === "output.weight");
  Buffer.concat([output.data.subarray(output.bytes / 2), output.data.subarray(0, output.bytes / 2)]).copy(output.data);
  return other;
}

/** Runs the seeds and returns what each came to: { seed, kind, outcome, next, faults } with faults a list of what must not be. */
export async function faultRuns(seeds, onRun = () => undefined) {
  const data = fs.readFileSync(TINY);
  const other = otherVersion(data);
  const files = faultyFiles();
  const page = await openPage({}, {
    handle(request, response) {
      if (request.url !== "/impatient.js") return files.handle(request, response);
      response.writeHead(200, { "content-type": "text/javascript", "cross-origin-embedder-policy": "require-corp" }).end(IMPATIENT);
      return true;
    },
  });
  try {
    const prompt = tinyEntry().prompts[0].ids;
    files.put("/right.gguf", { data });
    files.put("/other.gguf", { data: other });
    const texts = await page.run(prepare, prompt);
    const expected = tinyEntry().prompts[0].greedy_ids_f64.slice(0, 8).join();
    if (texts.right !== expected || texts.other === expected) throw new Error(`the two versions cannot be told apart: ${JSON.stringify(texts)}`);
    const known = new Map([[texts.right, sha256(data)], [texts.other, sha256(other)]]);
    const runs = [];
    for (const seed of seeds) {
      const run = await oneRun(page, files, seed, { data, other, known });
      runs.push(run);
      onRun(run);
    }
    if (page.errors.length > 0) throw new Error(`uncaught in the page: ${page.errors.join("; ")}`);
    return runs;
  } finally {
    await page.close();
  }
}

async function oneRun(page, files, seed, { data, other, known }) {
  const plan = plannedFault(seed, { data, other, elsewhere: `/moved-${seed}.gguf` });
  const path = `/faulty-${seed}.gguf`;
  const entry = files.put(path, { data, fault: plan.fault });
  files.put(`/moved-${seed}.gguf`, { data });
  const integrity = plan.integrity ? sha256(data) : undefined;
  const stallMs = plan.stalls ? STALL_MS : PATIENT_MS;
  const first = await page.run(loadOnce, { path, integrity, cache: plan.cache, abortAfterMs: plan.abortAfterMs, stallMs });
  const between = await page.run(storedModels);
  // The server is well again, with the first version.
  entry.fault = undefined;
  const next = await page.run(loadOnce, { path, integrity, cache: plan.cache, stallMs: PATIENT_MS });
  const after = await page.run(storedModels);
  await page.run(removeAll);
  files.remove(path);
  files.remove(`/moved-${seed}.gguf`);
  const faults = [];
  const wrong = (what, result) => {
    if (result.tokens !== undefined && !known.has(result.tokens)) faults.push(`${what}: a model that was never served: ${result.tokens}`);
    if (result.tokens === undefined && !result.typed) faults.push(`${what}: an error without a code: ${JSON.stringify(result)}`);
    if (result.code === "engine.crashed") faults.push(`${what}: ${result.message}`);
    if (integrity && result.tokens !== undefined && known.get(result.tokens) !== integrity) faults.push(`${what}: not the file that integrity names`);
  };
  wrong("first", first);
  wrong("next", next);
  if (next.tokens === undefined) faults.push(`the next load failed: ${JSON.stringify(next)}`);
  for (const model of [...between, ...after]) {
    if (model.complete && ![...known.values()].includes(model.sha256)) faults.push(`stored: ${JSON.stringify(model)}`);
  }
  if (plan.cache === "opfs" && next.tokens !== undefined && !after.some(({ complete }) => complete)) faults.push("the next load kept nothing");
  return { seed, kind: plan.kind, outcome: first.tokens === undefined ? first.code : "model", requests: entry.requests.length, faults };
}

// What follows runs in the page.

async function prepare(prompt) {
  const fireside = await import("/pkg/index.js");
  Object.assign(window, { fireside, prompt, worker: new Worker("/impatient.js", { type: "module" }) });
  window.loadTokens = async (source, options) => {
    const engine = await fireside.Engine.load(source, { backend: "cpu", worker: window.worker, kvCache: { blocks: 8 }, ...options });
    try {
      const { choices } = await engine.generate({ prompt, temperature: 0, max_tokens: 8 });
      return choices[0].tokens.join();
    } finally {
      await engine.dispose();
    }
  };
  const blob = async (url) => (await fetch(url)).blob();
  return { right: await window.loadTokens(await blob("/right.gguf")), other: await window.loadTokens(await blob("/other.gguf")) };
}

async function loadOnce({ path, integrity, cache, abortAfterMs, stallMs }) {
  window.worker.postMessage({ stallMs });
  const controller = new AbortController();
  const timer = typeof abortAfterMs === "number" ? setTimeout(() => controller.abort(), abortAfterMs) : undefined;
  try {
    return { tokens: await window.loadTokens(path, { integrity, cache, signal: controller.signal }) };
  } catch (error) {
    const aborted = controller.signal.aborted && error === controller.signal.reason;
    return { code: aborted ? "aborted" : error.code, typed: aborted || error instanceof window.fireside.FiresideError, message: error.message, details: error.details };
  } finally {
    clearTimeout(timer);
  }
}

function storedModels() {
  return window.fireside.models.list();
}

async function removeAll() {
  const { models } = window.fireside;
  for (const { id } of await models.list()) {
    // What was aborted a moment ago may still be closing its files.
    for (let tries = 0; ; tries++) {
      try {
        await models.remove(id);
        break;
      } catch (error) {
        if (error.code === "storage.not_found") break;
        if (tries === 40) throw error;
        await new Promise((resolve) => setTimeout(resolve, 50));
      }
    }
  }
}
