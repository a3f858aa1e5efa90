/** What must not be in the package or the demo page: evaluation, markup from strings, Workers from blobs; and messages that are not ours. */
import assert from "node:assert/strict";
import fs from "node:fs";
import path from "node:path";
import test from "node:test";
import ts from "typescript";

const ROOT = path.resolve(import.meta.dirname, "../..");
const sources = ["js", "www"].flatMap((folder) =>
  fs.readdirSync(path.join(ROOT, folder), { recursive: true })
    .filter((name) => /\.(ts|js|mjs|html)$/.test(name))
    .map((name) => path.join(folder, name)),
);

const FORBIDDEN = [
  [/\beval\s*\(/, "eval"],
  [/\bnew\s+Function\b|\bFunction\s*\(/, "a function made of text"],
  [/\b(?:innerHTML|outerHTML|insertAdjacentHTML|setHTMLUnsafe|parseHTMLUnsafe|createContextualFragment|srcdoc)\b/, "markup from a string"],
  [/\bdocument\s*\.\s*write(?:ln)?\b/, "document.write"],
  [/\bset(?:Timeout|Interval)\s*\(\s*["'`]/, "a timer that evaluates text"],
  [/\bcreateObjectURL\b|["'`](?:blob:|javascript:|data:(?!,))/, "a script or Worker from a blob or data URL"],
  [/\bimportScripts\b/, "importScripts"],
];

/** The names of what `text` has that it must not have. */
const faults = (text) => FORBIDDEN.filter(([pattern]) => pattern.test(text)).map(([, name]) => name);

/** Comments may name what code must not do. */
function code(file) {
  const text = fs.readFileSync(path.join(ROOT, file), "utf8");
  if (file.endsWith(".html")) return text;
  const options = { removeComments: true, target: ts.ScriptTarget.ESNext, module: ts.ModuleKind.ESNext };
  return ts.transpileModule(text, { compilerOptions: options }).outputText;
}

test("the package and the demo page evaluate nothing and make no markup of strings", () => {
  assert.ok(sources.length > 15, "the sources were not found");
  for (const file of sources) assert.deepEqual(faults(code(file)), [], file);
});

test("the search finds each of what it looks for", () => {
  const bad = ["eval(x)", "new Function('a')", "e.innerHTML = x", "document.write(x)", "setTimeout('x')", "new Worker('blob:x')", "importScripts(x)"];
  bad.forEach((text, i) => assert.deepEqual(faults(text), [FORBIDDEN[i][1]], text));
  assert.deepEqual(faults("node.textContent = evaluate(x); setTimeout(() => {}, 1)"), []);
});

test("the demo page has no inline scripts or handlers", () => {
  for (const file of sources.filter((name) => name.endsWith(".html"))) {
    const text = fs.readFileSync(path.join(ROOT, file), "utf8");
    for (const [, attributes, body] of text.matchAll(/<script([^>]*)>([^]*?)<\/script>/g)) {
      const isData = /type=["'](?:importmap|application\/json)["']/.test(attributes);
      assert.ok(isData || body.trim() === "", `${file} has an inline script`);
    }
    assert.doesNotMatch(text, /\son[a-z]+\s*=/i, file);
  }
});

test("messages of another kind or shape are told from ours", async () => {
  const source = fs.readFileSync(path.join(ROOT, "js/messages.ts"), "utf8");
  const options = { target: ts.ScriptTarget.ESNext, module: ts.ModuleKind.ESNext };
  const { outputText } = ts.transpileModule(source, { compilerOptions: options });
  const { isToHost, isToClient } = await import(`data:text/javascript,${encodeURIComponent(outputText)}`);
  const error = { code: "a.b", message: "", details: {} };
  const toHost = [{ t: "call", id: 1, op: "stats", args: null }, { t: "abort", rid: 1, why: "cancelled" }, { t: "read", rid: 1, count: 2 }, { t: "cancelLoad" }];
  const toClient = [
    { t: "result", id: 1, value: null }, { t: "error", id: 1, error }, { t: "token", rid: 1, value: {} }, { t: "done", rid: 1, value: {} },
    { t: "failed", rid: 1, error }, { t: "progress", value: {} }, { t: "warning", value: {} }, { t: "hello" },
    { t: "prompt", rid: 1, tokens: Uint32Array.of(1) }, { t: "lost", error }, { t: "crashed", error },
  ];
  for (const message of toHost) assert.ok(isToHost(message), message.t);
  for (const message of toClient) assert.ok(isToClient(message), message.t);
  const strange = [
    null, undefined, 1, "call", [], {}, { t: 1 }, { t: "toString" }, { t: "call" }, { t: "read", rid: 1 },
    { t: "call", id: "1", op: "stats" }, { t: "abort", rid: 1 }, { t: "error", id: 1 }, { t: "failed", rid: 1, error: null },
    { t: "crashed" }, { t: "progress" }, { t: "token", rid: "1" }, { type: "webpackOk" },
  ];
  for (const message of strange) assert.ok(!isToHost(message) && !isToClient(message), JSON.stringify(message));
});
