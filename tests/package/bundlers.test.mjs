/** The installed package through bundlers: the Vite and Next examples and a webpack project build it and stream; what is unused is dropped, the Worker is not. */
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import fs from "node:fs";
import path from "node:path";
import { after, before, test } from "node:test";
import { ROOT } from "../../scripts/lib/paths.mjs";
import { assertCompletes, copyIn, openBrowser, openInstalled, openPage, outside, serveFolder } from "./support.mjs";

let work;
let browser;
const ended = [];
/** Nothing that was started here outlives a run that dies. */
const children = [];
process.on("exit", () => children.forEach((child) => child.kill()));

before(async () => {
  work = await openInstalled();
  browser = await openBrowser();
});

after(async () => {
  await Promise.all(ended.map((end) => end()));
  await browser?.close();
  work?.close();
});

/** How long a server may take to say where it is. */
const START_MS = 300_000;
const ENV = { ...process.env, NEXT_TELEMETRY_DISABLED: "1", CI: "1", NO_COLOR: "1" };

/** Each bundler's command. Two versions of Vite share one name in node_modules/.bin. */
const BIN = { vite: "vite/bin/vite.js", "vite-7": "vite-7/bin/vite.js", webpack: "webpack-cli/bin/cli.js", esbuild: "esbuild/bin/esbuild", next: "next/dist/bin/next" };

function bundler(folder, name, args) {
  const bin = path.join(work.folder, "../../node_modules", BIN[name]);
  // esbuild's is a program of its own, or a script that says by itself what runs it.
  const command = name === "esbuild" ? [bin] : [process.execPath, bin];
  const child = spawn(command[0], [...command.slice(1), ...args], { cwd: folder, env: ENV, stdio: ["ignore", "pipe", "pipe"] });
  children.push(child);
  return child;
}

/** Runs to the end; the output, or an error with it. */
async function build(folder, name, args) {
  const child = bundler(folder, name, args);
  let output = "";
  for (const stream of [child.stdout, child.stderr]) stream.setEncoding("utf8").on("data", (text) => (output += text));
  const status = await new Promise((resolve) => child.on("close", resolve));
  assert.equal(status, 0, output);
  return output;
}

/** Starts a server and waits until it names its address. */
async function start(folder, name, args) {
  const child = bundler(folder, name, args);
  const closed = new Promise((resolve) => child.on("close", resolve));
  ended.push(async () => {
    child.kill();
    await closed;
  });
  let output = "";
  const url = await new Promise((resolve, reject) => {
    const listen = (text) => {
      output += text;
      const found = /http:\/\/(?:localhost|127\.0\.0\.1):\d+(?=[/\s])/.exec(output)?.[0];
      if (found) resolve(found);
    };
    for (const stream of [child.stdout, child.stderr]) stream.setEncoding("utf8").on("data", listen);
    void closed.then((status) => reject(new Error(`${name} ended with ${status}: ${output}`)));
    setTimeout(() => reject(new Error(`${name} named no address: ${output}`)), START_MS).unref();
  });
  return url;
}

/** Opens an app and completes a prompt in it, with nothing from outside and nothing gone wrong. */
async function assertApp(url, options) {
  const { page, asked, errors, close } = await openPage(browser.browser, url, options);
  try {
    await assertCompletes(work, browser.browser, page);
    assert.deepEqual(outside(asked), []);
    assert.deepEqual(errors, []);
    return asked;
  } finally {
    await close();
  }
}

const filesUnder = (folder) => fs.readdirSync(folder, { recursive: true }).filter((name) => fs.statSync(path.join(folder, name)).isFile());
const wasmFiles = (folder) => filesUnder(folder).filter((name) => name.endsWith(".wasm"));

test("Vite: the example's build", { timeout: 1_200_000 }, async () => {
  const folder = copyIn(work, "examples/vite", { model: "public/model.gguf" });
  await build(folder, "vite", ["build"]);
  const dist = path.join(folder, "dist");
  assert.equal(wasmFiles(dist).length, 1, "the wasm is there once");
  const server = await serveFolder(dist);
  try {
    const asked = await assertApp(server.url);
    assert.equal(asked.some((url) => url.includes("node_modules")), false, "the built app stands alone");
  } finally {
    server.close();
  }
});

test("Vite: the wasm and the Worker placed by the app itself", { timeout: 1_200_000 }, async () => {
  const folder = copyIn(work, "examples/vite", { model: "public/model.gguf" });
  const main = path.join(folder, "main.js");
  const code = fs.readFileSync(main, "utf8").replace('"/model.gguf", {', '"/model.gguf", { wasm, worker: new EngineWorker(),');
  const imports = 'import wasm from "fireside/fireside_bg.wasm?url";\nimport EngineWorker from "fireside/worker?worker";\n';
  fs.writeFileSync(main, imports + code);
  await build(folder, "vite", ["build", "--assetsDir", "elsewhere"]);
  const server = await serveFolder(path.join(folder, "dist"));
  try {
    const asked = await assertApp(server.url);
    assert.deepEqual([...new Set(asked.filter((url) => /wasm|worker/.test(url)).map((url) => new URL(url).pathname.split("/")[1]))], ["elsewhere"]);
  } finally {
    server.close();
  }
});

