/** The command line of `generate`, checked for shape; values of request fields are the engine's to judge. */
import fs from "node:fs";
import { parseArgs } from "node:util";
import { UserError } from "./fail.mjs";

export const HELP = `usage: npm run generate -- [options] "prompt"

  --model PATH|URL            a GGUF file (default: SmolLM2-135M-Instruct, fetched once)
  --backend auto|webgpu|cpu   where to run (default auto)
  --max-tokens N              (default 128; lines of --requests: what the context has left)
  --temperature X             0 is greedy (default 1)
  --top-k N  --top-p X  --min-p X  --typical-p X
  --repetition-penalty X  --presence-penalty X  --frequency-penalty X
  --logit-bias JSON           {"token id": bias}
  --seed N  --stop TEXT (again for more)  --n N  --logprobs N
  --response-format JSON      {"type": "text"} only; others are refused in this version
  --adapter NAME              refused in this version
  --chat                      apply the model's chat template to the prompt
  --system TEXT               a system message (implies --chat)
  --context-length N          longest sequence in tokens
  --json                      one JSON line instead of text
  --requests FILE.jsonl       a request a line, all at once to one engine; a JSON line for each, in order
  --show                      a visible browser
  --help

FIRESIDE_MODEL names another default model, CHROMIUM the browser, FIRESIDE_GPU=1 or 0 whether it may use a GPU.
`;

const string = { type: "string" };
const flag = { type: "boolean" };
/** Request fields by their flag, with how their text becomes a value. */
const FIELDS = {
  "max-tokens": number,
  temperature: number,
  "top-k": number,
  "top-p": number,
  "min-p": number,
  "typical-p": number,
  "repetition-penalty": number,
  "presence-penalty": number,
  "frequency-penalty": number,
  "logit-bias": json,
  seed: number,
  n: number,
  logprobs: number,
  "response-format": json,
  adapter: (text) => text,
};
const OPTIONS = {
  ...Object.fromEntries(Object.keys(FIELDS).map((name) => [name, string])),
  stop: { type: "string", multiple: true },
  model: string,
  backend: string,
  "context-length": string,
  chat: flag,
  system: string,
  json: flag,
  requests: string,
  show: flag,
  help: flag,
};
const DEFAULT_MAX_TOKENS = 128;

function bad(message, details = {}) {
  return new UserError("arguments.invalid", message, details);
}

function number(text, name) {
  const value = text.trim() === "" ? NaN : Number(text);
  if (!Number.isFinite(value)) throw bad(`--${name} must be a number, not ${JSON.stringify(text)}`, { option: name, got: text });
  return value;
}

function json(text, name) {
  try {
    return JSON.parse(text);
  } catch {
    throw bad(`--${name} must be JSON, not ${JSON.stringify(text)}`, { option: name, got: text });
  }
}

/** `--name -0.5` reads as two flags otherwise, and `--max_tokens` is how the field is spelt. */
function normalise(argv) {
  const out = [];
  let rest = false;
  for (const word of argv) {
    const previous = out.at(-1) ?? "";
    if (rest || word === "--") {
      rest = true;
      out.push(word);
    } else if (/^-(\d|\.\d)/.test(word) && /^--[a-z-]+$/.test(previous)) out[out.length - 1] = `${previous}=${word}`;
    else out.push(word.replace(/^--[a-z_]+/, (name) => name.replaceAll("_", "-")));
  }
  return out;
}

/** What `generate` is to do. `requests` are GenerateRequests, or UserErrors for lines that are none. */
export function parseGenerate(argv) {
  let parsed;
  try {
    parsed = parseArgs({ args: normalise(argv), options: OPTIONS, allowPositionals: true });
  } catch (error) {
    throw bad(error.message.split(". ")[0]);
  }
  const { values, positionals } = parsed;
  if (values.help) return { help: true };
  if (positionals.length > 1) throw bad(`one prompt is expected, not ${positionals.length}: put it in quotes`);
  if (positionals.length === 1 && values.requests !== undefined) throw bad("give a prompt or --requests, not both");
  if (positionals.length === 0 && values.requests === undefined) throw bad("a prompt is missing (--help lists the options)");
  const backend = values.backend ?? "auto";
  if (!["auto", "webgpu", "cpu"].includes(backend)) throw bad(`--backend must be auto, webgpu or cpu, not ${JSON.stringify(backend)}`, { option: "backend", got: backend });
  const load = { backend };
  if (values["context-length"] !== undefined) load.contextLength = number(values["context-length"], "context-length");
  const fields = requestFields(values);
  const chat = { chat: values.chat || values.system !== undefined, system: values.system };
  const requests =
    values.requests === undefined
      ? [withChat({ max_tokens: DEFAULT_MAX_TOKENS, ...fields, prompt: positionals[0] }, chat)]
      : readRequests(values.requests, fields, chat);
  return { model: values.model, load, json: values.json ?? false, show: values.show ?? false, batch: values.requests !== undefined, requests };
}

function requestFields(values) {
  const fields = {};
  for (const [name, convert] of Object.entries(FIELDS)) {
    if (values[name] !== undefined) fields[name.replaceAll("-", "_")] = convert(values[name], name);
  }
  if (values.stop !== undefined) fields.stop = values.stop;
  return fields;
}

/** Turns a text prompt into messages where the template is to be applied. */
function withChat(request, { chat, system }) {
  if (!chat) return request;
  const { prompt, ...rest } = request;
  const before = system === undefined ? [] : [{ role: "system", content: system }];
  if (Array.isArray(rest.messages)) {
    const has = rest.messages[0]?.role === "system";
    return has ? request : { ...request, messages: [...before, ...rest.messages] };
  }
  if (typeof prompt !== "string") return request;
  return { ...rest, messages: [...before, { role: "user", content: prompt }] };
}

function readRequests(file, fields, chat) {
  let text;
  try {
    text = fs.readFileSync(file, "utf8");
  } catch (error) {
    throw new UserError("requests.unreadable", `${file} could not be read: ${error.code ?? error.message}`, { path: file });
  }
  const requests = [];
  text.split("\n").forEach((line, index) => {
    if (line.trim() === "") return;
    try {
      const request = JSON.parse(line);
      if (typeof request !== "object" || request === null || Array.isArray(request)) throw new SyntaxError("not an object");
      requests.push(withChat({ ...fields, ...request }, chat));
    } catch (error) {
      requests.push(new UserError("requests.invalid", `line ${index + 1} of ${file} is not a request: ${error.message}`, { path: file, line: index + 1 }));
    }
  });
  if (requests.length === 0) throw new UserError("requests.invalid", `${file} holds no request`, { path: file });
  return requests;
}
