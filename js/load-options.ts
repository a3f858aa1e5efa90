/** Checks what Engine.load was given and splits it: what stays in the page, and what goes to the engine. */
import * as check from "./check.js";
import { loadUnsupported } from "./errors.js";
import type { WireFile, WireLoadOptions, WireSource } from "./protocol.js";
import type { LoadOptions, ModelSource } from "./types.js";

const FIELDS = [
  "backend",
  "worker",
  "precision",
  "contextLength",
  "kvCache",
  "maxRunning",
  "maxQueued",
  "prefillChunk",
  "prefixCache",
  "cache",
  "persist",
  "integrity",
  "headers",
  "threads",
  "wasm",
  "modelId",
  "onProgress",
  "onWarning",
  "signal",
] as const;
/** Tokens of the largest block that the engine makes (src/engine). */
const MAX_BLOCK_SIZE = 1024;
const KV_FIELDS = ["blockSize", "blocks", "bytes", "dtype"] as const;

/** Options once checked. */
export interface CheckedLoad {
  wire: WireLoadOptions;
  worker: boolean | Worker;
  /** A URL is absolute. */
  wasm: string | Response | WebAssembly.Module | null;
  persist: boolean;
  cache: "opfs" | "none";
  integrity: string[] | null;
  /** As given: they are judged with the model that they are for. */
  headers: unknown;
  onProgress: LoadOptions["onProgress"];
  onWarning: LoadOptions["onWarning"];
  signal: AbortSignal | undefined;
}

/** Throws `load.invalid` for a wrong value and `load.unsupported` for what this version does not do. */
export function checkLoadOptions(value: unknown): CheckedLoad {
  return check.reading("load", "options", () => readOptions(value));
}

function readOptions(value: unknown): CheckedLoad {
  const options = check.record("load", "options", value ?? {}) as LoadOptions;
  check.knownFields("load", "LoadOptions", options, FIELDS);
  refuseUnsupported(options);
  const wire: WireLoadOptions = {};
  if (!check.absent(options.backend)) {
    wire.backend = check.oneOf("load", "backend", options.backend, ["auto", "webgpu", "cpu"]);
  }
  for (const field of ["contextLength", "maxRunning", "maxQueued", "prefillChunk"] as const) {
    const count = options[field];
    if (!check.absent(count)) wire[field] = check.integer("load", field, count, 1, 0xffff_ffff);
  }
  if (!check.absent(options.kvCache)) wire.kvCache = checkKvCache(options.kvCache);
  if (!check.absent(options.prefixCache)) wire.prefixCache = check.boolean("load", "prefixCache", options.prefixCache);
  if (!check.absent(options.modelId)) wire.modelId = check.wellFormed(check.string("load", "modelId", options.modelId));
  if (!check.absent(options.onProgress)) check.callback("load", "onProgress", options.onProgress);
  if (!check.absent(options.onWarning)) check.callback("load", "onWarning", options.onWarning);
  return {
    wire,
    worker: checkWorker(options.worker),
    wasm: checkWasm(options.wasm),
    persist: !check.absent(options.persist) && check.boolean("load", "persist", options.persist),
    cache: check.absent(options.cache) ? "opfs" : check.oneOf("load", "cache", options.cache, ["opfs", "none"]),
    integrity: checkIntegrity(options.integrity),
    headers: options.headers,
    onProgress: options.onProgress ?? undefined,
    onWarning: options.onWarning ?? undefined,
    signal: check.absent(options.signal) ? undefined : check.signal("load", "signal", options.signal),
  };
}

function refuseUnsupported(options: LoadOptions): void {
  if (!check.absent(options.precision) && check.oneOf("load", "precision", options.precision, ["exact", "fast"]) === "fast") {
    throw loadUnsupported("precision", "this version computes exactly only", "precision \"fast\"");
  }
  if (!check.absent(options.threads) && check.integer("load", "threads", options.threads, 1, 1024) > 1) {
    throw loadUnsupported("threads", "this version's CPU backend has one thread", "threads above 1");
  }
}

function checkKvCache(value: unknown): NonNullable<WireLoadOptions["kvCache"]> {
  const given = check.record("load", "kvCache", value) as NonNullable<LoadOptions["kvCache"]>;
  check.knownFields("load", "kvCache", given, KV_FIELDS);
  if (!check.absent(given.blocks) && !check.absent(given.bytes)) {
    throw check.invalid("load", "kvCache", "given either bytes or blocks", "both");
  }
  const out: NonNullable<WireLoadOptions["kvCache"]> = {};
  for (const [field, most] of [["blockSize", MAX_BLOCK_SIZE], ["blocks", 0xffff_ffff]] as const) {
    const count = given[field];
    if (!check.absent(count)) out[field] = check.integer("load", `kvCache.${field}`, count, 1, most);
  }
  if (!check.absent(given.bytes)) out.bytes = check.integer("load", "kvCache.bytes", given.bytes, 1);
  if (!check.absent(given.dtype)) out.dtype = check.oneOf("load", "kvCache.dtype", given.dtype, ["f32", "f16", "q8_0"]);
  return out;
}