/** The command as docs/package.md has it. */
const [, ...ESBUILD] = /^esbuild main\.js .+$/m.exec(fs.readFileSync(path.join(ROOT, "docs/package.md"), "utf8"))[0].split(" ");

const DEV = ["--host", "127.0.0.1", "--port", "0"];

test("Vite: the example's dev server, of this version and of the last", { timeout: 1_200_000 }, async () => {
  for (const vite of ["vite", "vite-7"]) await assertApp(await start(copyIn(work, "examples/vite", { model: "public/model.gguf" }), vite, DEV));
});

test("Vite: without the advice this version's dev server runs, and the last one's error says what to do", { timeout: 1_200_000 }, async () => {
  const bare = () => {
    const folder = copyIn(work, "examples/vite", { model: "public/model.gguf" });
    fs.rmSync(path.join(folder, "vite.config.js"));
    return folder;
  };
  await assertApp(await start(bare(), "vite", DEV));
  const { page, close } = await openPage(browser.browser, await start(bare(), "vite-7", DEV));
  try {
    await page.waitForFunction(() => /^[\w.]+: | on cpu$/.test(document.querySelector("#status").textContent));
    assert.match(await page.textContent("#status"), /^worker\.failed: .*optimizeDeps\.exclude/);
  } finally {
    await close();
  }
});

test("what is not used is dropped, the Worker is kept with the engine", { timeout: 1_200_000 }, async () => {
  const folder = copyIn(work, "examples/vite");
  const dist = path.join(folder, "dist");
  const files = async (code) => {
    fs.writeFileSync(path.join(folder, "main.js"), code);
    await build(folder, "vite", ["build"]);
    return filesUnder(dist).filter((name) => /\.(js|wasm)$/.test(name));
  };
  const error = await files('import { FiresideError } from "fireside";\nglobalThis.made = new FiresideError("a.b", "c");\n');
  // Vite puts out a file that some module names even where it drops that module; no page will fetch it.
  const scripts = error.filter((name) => name.endsWith(".js"));
  assert.equal(scripts.length, 1, error.join());
  assert.ok(fs.statSync(path.join(dist, scripts[0])).size < 5_000, "the error class alone");
  const engine = await files('import { Engine } from "fireside";\nglobalThis.Engine = Engine;\n');
  assert.ok(engine.some((name) => /worker[^/]*\.js$/.test(name)), engine.join());
  assert.equal(engine.filter((name) => name.endsWith(".wasm")).length, 1);
  const given = await files('import "fireside/worker";\n');
  assert.equal(given.filter((name) => name.endsWith(".wasm")).length, 1, "imported for its effect, the Worker's script is kept");
});

test("webpack 5, with nothing configured", { timeout: 1_200_000 }, async () => {
  const folder = copyIn(work, "tests/package/fixtures/webpack");
  fs.mkdirSync(path.join(folder, "src"));
  const example = (name) => fs.readFileSync(path.join(copyIn(work, "examples/html"), name), "utf8");
  fs.writeFileSync(path.join(folder, "src/main.js"), example("main.js"));
  const output = await build(folder, "webpack", []);
  assert.doesNotMatch(output, /WARNING|ERROR/);
  const dist = path.join(folder, "dist");
  assert.equal(wasmFiles(dist).length, 1, output);
  fs.writeFileSync(path.join(dist, "index.html"), example("index.html").replace(/<script type="importmap">[^]*?<\/script>/, ""));
  const server = await serveFolder(dist);
  try {
    await assertApp(server.url);
  } finally {
    server.close();
  }
});

test("esbuild, with the Worker as a second entry and the wasm copied", { timeout: 1_200_000 }, async () => {
  const folder = copyIn(work, "examples/html");
  await build(folder, "esbuild", ESBUILD);
  const dist = path.join(folder, "dist");
  fs.copyFileSync(path.join(folder, "node_modules/fireside/pkg/wasm/fireside_bg.wasm"), path.join(dist, "fireside_bg.wasm"));
  const html = fs.readFileSync(path.join(folder, "index.html"), "utf8").replace(/<script type="importmap">[^]*?<\/script>/, "");
  fs.writeFileSync(path.join(dist, "index.html"), html);
  const server = await serveFolder(dist);
  try {
    await assertApp(server.url);
    fs.rmSync(path.join(dist, "worker.js"));
    const { page, close } = await openPage(browser.browser, server.url);
    await page.waitForFunction(() => document.querySelector("#status").textContent.startsWith("worker.failed: "));
    await close();
  } finally {
    server.close();
  }
});

test("Next: the example's build and server, its page rendered without a window", { timeout: 1_200_000 }, async () => {
  const folder = copyIn(work, "examples/next", { model: "public/model.gguf" });
  await build(folder, "next", ["build"]);
  const url = await start(folder, "next", ["start", "--hostname", "127.0.0.1", "--port", "0"]);
  const html = await (await fetch(url)).text();
  assert.match(html, /<input[^>]+name="prompt"/, "the client component is rendered on the server");
  await assertApp(url, { paced: true });
});

test("Next: the example's dev server", { timeout: 1_200_000 }, async () => {
  const folder = copyIn(work, "examples/next", { model: "public/model.gguf" });
  // By the name that its dev server knows itself under: others' requests it refuses.
  await assertApp(await start(folder, "next", ["dev", "--hostname", "localhost", "--port", "0"]), { paced: true });
});
