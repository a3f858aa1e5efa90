/** The tarball itself: what is in it, what its package.json says (publint, attw), and that importing it does nothing, also where there is no page. */
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import fs from "node:fs";
import path from "node:path";
import { after, before, test } from "node:test";
import { ROOT } from "../../scripts/lib/paths.mjs";
import { installed, openBrowser, openInstalled, openPage, copyIn, serveFolder } from "./support.mjs";

let work;

before(async () => {
  work = await openInstalled();
});

after(() => work?.close());

/** Status and stdout of a tool that came to a verdict; one that died or could not start gave none, and is asked again. */
function tool(name, ...args) {
  const bin = path.join(work.folder, "../../node_modules/.bin", name);
  for (let left = 2; ; left--) {
    const done = spawnSync(process.execPath, [fs.realpathSync(bin), ...args], { cwd: work.folder, encoding: "utf8", env: { ...process.env, NO_COLOR: "1" }, maxBuffer: 64 << 20 });
    if (done.status === 0 || done.status === 1) return { status: done.status, output: done.stdout };
    const why = `${name} ended with ${done.signal ?? `status ${done.status}`}: ${done.error?.message ?? ""}\n${done.stdout}${done.stderr}`;
    if (left === 0) throw new Error(why);
    console.log(why);
  }
}

const tarball = () => path.join(work.folder, fs.readdirSync(work.folder).find((name) => name.endsWith(".tgz")));

test("publint has nothing to say", () => {
  const { status, output } = tool("publint", "run", tarball(), "--strict");
  assert.equal(status, 0, output);
  assert.match(output, /All good/);
});

test("attw finds the types right for every way of importing that an ESM package has", () => {
  const { output } = tool("attw", tarball(), "--profile", "esm-only", "--exclude-entrypoints", "./fireside_bg.wasm", "--format", "json");
  const { analysis } = JSON.parse(output);
  // CommonJS callers and the resolution of Node 10 are not served, which the profile says.
  const served = (problem) => !["node10", "node16-cjs"].includes(problem.resolutionKind);
  assert.deepEqual(analysis.problems.filter(served), []);
  for (const entry of [".", "./worker"]) {
    for (const kind of ["bundler", "node16-esm"]) assert.equal(analysis.entrypoints[entry].resolutions[kind].resolution?.isTypeScript, true, `${entry}: ${kind}`);
  }
});

