/** Checks requests: types and ranges here, what depends on the model (vocabulary, context) in the engine. Nothing is ignored. */
import * as check from "./check.js";
import { requestUnsupported } from "./errors.js";
import type { Limits } from "./client.js";
import type { RequestOptions } from "./types.js";

const SAMPLING = [
  "temperature",
  "top_k",
  "top_p",
  "min_p",
  "typical_p",
  "repetition_penalty",
  "presence_penalty",
  "frequency_penalty",
  "logit_bias",
  "seed",
  "stop",
  "n",
] as const;
const FIELDS = [...SAMPLING, "prompt", "messages", "max_tokens", "logprobs", "response_format", "adapter"] as const;

/** A request once checked: the JSON part, and the prompt's ids when it came as ids. */
export interface CheckedRequest {
  request: Record<string, unknown>;
  prompt: Uint32Array | null;
}

/** Throws `request.invalid` for a wrong value and `request.unsupported` for what this version does not do. */
export function checkRequest(value: unknown): CheckedRequest {
  const given = check.record("request", "request", value);
  check.knownFields("request", "GenerateRequest", given, FIELDS);
  if (!check.absent(given["adapter"])) throw requestUnsupported("adapter", "this version loads no adapters");
  checkResponseFormat(given["response_format"]);
  const request: Record<string, unknown> = {};
  for (const field of SAMPLING) {
    const setting = given[field];
    if (!check.absent(setting)) request[field] = checkSampling(field, setting);
  }
  request["seed"] ??= randomSeed();
  for (const field of ["max_tokens", "logprobs"] as const) {
    const count = given[field];
    if (!check.absent(count)) request[field] = check.integer("request", field, count, 0, 0xffff_ffff);
  }
  return { request, prompt: checkPrompt(given, request) };
}

function checkPrompt(given: Record<string, unknown>, request: Record<string, unknown>): Uint32Array | null {
  const { prompt, messages } = given;
  if (check.absent(prompt) === check.absent(messages)) {
    const got = check.absent(prompt) ? "neither" : "both";
    throw check.invalid("request", "prompt", "given, or messages instead", got);
  }
  if (Array.isArray(messages)) {
    request["messages"] = messages.map((message, i) => checkMessage(message, `messages[${String(i)}]`));
    return null;
  }
  if (!check.absent(messages)) throw check.invalid("request", "messages", "an array of messages", messages);
  if (typeof prompt !== "string") return check.tokenIds("request", "prompt", prompt);
  request["prompt"] = prompt;
  return null;
}

const ROLES = ["system", "developer", "user", "assistant", "tool"] as const;

/** Checks a message's outline; what a role may hold is for the model's template to say. */
export function checkMessage(value: unknown, field: string): Record<string, unknown> {
  const message = check.record("request", field, value);
  check.knownFields("request", field, message, ["role", "content", "name", "tool_calls", "tool_call_id"]);
  check.oneOf("request", `${field}.role`, message["role"], ROLES);
  const content = message["content"];
  if (Array.isArray(content)) {
    content.forEach((part: unknown, i) => {
      const where = `${field}.content[${String(i)}]`;
      const { type, text } = check.record("request", where, part);
      if (type !== "text") throw requestUnsupported(`${where} of type ${check.describe(type)}`, "only text is understood");
      check.string("request", `${where}.text`, text);
    });
  } else if (!check.absent(content)) check.string("request", `${field}.content`, content);
  for (const name of ["name", "tool_call_id"] as const) {
    if (!check.absent(message[name])) check.string("request", `${field}.${name}`, message[name]);
  }
  if (!check.absent(message["tool_calls"]) && !Array.isArray(message["tool_calls"])) {
    throw check.invalid("request", `${field}.tool_calls`, "an array", message["tool_calls"]);
  }
  return message;
}

function checkResponseFormat(value: unknown): void {
  if (check.absent(value)) return;
  const format = check.record("request", "response_format", value);
  if (format["type"] !== "text") {
    throw requestUnsupported(`response_format ${check.describe(format["type"])}`, "this version writes plain text only");
  }
  check.knownFields("request", "response_format", format, ["type"]);
}

function checkSampling(field: (typeof SAMPLING)[number], value: unknown): unknown {
  switch (field) {
    case "temperature":
      return check.number("request", field, value, 0, Infinity);
    case "top_p":
    case "min_p":
    case "typical_p":
      return check.number("request", field, value, 0, 1);
    case "repetition_penalty":
      return check.number("request", field, value, 0, Infinity);
    case "presence_penalty":
    case "frequency_penalty":
      return check.number("request", field, value, -Infinity, Infinity);
    case "top_k":
      return check.integer("request", field, value, 0, 0xffff_ffff);
    case "seed":
      return check.integer("request", field, value, 0);
    case "n":
      return check.integer("request", field, value, 1, 0xffff_ffff);
    case "stop": {
      const list: unknown[] = Array.isArray(value) ? value : [value];
      return list.map((text, i) => check.string("request", Array.isArray(value) ? `stop[${String(i)}]` : "stop", text));
    }
    case "logit_bias": {
      const entries = Object.entries(check.record("request", field, value));
      for (const [token, bias] of entries) {
        const where = `logit_bias[${JSON.stringify(token)}]`;
        if (!/^\d{1,10}$/.test(token)) throw check.invalid("request", where, "keyed by a token id", token);
        check.number("request", where, bias, -Infinity, Infinity);
      }
      return value;
    }
  }
}

/** A seed that survives JSON exactly. */
function randomSeed(): number {
  return crypto.getRandomValues(new Uint32Array(1))[0] ?? 0;
}

/** Checks the options beside a request. `extra` names further fields that the caller handles itself. */
export function checkRequestOptions(value: unknown, extra: readonly string[] = []): Limits & Record<string, unknown> {
  const options = check.record("request", "options", value ?? {}) as RequestOptions & Record<string, unknown>;
  check.knownFields("request", "options", options, ["signal", "timeout", "priority", ...extra]);
  if (!check.absent(options.priority) && check.integer("request", "priority", options.priority, Number.MIN_SAFE_INTEGER) !== 0) {
    throw requestUnsupported("priority other than 0", "requests run in the order they came");
  }
  // Longer than setTimeout can hold means for ever.
  const timeout = check.absent(options.timeout) ? undefined : check.number("request", "timeout", options.timeout, 0, Infinity);
  return {
    ...Object.fromEntries(extra.map((field) => [field, options[field] ?? undefined])),
    signal: check.absent(options.signal) ? undefined : check.signal("request", "signal", options.signal),
    timeout: timeout !== undefined && timeout > 0x7fff_ffff ? undefined : timeout,
  };
}
