/** Every error code that js/ names has its paragraph in docs/errors.d and is in a test; and those that no other test brings about. */
import assert from "node:assert/strict";
import fs from "node:fs";
import path from "node:path";
import { test } from "node:test";
import { ROOT } from "../../scripts/lib/paths.mjs";
import { importJs } from "./support.mjs";

function sources(folder, ending) {
  const names = fs.readdirSync(path.join(ROOT, folder), { recursive: true }).filter((name) => name.endsWith(ending));
  return names.map((name) => fs.readFileSync(path.join(ROOT, folder, name), "utf8"));
}

test("every code has its paragraph and a test", () => {
  const js = sources("js", ".ts").join("\n");
  const named = [...js.matchAll(/(?:FiresideError\(|code:)\s*"([a-z]+\.[a-z_]+)"/g)].map((match) => match[1]);
  // check.ts puts these together.
  const codes = new Set([...named, ...["load", "request"].flatMap((area) => [`${area}.invalid`, `${area}.unsupported`])]);
  assert.ok(codes.size >= 14, [...codes].join());
  const docs = sources("docs/errors.d", ".md").join("\n");
  const tests = [...sources("tests/js", ".test.mjs"), ...sources("tests/browser", ".test.mjs")].join("\n");
  for (const code of codes) {
    assert.ok(docs.includes(`### \`${code}\`\n`), `${code} has no paragraph in docs/errors.d`);
    assert.ok(tests.includes(`"${code}"`), `${code} is in no test`);
  }
});

test("wasm that cannot be compiled is load.wasm", async () => {
  const { Engine } = await importJs("index");
  const wasm = new Response("no module", { headers: { "content-type": "application/wasm" } });
  await assert.rejects(Engine.load(new Blob(["GGUF"]), { worker: false, wasm }), { name: "FiresideError", code: "load.wasm" });
});

test("an event of another version's engine is a warning", async () => {
  const { Engine } = await importJs("index", { load: (_source, _options, onEvent) => onEvent("weather", "{}") });
  const warnings = [];
  const engine = await Engine.load(new Blob(["GGUF"]), { worker: false, onWarning: ({ code, details }) => warnings.push([code, details.kind]) });
  assert.deepEqual(warnings, [["engine.unknown_event", "weather"]]);
  await engine.dispose();
});

test("a Blob that cannot be read is source.failed", async () => {
  const { BlobSource } = await importJs("source/blob");
  const broken = { size: 4, slice: () => ({ arrayBuffer: () => Promise.reject(new Error("gone")) }) };
  await assert.rejects(new BlobSource(broken).read(0, 4), { code: "source.failed" });
});

test("a stored file that is shorter than its record says is storage.failed", async () => {
  const { readAll } = await importJs("storage/opfs");
  const file = { read: (bytes) => bytes.length - 1 };
  assert.throws(() => readAll(file, 0, 10), ({ code, details }) => code === "storage.failed" && details.got === 9);
});