function checkWorker(value: unknown): boolean | Worker {
  if (check.absent(value)) return typeof Worker === "function";
  if (check.isA(value, "Worker") || (typeof Worker === "function" && value instanceof Worker)) return value as Worker;
  const wanted = check.boolean("load", "worker", value);
  if (wanted && typeof Worker !== "function") {
    const why = "no Worker can be made here (a shared or service worker); pass `worker: false`, or nothing, to run in this thread";
    throw loadUnsupported("worker", why, "worker: true");
  }
  return wanted;
}

function checkWasm(value: unknown): CheckedLoad["wasm"] {
  if (check.absent(value)) return null;
  if (typeof value === "string" || check.isA(value, "URL")) return absolute(value as string | URL, "wasm");
  if (check.isA(value, "WebAssembly.Module", "Response")) return value;
  throw check.invalid("load", "wasm", "a URL, a Response or a WebAssembly.Module", value);
}

/** The page's URL that relative ones resolve against; absent outside a page or Worker. */
export function baseUrl(): string | undefined {
  if (typeof document !== "undefined") return document.baseURI;
  return typeof location === "undefined" ? undefined : location.href;
}

/** A model source as it crosses the port. */
export function checkSource(value: ModelSource, headers: unknown): WireSource {
  return check.reading("load", "model", () => readSource(value, headers));
}

function readSource(value: unknown, headers: unknown): WireSource {
  if (check.isPlain(value) && "stored" in value) {
    const source = check.record("load", "model", value);
    check.knownFields("load", "a stored model", source, ["stored"]);
    if (!check.absent(headers)) throw check.invalid("load", "headers", "absent when the model is stored", headers);
    return { stored: check.string("load", "model.stored", source["stored"]) };
  }
  const parts = Array.isArray(value) ? (value as unknown[]) : [value];
  if (parts.length === 0) throw check.invalid("load", "model", "one file at least", "an empty array");
  const files = parts.map((part, index) => checkFile(part, parts.length > 1 ? `model[${String(index)}]` : "model"));
  if (!check.absent(headers) && files.every((file) => "blob" in file)) {
    throw check.invalid("load", "headers", "absent when the model is a Blob", headers);
  }
  return { files, headers: checkHeaders(headers) };
}

function checkFile(value: unknown, field: string): WireFile {
  if (check.isA(value, "Blob", "File")) return { blob: value as Blob };
  if (typeof value === "string" || check.isA(value, "URL")) return { url: absolute(value as string | URL, field) };
  throw check.invalid("load", field, "a URL, a Blob or a File", value);
}

/** The sha256 of each file, in lower case. */
export function checkIntegrity(value: unknown): string[] | null {
  if (check.absent(value)) return null;
  const list = Array.isArray(value) ? (value as unknown[]) : [value];
  return list.map((entry, index) => {
    const field = Array.isArray(value) ? `integrity[${String(index)}]` : "integrity";
    const hex = check.string("load", field, entry).toLowerCase();
    if (!/^[0-9a-f]{64}$/.test(hex)) throw check.invalid("load", field, "a sha256 of 64 hex digits", entry);
    return hex;
  });
}

/** Without a fragment, which names no other bytes. No request may be made with credentials in its URL: `headers` carry them. */
function absolute(url: string | URL, field: string): string {
  let parsed: URL;
  try {
    parsed = new URL(url, baseUrl());
  } catch {
    throw check.invalid("load", field, "a valid URL", String(url));
  }
  if (parsed.username || parsed.password) throw check.invalid("load", field, "a URL without credentials, which `headers` may carry", "a URL with them");
  parsed.hash = "";
  return parsed.href;
}

function checkHeaders(value: unknown): Record<string, string> {
  if (check.absent(value)) return {};
  const given = check.isA(value, "Headers") ? [...(value as Headers)] : Object.entries(check.record("load", "headers", value));
  return Object.fromEntries(given.map(([name, text]) => [name, checkHeader(name, text)]));
}

/** A request with a header that cannot be sent would fail like a network that is down. */
function checkHeader(name: string, value: unknown): string {
  if (name.toLowerCase() === "range" || name.toLowerCase() === "if-range") {
    throw check.invalid("load", "headers", "without Range and If-Range", name);
  }
  const field = `headers[${JSON.stringify(name.slice(0, 60))}]`;
  const text = check.string("load", field, value);
  try {
    new Headers().append(name, text);
  } catch {
    throw check.invalid("load", field, "a valid header name with a text of Latin-1 characters on one line", text);
  }
  return text;
}
