/** `npm test`: sets up and runs every stage, says how long each took, and goes on after a failure so that one run shows all.
 *
 * `-- --quick` leaves out what needs a browser; `-- --only a,b` runs some stages; `-- --list` names them.
 */
import { errorLine, UserError } from "./lib/fail.mjs";
import { Skipped, STAGES } from "./lib/stages.mjs";

const argv = process.argv.slice(2);

function chosen() {
  const quick = argv.includes("--quick");
  const only = argv.includes("--only") ? (argv[argv.indexOf("--only") + 1] ?? "").split(",") : null;
  const unknown = [
    ...argv.filter((word, i) => !["--quick", "--only", "--list"].includes(word) && argv[i - 1] !== "--only"),
    ...(only ?? []).filter((name) => !STAGES.some((stage) => stage.name === name)),
  ];
  if (unknown.length > 0) throw new UserError("arguments.invalid", `unknown: ${unknown.join(", ")} (stages: ${STAGES.map((s) => s.name).join(", ")})`);
  return { quick, stages: STAGES.filter((stage) => (only ? only.includes(stage.name) : !(quick && stage.browser))) };
}

async function runStage(stage, options) {
  console.log(`\n=== ${stage.name}`);
  const started = performance.now();
  const took = () => (performance.now() - started) / 1000;
  try {
    await stage.work(options);
    return { name: stage.name, result: "ok", seconds: took() };
  } catch (error) {
    if (error instanceof Skipped) return { name: stage.name, result: `skipped: ${error.message}`, seconds: took() };
    const text = error instanceof UserError ? errorLine(error) : error.stack;
    console.error(text);
    return { name: stage.name, result: "FAILED", seconds: took(), error: text, details: error.details };
  }
}

async function main() {
  const options = chosen();
  if (argv.includes("--list")) {
    options.stages.forEach((stage) => console.log(stage.name));
    return 0;
  }
  const results = [];
  for (const stage of options.stages) {
    const result = await runStage(stage, options);
    console.log(`=== ${result.name}: ${result.result}, ${result.seconds.toFixed(1)} s`);
    results.push(result);
    // Nothing can follow a setup that failed.
    if (stage.name === "setup" && result.error) break;
  }
  console.log("\nstage                seconds  result");
  for (const { name, seconds, result } of results) console.log(`${name.padEnd(18)} ${seconds.toFixed(1).padStart(9)}  ${result}`);
  console.log(`${"all".padEnd(18)} ${results.reduce((sum, r) => sum + r.seconds, 0).toFixed(1).padStart(9)}`);
  // Last, where whoever reads a long log looks first.
  for (const { name, error, details } of results.filter((result) => result.error)) console.log(`\n=== ${name} failed: ${error}\n${typeof details === "string" ? details : ""}`);
  return results.some((result) => result.error) ? 1 : 0;
}

try {
  process.exitCode = await main();
} catch (error) {
  if (!(error instanceof UserError)) throw error;
  console.error(errorLine(error));
  process.exitCode = 2;
}
