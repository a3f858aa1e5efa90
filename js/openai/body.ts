/** What the OpenAI-shaped bodies have in common: fields that every one may carry, names of answers, ids. Values that the engine judges pass. */
import * as check from "../check.js";
import { requestUnsupported } from "../errors.js";
import type { EngineInfo } from "../types.js";

/** SamplingFields, each judged by the engine. */
export const SAMPLING_FIELDS = [
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
  "response_format",
  "adapter",
] as const;

/** Whether to stream, and whether its usage is wanted. */
export interface Streaming {
  stream: boolean;
  includeUsage: boolean;
}

/** A body that is an object of known fields, for this model. */
export function checkBody(where: string, value: unknown, fields: readonly string[], info: EngineInfo): Record<string, unknown> {
  const body = check.record("request", where, value);
  // null means absent, for fields of any name.
  const given = Object.fromEntries(Object.entries(body).filter(([, v]) => !check.absent(v)));
  check.knownFields("request", where, given, fields);
  const { model, user } = given;
  if (model !== undefined && check.wellFormed(check.string("request", "model", model)) !== info.modelId) throw unknownModel("model", model as string, info);
  if (user !== undefined) check.string("request", "user", user);
  return given;
}

/** Another model's name, where this engine's was expected. */
export function unknownModel(field: string, got: string, info: EngineInfo): Error {
  const error = requestUnsupported(field, `this engine runs ${JSON.stringify(info.modelId)} only`);
  Object.assign(error.details, { expected: info.modelId, got });
  return error;
}

/** OpenAI's bookkeeping: accepted, and without meaning here. */
export function checkBookkeeping({ metadata, store }: Record<string, unknown>): void {
  if (metadata !== undefined) check.record("request", "metadata", metadata);
  if (store !== undefined && check.boolean("request", "store", store)) {
    throw requestUnsupported("store", "nothing is stored, only false is accepted");
  }
}

export function checkStreaming({ stream, stream_options: options }: Record<string, unknown>): Streaming {
  const wanted = stream === undefined ? false : check.boolean("request", "stream", stream);
  if (options === undefined) return { stream: wanted, includeUsage: false };
  const given = check.record("request", "stream_options", options);
  check.knownFields("request", "stream_options", given, ["include_usage"]);
  if (!wanted) throw check.invalid("request", "stream_options", "absent where stream is not true", options);
  const usage = given["include_usage"];
  return { stream: true, includeUsage: check.absent(usage) ? false : check.boolean("request", "include_usage", usage) };
}

/** The fields of a checked body that go to the engine. */
export function pick(body: Record<string, unknown>, fields: readonly string[]): Record<string, unknown> {
  return Object.fromEntries(fields.filter((field) => body[field] !== undefined).map((field) => [field, body[field]]));
}

const ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";

/** An id of its own for an answer, as OpenAI's look. */
export function newId(prefix: string): string {
  const bytes = crypto.getRandomValues(new Uint8Array(24));
  return prefix + Array.from(bytes, (byte) => ALPHABET[byte % ALPHABET.length]).join("");
}

/** Seconds since 1970. */
export function seconds(): number {
  return Math.floor(Date.now() / 1000);
}

/** Equal where the same request with the same seed gives the same answer: of the model, the version, and where it runs. */
export function fingerprint(info: EngineInfo): string {
  const { version, architecture, parameters, quantization, backend, adapter, kv } = info;
  const facts = [version, info.modelId, architecture, parameters, quantization, backend, adapter?.vendor, adapter?.architecture, kv.dtype];
  let hash = 0x811c9dc5;
  for (const byte of new TextEncoder().encode(JSON.stringify(facts))) hash = Math.imul(hash ^ byte, 0x01000193);
  return `fp_${(hash >>> 0).toString(16).padStart(8, "0")}`;
}
