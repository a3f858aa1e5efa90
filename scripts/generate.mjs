/** `npm run generate -- "prompt"`: sets up, builds, loads a model in a headless browser and streams its text to the terminal. */
import { figures } from "../www/figures.js";
import { build } from "./lib/build.mjs";
import { UserError, errorLine } from "./lib/fail.mjs";
import { HELP, parseGenerate } from "./lib/generate-args.mjs";
import { checkModel, modelPath } from "./lib/model.mjs";
import { progressBar } from "./lib/progress.mjs";
import { openSession } from "./lib/session.mjs";
import { setup } from "./lib/setup.mjs";

const wantsJson = process.argv.includes("--json") || process.argv.some((word) => word.startsWith("--requests"));

/** One JSON line for one request's outcome. */
function jsonLine({ value, error }, backend, extra = {}) {
  if (error) return JSON.stringify({ error: { code: error.code, message: error.message, details: error.details ?? {} } });
  const [first] = value.choices;
  const line = {
    text: first.text,
    tokens: first.tokens,
    usage: value.usage,
    finish_reason: first.finish_reason,
    timings: value.timings,
    backend,
    ...(first.logprobs ? { logprobs: first.logprobs } : {}),
    ...(value.choices.length > 1 ? { choices: value.choices.map((choice, index) => ({ index, ...choice })) } : {}),
    ...extra,
  };
  return JSON.stringify(line);
}

/** Prints outcomes in input order as soon as all before them are there. */
function inOrder(print) {
  const ready = new Map();
  let next = 0;
  return (index, outcome) => {
    ready.set(index, outcome);
    for (; ready.has(next); next++) print(ready.get(next));
  };
}

/** Prints whatever comes while the engine loads and answers; knows which of the forms of output is wanted. */
function printer(args) {
  let bar = null;
  let phase = "";
  let backend = "";
  const lines = inOrder((outcome) => console.log(jsonLine(outcome, backend)));
  const at = args.requests.flatMap((request, index) => (request instanceof UserError ? [] : [index]));
  const endBar = () => {
    bar?.end();
    bar = null;
  };
  if (args.batch) args.requests.forEach((request, index) => request instanceof UserError && lines(index, { error: request }));
  return {
    setBackend(name) {
      backend = name;
      endBar();
    },
    onEvent(event) {
      if (event.type === "progress" && process.stderr.isTTY) {
        if (event.progress.phase !== phase) endBar();
        phase = event.progress.phase;
        if (event.progress.total > 1e6) (bar ??= progressBar(phase))(event.progress.loaded, event.progress.total);
      } else if (event.type === "warning") console.error(`warning: ${event.warning.message} (${event.warning.code})`);
      else if (event.type === "token" && !args.json && !args.batch && event.choice === 0) process.stdout.write(event.text);
      else if (event.type === "result" && args.batch) lines(at[event.request], event);
    },
  };
}

function printText({ choices }) {
  if (choices.length > 1) choices.slice(1).forEach((choice, index) => process.stdout.write(`\n\n[${index + 2}] ${choice.text}`));
  process.stdout.write("\n\n");
}

async function generate(args) {
  checkModel(args.model);
  await setup();
  const model = await modelPath(args.model);
  await build();
  const output = printer(args);
  const session = await openSession({ model, show: args.show, onEvent: output.onEvent });
  const stop = () => void session.close().finally(() => process.exit(130));
  process.once("SIGINT", stop).once("SIGTERM", stop);
  try {
    const requests = args.requests.filter((request) => !(request instanceof UserError));
    const load = { ...args.load, ...(requests.length > 64 ? { maxQueued: requests.length } : {}) };
    const info = await session.load(load);
    output.setBackend(info.backend);
    for (const warning of info.warnings) console.error(`warning: ${warning.message} (${warning.code})`);
    const outcomes = await session.generate(requests, { tokens: !args.json && !args.batch });
    const done = outcomes.flatMap(({ value }) => (value ? [value] : []));
    const measured = figures(info, done, await session.stats());
    const failed = outcomes.find(({ error }) => error)?.error;
    if (!args.batch) {
      if (failed) throw new UserError(failed.code, failed.message, failed.details);
      if (args.json) console.log(jsonLine(outcomes[0], info.backend, { figures: measured }));
      else printText(done[0]);
    }
    (args.json || args.batch ? console.error : console.log)(measured.line);
    return failed || requests.length < args.requests.length ? 2 : 0;
  } finally {
    process.off("SIGINT", stop).off("SIGTERM", stop);
    await session.close();
  }
}

try {
  const args = parseGenerate(process.argv.slice(2));
  if (args.help) process.stdout.write(HELP);
  else process.exitCode = await generate(args);
} catch (error) {
  if (!(error instanceof UserError)) throw error;
  if (wantsJson) console.log(jsonLine({ error }));
  console.error(errorLine(error));
  process.exitCode = 2;
}