test("the tarball holds the package and nothing else, each script with its types", () => {
  const root = installed(work);
  const files = fs.readdirSync(root, { recursive: true }).filter((name) => fs.statSync(path.join(root, name)).isFile());
  const known = /^(package\.json|README\.md|CHANGELOG\.md|LICENSE|docs\/[\w-]+\.md|pkg\/[\w/-]+\.(js|d\.ts)|pkg\/wasm\/fireside(\.js|\.d\.ts|_bg\.wasm|_bg\.wasm\.d\.ts))$/;
  assert.deepEqual(files.filter((name) => !known.test(name)), []);
  for (const script of files.filter((name) => name.endsWith(".js"))) {
    assert.ok(files.includes(script.replace(/\.js$/, ".d.ts")), script);
  }
  const { exports, files: listed } = JSON.parse(fs.readFileSync(path.join(root, "package.json"), "utf8"));
  for (const target of Object.values(exports).flatMap((entry) => (typeof entry === "string" ? [entry] : Object.values(entry)))) {
    assert.ok(files.includes(target.slice(2)), target);
  }
  for (const entry of Object.values(exports)) if (typeof entry === "object") assert.equal(Object.keys(entry)[0], "types");
  for (const entry of listed.filter((name) => !name.startsWith("!"))) assert.ok(fs.existsSync(path.join(root, entry)), `${entry} is listed and not there`);
  const all = files.filter((name) => /\.(js|d\.ts)$/.test(name)).map((name) => [name, fs.readFileSync(path.join(root, name), "utf8")]);
  for (const [name, text] of all) {
    assert.doesNotMatch(text, /sourceMappingURL/, `${name} names a map that is not shipped`);
    assert.doesNotMatch(text, /\beval\(|new Function\(|createObjectURL/, name);
    assert.doesNotMatch(text, /(?:fetch|import|importScripts|Worker|URL|from)\s*\(?\s*["'`](?:https?:)?\/\//, `${name} asks for an address of its own`);
  }
});

test("the types stand alone: in pages and in workers, however modules are resolved, with nothing left unchecked", { timeout: 1_200_000 }, () => {
  const folder = copyIn(work, "tests/package/fixtures/types");
  const cases = [
    { lib: ["ES2022", "DOM", "DOM.Iterable"], module: "ES2022", moduleResolution: "bundler" },
    { lib: ["ES2022", "DOM", "DOM.Iterable"], module: "NodeNext", moduleResolution: "NodeNext" },
    { lib: ["ES2022", "WebWorker"], module: "ES2022", moduleResolution: "bundler" },
  ];
  fs.writeFileSync(path.join(folder, "package.json"), '{ "type": "module" }');
  for (const given of cases) {
    const compilerOptions = { target: "ES2022", strict: true, skipLibCheck: false, noEmit: true, types: [], exactOptionalPropertyTypes: true, ...given };
    fs.writeFileSync(path.join(folder, "tsconfig.json"), JSON.stringify({ compilerOptions, files: ["consumer.ts"] }));
    const done = spawnSync(process.execPath, [path.join(ROOT, "node_modules/typescript/bin/tsc"), "-p", "."], { cwd: folder, encoding: "utf8" });
    assert.equal(done.stdout, "", JSON.stringify(given));
    assert.equal(done.status, 0);
  }
});

test("the examples and the fixtures pin the same versions", () => {
  const versions = (file) => {
    const { dependencies = {}, devDependencies = {} } = JSON.parse(fs.readFileSync(path.join(ROOT, file), "utf8"));
    return { ...dependencies, ...devDependencies };
  };
  const pins = versions("tests/package/package.json");
  for (const [name, version] of Object.entries(pins)) assert.match(version, /^(npm:[\w-]+@)?\d+\.\d+\.\d+$/, name);
  const { version: own } = JSON.parse(fs.readFileSync(path.join(ROOT, "package.json"), "utf8"));
  for (const example of ["vite", "next"]) {
    const { fireside, ...others } = versions(`examples/${example}/package.json`);
    assert.equal(fireside, `file:../../fireside-${own}.tgz`, "what `npm pack` makes in the root");
    for (const [name, version] of Object.entries(others)) assert.equal(version, pins[name], `${example}: ${name}`);
  }
});

test("importing it in Node does nothing and keeps nothing running; a load there is a typed error", () => {
  const code = `
    const names = () => JSON.stringify(Object.getOwnPropertyNames(globalThis).sort());
    const before = names();
    const { Engine, FiresideError, models, preflight } = await import("fireside");
    if (names() !== before) throw new Error("globals changed");
    if (typeof Engine.load !== "function" || typeof models.list !== "function" || typeof preflight !== "function") throw new Error("exports");
    const error = await Engine.load("model.gguf").catch((e) => e);
    if (!(error instanceof FiresideError)) throw error;
    console.log(error.code);
  `;
  const done = spawnSync(process.execPath, ["--input-type=module", "-e", code], { cwd: work.folder, encoding: "utf8", timeout: 300_000 });
  // A timer or port left open would keep it running until the time is out.
  assert.equal(done.status, 0, done.stderr);
  assert.equal(done.stdout.trim(), "load.invalid");
});

test("importing it in a page asks for scripts only and leaves the globals as they were", async () => {
  const browser = await openBrowser();
  const folder = copyIn(work, "tests/package/fixtures/plain");
  fs.rmSync(path.join(folder, "index.html"));
  fs.writeFileSync(path.join(folder, "index.html"), "<!doctype html><title>bare</title>");
  const server = await serveFolder(folder);
  try {
    const { page, asked, errors } = await openPage(browser.browser, server.url);
    const added = await page.evaluate(async () => {
      const before = new Set(Object.getOwnPropertyNames(globalThis));
      await import("./node_modules/fireside/pkg/index.js");
      return Object.getOwnPropertyNames(globalThis).filter((name) => !before.has(name));
    });
    assert.deepEqual(added, []);
    assert.deepEqual(errors, []);
    const others = asked.map((url) => new URL(url).pathname).filter((name) => !/\.js$|^\/$|favicon/.test(name));
    assert.deepEqual(others, []);
    assert.equal(asked.some((url) => url.endsWith("/worker.js")), false);
    assert.equal(page.workers().length, 0);
  } finally {
    await browser.close();
    server.close();
  }
});
