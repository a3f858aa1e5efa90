/** Runs Node's test runner over the tests of a folder, and keeps what failed for the end of the run, where it is read first. */
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { run } from "./exec.mjs";
import { UserError } from "./fail.mjs";
import { ROOT } from "./paths.mjs";

const REPORTER = path.join(ROOT, "scripts/lib/failures.mjs");

function testFiles(folder) {
  const files = fs.readdirSync(path.join(ROOT, folder)).filter((name) => name.endsWith(".test.mjs"));
  if (files.length === 0) throw new UserError("tests.missing", `there are no tests in ${folder}`);
  return files.sort().map((name) => path.join(ROOT, folder, name));
}

/**
 * Runs `folder`'s tests, `together` files at a time; throws with what failed in the error's `details`.
 * Two by default: a test mostly waits for a page or a server, and Node's own default is one less than the cores.
 */
export async function nodeTests(folder, { env, together = 2 } = {}) {
  const kept = fs.mkdtempSync(path.join(os.tmpdir(), "fireside-tests-"));
  const failures = path.join(kept, "failures.txt");
  const reporters = ["--test-reporter=tap", "--test-reporter-destination=stdout", `--test-reporter=${REPORTER}`, `--test-reporter-destination=${failures}`];
  try {
    await run(process.execPath, ["--test", "--test-force-exit", `--test-concurrency=${together}`, ...reporters, ...testFiles(folder)], { env });
  } catch {
    // The command names every file; what failed says more.
    const details = fs.existsSync(failures) ? fs.readFileSync(failures, "utf8").trim() : "";
    throw Object.assign(new UserError("tests.failed", `tests of ${folder} failed`), { details });
  } finally {
    fs.rmSync(kept, { recursive: true, force: true });
  }
}
