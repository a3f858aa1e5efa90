/** Guided fuzzing with cargo-fuzz (libFuzzer): what it needs is installed, each target of fuzz/ runs for a given time from what is known to be nasty. */
import fs from "node:fs";
import path from "node:path";
import { output, run } from "./exec.mjs";
import { CACHE, ROOT, TOOLS } from "./paths.mjs";

const VERSION = "0.13.2";
const FUZZ = path.join(ROOT, "fuzz");
/** Seconds that one input may take, and MiB that the process may have. */
const LIMITS = ["-timeout=5", "-rss_limit_mb=1024"];
/** Where each target starts. */
const SEEDS = { gguf_header: ["tests/goldens/hostile", "tests/goldens/tiny"] };

async function setupFuzz() {
  if (output("rustup", ["run", "nightly", "rustc", "--version"]) === null) await run("rustup", ["toolchain", "install", "nightly", "--profile", "minimal"]);
  if (output("cargo-fuzz", ["--version"]) === `cargo-fuzz ${VERSION}`) return;
  console.error(`fuzz: installing cargo-fuzz ${VERSION} (some minutes, once)`);
  const build = path.join(TOOLS, "build-fuzz");
  await run("cargo", ["install", "cargo-fuzz", "--version", `=${VERSION}`, "--locked", "--root", TOOLS, "--force"], { env: { CARGO_TARGET_DIR: build } });
  fs.rmSync(build, { recursive: true, force: true });
}

/** Copies of the seeds that are GGUF files or parts of them, small enough to mutate well. */
function seed(target, corpus) {
  fs.mkdirSync(corpus, { recursive: true });
  for (const folder of SEEDS[target] ?? []) {
    for (const name of fs.readdirSync(path.join(ROOT, folder)).filter((name) => name.endsWith(".gguf"))) {
      // A header is what is fuzzed; tensors behind it are bulk.
      fs.writeFileSync(path.join(corpus, name), fs.readFileSync(path.join(ROOT, folder, name)).subarray(0, 64 << 10));
    }
  }
}

/**
 * Runs every target for `seconds`. What is found is kept in the cache, as is what crashes. Throws on the first input that panics, hangs or
 * takes too much. Gives the number of inputs for each target.
 */
export async function guidedFuzz(seconds) {
  await setupFuzz();
  const targets = fs.readdirSync(path.join(FUZZ, "fuzz_targets")).map((name) => path.basename(name, ".rs"));
  const inputs = {};
  for (const target of targets) {
    const kept = path.join(CACHE, "fuzz", target);
    const log = path.join(kept, "log.txt");
    seed(target, path.join(kept, "corpus"));
    fs.mkdirSync(path.join(kept, "artifacts"), { recursive: true });
    const libfuzzer = [`-max_total_time=${seconds}`, ...LIMITS, "-print_final_stats=1", `-artifact_prefix=${path.join(kept, "artifacts")}/`];
    const args = ["run", "nightly", "cargo", "fuzz", "run", "--fuzz-dir", FUZZ, target, path.join(kept, "corpus"), "--", ...libfuzzer];
    await run("rustup", args, { log }).catch((error) => {
      console.error(fs.readFileSync(log, "utf8").split("\n").slice(-60).join("\n"));
      throw error;
    });
    inputs[target] = Number(/number_of_executed_units:\s*(\d+)/.exec(fs.readFileSync(log, "utf8"))?.[1]);
  }
  return inputs;
}
