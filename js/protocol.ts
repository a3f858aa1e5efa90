/** What crosses the port between the page's client and the engine's host. Plain data only: callbacks and signals stay in the page. */
import type { WireError } from "./errors.js";
import type { EngineInfo, EngineStats, LoadProgress, Warning } from "./types.js";

/** The message that hands a Worker one end of a channel. Anything else a Worker receives is not ours. */
export interface Connect {
  fireside: "connect";
  port: MessagePort;
}

/** Load options that the wasm side reads (as JSON), each already checked for its type. */
export interface WireLoadOptions {
  backend?: string;
  contextLength?: number;
  kvCache?: { blockSize?: number; blocks?: number; bytes?: number; dtype?: string };
  maxRunning?: number;
  maxQueued?: number;
  prefillChunk?: number;
  prefixCache?: boolean;
  modelId?: string;
}

/** The bytes to load: an absolute URL with its headers, or a Blob. */
export type WireSource = { url: string; headers: Record<string, string> } | { blob: Blob };

/** Calls, each answered once. */
export interface Calls {
  load: {
    args: { source: WireSource; options: WireLoadOptions; wasm: string | WebAssembly.Module | null };
    result: EngineInfo;
  };
  info: { args: null; result: EngineInfo };
  stats: { args: null; result: EngineStats };
  submit: { args: { rid: number; request: string; prompt: Uint32Array | null }; result: null };
  score: { args: { rid: number; tokens: Uint32Array; topLogprobs: number }; result: null };
  tokenize: { args: { text: string; addSpecial: boolean; parseSpecial: boolean }; result: Uint32Array };
  detokenize: { args: { tokens: Uint32Array; special: boolean }; result: string };
  renderChat: { args: { messages: string; options: string }; result: string };
  dispose: { args: null; result: null };
}
export type Op = keyof Calls;

/** Client to host. An abort has no answer: the page has already settled. */
export type ToHost =
  | { [O in Op]: { t: "call"; id: number; op: O; args: Calls[O]["args"] } }[Op]
  | { t: "abort"; rid: number; why: "cancelled" | "deadline" }
  | { t: "cancelLoad" };

/** Host to client. */
export type ToClient =
  | { t: "result"; id: number; value: unknown }
  | { t: "error"; id: number; error: WireError }
  | { t: "token"; rid: number; value: unknown }
  | { t: "done"; rid: number; value: unknown }
  | { t: "failed"; rid: number; error: WireError }
  | { t: "progress"; value: LoadProgress }
  | { t: "warning"; value: Warning }
  | { t: "devicelost"; value: { reason: string; message: string } }
  | { t: "recovered"; value: { backend: "webgpu" | "cpu"; resumed: number } }
  | { t: "crashed"; error: WireError };

// Complete by their types: a new message or call that is missing here does not compile.
const OPS: Record<Op, true> = {
  load: true, info: true, stats: true, submit: true, score: true, tokenize: true, detokenize: true, renderChat: true, dispose: true,
};
const TO_HOST: Record<ToHost["t"], true> = { call: true, abort: true, cancelLoad: true };
const TO_CLIENT: Record<ToClient["t"], true> = {
  result: true, error: true, token: true, done: true, failed: true, progress: true, warning: true, devicelost: true, recovered: true,
  crashed: true,
};

/** What a message may hold, before it is known to. */
interface Fields {
  t?: unknown;
  id?: unknown;
  rid?: unknown;
  op?: unknown;
  why?: unknown;
  error?: unknown;
  value?: unknown;
}

/** A message's fields, if it is of one of `kinds`. */
function fieldsOf(message: unknown, kinds: Record<string, true>): Fields | null {
  if (typeof message !== "object" || message === null) return null;
  const fields = message as Fields;
  return typeof fields.t === "string" && Object.hasOwn(kinds, fields.t) ? fields : null;
}

const isNumber = (value: unknown): boolean => typeof value === "number";
const isObject = (value: unknown): boolean => typeof value === "object" && value !== null;

/** Whether a host knows what to do with `message`. What is not ours is left alone. */
export function isToHost(message: unknown): message is ToHost {
  const fields = fieldsOf(message, TO_HOST);
  if (!fields) return false;
  if (fields.t === "abort") return isNumber(fields.rid) && (fields.why === "cancelled" || fields.why === "deadline");
  return fields.t === "cancelLoad" || (isNumber(fields.id) && typeof fields.op === "string" && Object.hasOwn(OPS, fields.op));
}

/** Whether a client knows what to do with `message`. */
export function isToClient(message: unknown): message is ToClient {
  const fields = fieldsOf(message, TO_CLIENT);
  if (!fields) return false;
  switch (fields.t as ToClient["t"]) {
    case "result":
      return isNumber(fields.id);
    case "error":
      return isNumber(fields.id) && isObject(fields.error);
    case "token":
    case "done":
      return isNumber(fields.rid);
    case "failed":
      return isNumber(fields.rid) && isObject(fields.error);
    case "crashed":
      return isObject(fields.error);
    default:
      return isObject(fields.value);
  }
}
