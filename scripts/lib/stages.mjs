/** The stages of `npm test`, in order: quick checks first, so that what is wrong shows early. */
import fs from "node:fs";
import path from "node:path";
import { output, run } from "./exec.mjs";
import { UserError } from "./fail.mjs";
import { ROOT, which } from "./paths.mjs";
import { build } from "./build.mjs";
import { defaultModel } from "./model.mjs";
import { nodeTests } from "./node-tests.mjs";
import { openWork } from "./package-work.mjs";
import { hasDeny, setup, setupBrowsers, setupDeny, setupVulkan, vulkanEnv } from "./setup.mjs";

const NATIVE = ["--features", "cpu,webgpu"];
/** The package's own profile and features: one build of the dependencies serves both. */
const WASM = ["--release", "--target", "wasm32-unknown-unknown", "--features", "cpu,webgpu,web"];
/** Seconds that one wasm test may take. */
const WASM_TEST_TIMEOUT = "600";

/** A stage that could not do its work here, said aloud in the summary. */
export class Skipped extends Error {}

const cargo = (...args) => run("cargo", args);
const script = (name, ...args) => run(process.execPath, [path.join(ROOT, "scripts", name), ...args]);
const bin = (name, ...args) => run(process.execPath, [path.join(ROOT, "node_modules", name), ...args]);

const mentions = (file, text) => fs.readFileSync(path.join(ROOT, file), "utf8").includes(text);

/** Test targets with wasm tests: integration tests by where they say they run, and under Node the rooms' own unit tests. */
function wasmTests(where) {
  const inBrowser = (file) => mentions(file, "run_in_browser") || mentions(file, "run_in_dedicated_worker");
  const targets = fs.readdirSync(path.join(ROOT, "tests"))
    .filter((name) => name.endsWith(".rs") && mentions(`tests/${name}`, "wasm_bindgen_test"))
    .filter((name) => inBrowser(`tests/${name}`) === (where === "browser"))
    .flatMap((name) => ["--test", path.basename(name, ".rs")]);
  if (where === "node") {
    const sources = fs.readdirSync(path.join(ROOT, "src"), { recursive: true }).filter((name) => name.endsWith(".rs"));
    if (sources.some((name) => mentions(`src/${name}`, "wasm_bindgen_test"))) targets.push("--lib");
  }
  if (targets.length === 0) throw new UserError("tests.missing", `there are no wasm tests for ${where}`);
  return targets;
}

/** Those of the native tests that want the real model fail without it. */
async function modelEnv() {
  return { FIRESIDE_MODEL: await defaultModel(), FIRESIDE_REQUIRE_MODEL: "1" };
}

/** Everything that runs natively, with both backends: on a machine without a Vulkan driver tests of WebGPU skip themselves, which is said. */
async function native({ quick }) {
  await setupVulkan();
  const driver = vulkanEnv();
  const missing = "no Vulkan driver: install mesa-vulkan-drivers, or Chromium";
  if (!driver && !quick) throw new UserError("setup.missing", missing);
  const required = driver ? { ...driver, FIRESIDE_REQUIRE_GPU: "1" } : {};
  await run("cargo", ["test", "--no-fail-fast", ...NATIVE], { env: { ...required, ...(await modelEnv()) } });
  if (!driver) throw new Skipped(`on WebGPU (${missing}); passed on the CPU`);
}

/** Milliseconds that the database of advisories may take to arrive. */
const ADVISORIES_TIMEOUT = 60_000;

/** Licences, bans and sources always; advisories where their database can be reached. */
async function deny({ quick }) {
  if (quick && !hasDeny()) throw new Skipped("cargo-deny is not installed");
  await setupDeny();
  await cargo("deny", "--all-features", "check", "-D", "warnings", "licenses", "bans", "sources");
  const fetched = output("cargo", ["deny", "fetch", "db"], { env: { GIT_TERMINAL_PROMPT: "0" }, timeout: ADVISORIES_TIMEOUT });
  if (fetched === null) console.log("advisories were not checked: their database cannot be reached from here");
  else await cargo("deny", "--all-features", "check", "--disable-fetch", "advisories");
}

/** Runs the tests of a folder one after another in one installed copy of the packed tarball. */
async function onInstalled(folder) {
  const work = await openWork();
  try {
    const env = { FIRESIDE_PACKAGE_WORK: work.folder };
    await nodeTests(folder, { env, together: 1 });
  } finally {
    work.close();
  }
}

async function browsers() {
  const missing = await setupBrowsers();
  await onInstalled("tests/browsers");
  if (missing.length > 0) throw new Skipped(`not in ${missing.join(" and ")}, which cannot be installed here; passed in the others`);
}

/** `browser`: needs one, so `--quick` leaves it out. */
export const STAGES = [
  { name: "setup", work: ({ quick }) => setup({ browser: !quick, driver: !quick }) },
  { name: "model", work: () => defaultModel() },
  { name: "fmt", work: () => cargo("fmt", "--check") },
  { name: "types", work: () => bin("typescript/bin/tsc", "--noEmit", "-p", "tsconfig.json") },
  { name: "contract", work: () => bin("typescript/bin/tsc", "-p", "tsconfig.contract.json") },
  { name: "eslint", work: () => bin("eslint/bin/eslint.js", ".", "--max-warnings", "0") },
  { name: "docs", work: () => script("docs.mjs", "--check") },
  { name: "js", work: () => nodeTests("tests/js") },
  { name: "clippy", work: () => cargo("clippy", "--all-targets", "--", "-D", "warnings") },
  { name: "clippy-backends", work: () => cargo("clippy", "--all-targets", ...NATIVE, "--", "-D", "warnings") },
  { name: "test", work: native },
  { name: "rustdoc", work: () => run("cargo", ["doc", "--no-deps", ...NATIVE], { env: { RUSTDOCFLAGS: "-D warnings" } }) },
  { name: "deny", work: deny },
  // The package's library and its tests, compiled beside each other.
  { name: "wasm", work: () => cargo("test", ...WASM, ...wasmTests("node"), ...wasmTests("browser"), "--no-run") },
  { name: "build", work: () => build() },
  { name: "size", work: () => script("size.mjs") },
  { name: "clippy-wasm", work: () => cargo("clippy", ...WASM, "--", "-D", "warnings") },
  { name: "wasm-node", work: () => cargo("test", ...WASM, ...wasmTests("node")) },
  {
    name: "wasm-browser",
    browser: true,
    work: () => {
      const env = { CHROMEDRIVER: which("chromedriver") ?? "chromedriver", WASM_BINDGEN_TEST_TIMEOUT: WASM_TEST_TIMEOUT };
      return run("cargo", ["test", ...WASM, ...wasmTests("browser")], { env });
    },
  },
  { name: "browser", browser: true, work: () => nodeTests("tests/browser") },
  { name: "package", browser: true, work: () => onInstalled("tests/package") },
  { name: "browsers", browser: true, work: browsers },
];
