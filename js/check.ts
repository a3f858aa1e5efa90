/** Small checkers for values from callers: each returns the value typed, or throws naming the field, what was expected and what came. */
import { FiresideError } from "./errors.js";

/** The two places that refuse: loading and requests. */
export type Area = "load" | "request";

/** Names what a value is, for messages: never the value itself when it may be long. */
export function describe(value: unknown): string {
  if (value === null) return "null";
  if (typeof value === "number" || typeof value === "boolean") return String(value);
  if (typeof value === "string") return value.length <= 40 ? JSON.stringify(value) : `a string of ${String(value.length)} characters`;
  if (typeof value !== "object") return typeof value;
  const name = typeName(value);
  return name ? `a value of type ${name}` : "an object";
}

/** What made an object, where it says so: a constructor's name may be anything, and asking for it may throw. */
function typeName(value: object): string {
  try {
    const name: unknown = (value.constructor as { name?: unknown } | undefined)?.name;
    return typeof name === "string" ? name.slice(0, 40) : "";
  } catch {
    return "";
  }
}

/** Reads values of a caller's. What these throw by themselves (getters, proxies, detached arrays) is told as a fault of theirs. */
export function reading<T>(area: Area, field: string, read: () => T): T {
  try {
    return read();
  } catch (cause) {
    if (cause instanceof FiresideError) throw cause;
    const got = cause instanceof Error ? cause.message : describe(cause);
    throw new FiresideError(`${area}.invalid`, `${field} could not be read: ${got}`, { field, expected: "readable values", got }, { cause });
  }
}

/** The error for a value of the wrong type or out of range. */
export function invalid(area: Area, field: string, expected: string, value: unknown): FiresideError {
  const got = describe(value);
  return new FiresideError(`${area}.invalid`, `${field} must be ${expected}, not ${got}.`, { field, expected, got });
}

/** Refuses fields that are not known here: a misspelt option must not be silently without effect. */
export function knownFields(area: Area, where: string, value: object, known: readonly string[]): void {
  for (const field of Object.keys(value)) {
    if (known.includes(field) || absent((value as Record<string, unknown>)[field])) continue;
    const message = `${where} has no field ${JSON.stringify(field)} that this version supports.`;
    throw new FiresideError(`${area}.unsupported`, message, { field, supported: [...known] });
  }
}

/** True for null and undefined: both mean absent. */
export function absent(value: unknown): value is null | undefined {
  return value === null || value === undefined;
}

/** True for an object as a literal makes it, of any realm: fields of anything else (a Map, Headers, a signal) would be missed in silence. */
export function isPlain(value: unknown): value is Record<string, unknown> {
  if (typeof value !== "object" || value === null || Array.isArray(value)) return false;
  const proto: unknown = Object.getPrototypeOf(value);
  return proto === null || (Object.getPrototypeOf(proto) === null && Object.hasOwn(proto as object, "isPrototypeOf"));
}

/** The fields of a plain object, each read once. */
export function record(area: Area, field: string, value: unknown): Record<string, unknown> {
  return reading(area, field, () => {
    if (isPlain(value)) return { ...value };
    throw invalid(area, field, "a plain object", value);
  });
}

/** True for an object of the platform's class of that name, of any realm: a frame's Blob is no instance of this page's Blob. */
export function isA(value: unknown, ...classes: readonly string[]): boolean {
  const tag = Object.prototype.toString.call(value).slice("[object ".length, -1);
  return typeof value === "object" && value !== null && classes.includes(tag);
}

/** Text as it can be UTF-8: each half of a pair without its other half is U+FFFD. */
export function wellFormed(text: string): string {
  return text.replace(/\p{Surrogate}/gu, "\ufffd");
}

/** Options of a call: absent, or an object of known fields. */
export function options(area: Area, value: unknown, known: readonly string[]): Record<string, unknown> {
  const given = record(area, "options", value ?? {});
  knownFields(area, "options", given, known);
  return given;
}

/** A whole number within bounds. */
export function integer(area: Area, field: string, value: unknown, min: number, max = Number.MAX_SAFE_INTEGER): number {
  if (typeof value === "number" && Number.isInteger(value) && value >= min && value <= max) return value;
  const bounds = max === Number.MAX_SAFE_INTEGER ? `of at least ${String(min)}` : `from ${String(min)} to ${String(max)}`;
  throw invalid(area, field, `a whole number ${bounds}`, value);
}

/** A finite number within bounds. */
export function number(area: Area, field: string, value: unknown, min: number, max: number): number {
  if (typeof value === "number" && Number.isFinite(value) && value >= min && value <= max) return value;
  const bounds = Number.isFinite(max) ? `from ${String(min)} to ${String(max)}` : `of at least ${String(min)}`;
  throw invalid(area, field, `a number ${bounds}`, value);
}

export function boolean(area: Area, field: string, value: unknown): boolean {
  if (typeof value === "boolean") return value;
  throw invalid(area, field, "true or false", value);
}

export function string(area: Area, field: string, value: unknown): string {
  if (typeof value === "string") return value;
  throw invalid(area, field, "a string", value);
}

export function oneOf<T extends string>(area: Area, field: string, value: unknown, choices: readonly T[]): T {
  const found = choices.find((choice) => choice === value);
  if (found !== undefined) return found;
  throw invalid(area, field, `one of ${choices.join(", ")}`, value);
}

export function callback(area: Area, field: string, value: unknown): void {
  if (typeof value !== "function") throw invalid(area, field, "a function", value);
}

export function signal(area: Area, field: string, value: unknown): AbortSignal {
  const given = value as Partial<AbortSignal> | null;
  // By its shape: a frame's signal is no instance of this page's class.
  if (typeof given === "object" && typeof given?.aborted === "boolean" && typeof given.addEventListener === "function") {
    return value as AbortSignal;
  }
  throw invalid(area, field, "an AbortSignal", value);
}

/** More token ids than any context holds: a length above it is a mistake, and is not made room for. */
const MAX_IDS = 2 ** 24;

/** Token ids as the wasm side takes them. Whether the vocabulary has them is the engine's to say. */
export function tokenIds(area: Area, field: string, value: unknown): Uint32Array {
  return reading(area, field, () => readIds(area, field, value));
}

function readIds(area: Area, field: string, value: unknown): Uint32Array {
  const list = value as ArrayLike<unknown> | null;
  if (typeof list !== "object" || list === null || !Number.isSafeInteger(list.length) || list.length < 0) {
    throw invalid(area, field, "an array of token ids", value);
  }
  if (list.length > MAX_IDS) throw invalid(area, field, `an array of at most ${String(MAX_IDS)} token ids`, `${String(list.length)} ids`);
  // A detached array has no elements, which is not what was meant: making an empty copy of it throws.
  if (ArrayBuffer.isView(value)) new Uint8Array(value.buffer, 0, 0);
  if (value instanceof Uint32Array) return value.slice();
  const out = new Uint32Array(list.length);
  for (let i = 0; i < list.length; i++) out[i] = integer(area, `${field}[${String(i)}]`, list[i], 0, 0xffff_ffff);
  return out;
}
