/** Compiles js/ into a temporary folder beside a scripted wasm module, so that the client and host are tested without a model. */
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { pathToFileURL } from "node:url";
import ts from "typescript";
import { ROOT } from "../../scripts/lib/paths.mjs";

/** The scripted module: `script` (on globalThis, set by a test) decides what each call does. */
const SCRIPTED = `
const script = globalThis.firesideScript;
export default async function init(options) { script.init?.(options); return { memory: { buffer: { byteLength: 65536 } } }; }
export async function survey(source) { return JSON.stringify(await script.survey?.(source) ?? { metadata: {}, tensors: [], weightBytes: 0, needs: null, refused: null }); }
export function releaseDevice() { return script.released?.() ?? false; }
export function __wbg_reset_state() { script.renewed?.(); }
export class WasmEngine {
  static async load(source, options, onEvent) { await script.load?.(source, JSON.parse(options), onEvent); return new WasmEngine(); }
  info() { return JSON.stringify({ modelId: "scripted", backend: "cpu", kv: { dtype: "f32" }, memory: { weightBytes: 4 }, warnings: [] }); }
  stats() { return JSON.stringify({ steps: 3, rate: {} }); }
  trace(last) { return JSON.stringify(script.trace?.(last) ?? []); }
  submit(request, prompt, onEvent, paced) { return script.submit(JSON.parse(request), prompt, onEvent, paced); }
  read(id, count) { script.read?.(id, count); }
  score(tokens, top, onEvent, priority) { return script.score(tokens, top, onEvent, priority); }
  pieces(tokens) { return JSON.stringify([...tokens].map((t) => ({ bytes: [...new TextEncoder().encode(" t" + t)], control: t === 0 }))); }
  resume(request, prompt, progress, onEvent, paced) { return script.resume(JSON.parse(request), prompt, JSON.parse(progress), onEvent, paced); }
  prompt(id) { return script.prompt?.(id); }
  abort(id, why) { script.aborted?.(id, why); }
  run() { return script.run?.() ?? new Promise((resolve) => { this.over = resolve; }); }
  tokenize(text, addSpecial, parseSpecial) { return Uint32Array.of(text.length, Number(addSpecial), Number(parseSpecial)); }
  detokenize(tokens, special) { return [...tokens].join(",") + special; }
  renderChat(messages, options) { return messages + options; }
  dispose() { script.disposed?.(); this.over?.(); }
  free() {}
}
`;

const folders = [];
process.on("exit", () => folders.forEach((folder) => fs.rmSync(folder, { recursive: true, force: true })));

/** Imports a fresh copy of the package's module (a path under js/, without its ending). */
export async function importJs(module, script = {}) {
  return (await importJsTogether([module], script))[0];
}

/** The same of several modules of one copy, which share their state. */
export async function importJsTogether(modules, script = {}) {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), "fireside-js-"));
  folders.push(folder);
  fs.writeFileSync(path.join(folder, "package.json"), '{"type":"module"}');
  const names = fs.readdirSync(path.join(ROOT, "js"), { recursive: true }).filter((file) => file.endsWith(".ts") && !file.endsWith(".d.ts"));
  for (const name of names) {
    const source = fs.readFileSync(path.join(ROOT, "js", name), "utf8");
    const compilerOptions = { target: ts.ScriptTarget.ES2022, module: ts.ModuleKind.ES2022, verbatimModuleSyntax: true };
    const { outputText } = ts.transpileModule(source, { compilerOptions, fileName: name });
    const target = path.join(folder, name.replace(/\.ts$/, ".js"));
    fs.mkdirSync(path.dirname(target), { recursive: true });
    fs.writeFileSync(target, outputText);
  }
  fs.mkdirSync(path.join(folder, "wasm"), { recursive: true });
  fs.writeFileSync(path.join(folder, "wasm/fireside.js"), SCRIPTED.replace("globalThis.firesideScript", `globalThis[${JSON.stringify(folder)}]`));
  globalThis[folder] = script;
  return Promise.all(modules.map((module) => import(pathToFileURL(path.join(folder, `${module}.js`)).href)));
}

/** A result as the engine would send it. */
export function doneEvent(text = "hi", tokens = [1, 2]) {
  return JSON.stringify({
    choices: [{ text, tokens, finish_reason: "stop" }],
    usage: { prompt_tokens: 1, completion_tokens: tokens.length, total_tokens: 1 + tokens.length, prompt_tokens_details: { cached_tokens: 0 } },
    timings: { queued: 0, prefill: 1, decode: 1, time_to_first_token: 1, seed: 7 },
  });
}
