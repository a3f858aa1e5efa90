/** Requests on their way to the engine: what JSON would lose is refused here, what the fields mean is the engine's to judge. */
import * as check from "./check.js";
import { FiresideError, requestUnsupported } from "./errors.js";
import type { Limits } from "./request.js";
import type { RequestOptions } from "./types.js";

/** A request as it crosses the port: JSON, and the prompt's ids where it came as ids. */
export interface WireRequest {
  request: string;
  prompt: Uint32Array | null;
}

/** Options beside a request, once checked. */
export interface CheckedOptions extends Limits {
  priority: number;
  /** The fields that the caller handles itself. */
  extra: Record<string, unknown>;
}

/**
 * Throws `request.invalid` for what the engine would never see: NaN becomes null in JSON, a function nothing at all, a Map an empty object.
 * Everything else passes, and the engine refuses what it does not know.
 */
export function requestJson(request: object): string {
  let json: string | undefined;
  try {
    json = JSON.stringify(request, function (this: Record<string, unknown>, key: string, value: unknown) {
      // What has a toJSON comes here as what that made of it; what that was is in `this`.
      const raw = this[key];
      if (isLost(value) || (value === undefined && raw !== undefined)) {
        throw check.invalid("request", key || "request", "something that JSON can hold", raw);
      }
      return value;
    });
  } catch (error) {
    throw notJson(error, request);
  }
  const expected = Array.isArray(request) ? "[" : "{";
  if (!json?.startsWith(expected)) throw check.invalid("request", "request", "an object that stays one as JSON", request);
  return wellFormedJson(json);
}

/** What JSON holds as something else, or not at all. */
function isLost(value: unknown): boolean {
  if (typeof value === "number") return !Number.isFinite(value);
  if (typeof value === "object" && value !== null) return !Array.isArray(value) && !check.isPlain(value);
  return ["function", "symbol", "bigint"].includes(typeof value);
}

/** Why there is no JSON of it: it goes round in circles, or too deep, or a getter or toJSON of its own throws. */
function notJson(error: unknown, request: object): unknown {
  if (error instanceof FiresideError) return error;
  const why = error instanceof Error ? error.message : check.describe(error);
  if (error instanceof TypeError && /circular|cyclic/i.test(why)) return check.invalid("request", "request", "free of cycles", request);
  // Firefox has an error of its own for a stack that is full.
  const deep = error instanceof RangeError || (error instanceof Error && error.name === "InternalError");
  if (deep) return check.invalid("request", "request", "nested less deeply", request);
  const details = { field: "request", expected: "values that can be read as JSON", got: why };
  return new FiresideError("request.invalid", `request could not be read as JSON: ${why}`, details, { cause: error });
}

/** JSON has the halves of a broken pair as escapes, which no UTF-8 reader takes. Escapes are read one by one: a backslash may be a text's own. */
function wellFormedJson(json: string): string {
  return json.replace(/\\(?:u(d[89a-f][0-9a-f]{2})|.)/g, (escape, half?: string) => (half === undefined ? escape : "\ufffd"));
}

/** Splits the prompt's ids off: a typed array is no JSON. */
export function checkRequest(value: unknown, { priority }: CheckedOptions): WireRequest {
  const { prompt, ...rest } = check.record("request", "request", value);
  if (!check.absent(rest["priority"])) throw requestUnsupported("priority", "it is an option beside a request, not a field of it");
  checkFormat(rest["response_format"]);
  const fields = priority === 0 ? rest : { ...rest, priority };
  if (typeof prompt === "string" || check.absent(prompt)) return { request: requestJson({ prompt, ...fields }), prompt: null };
  return { request: requestJson(fields), prompt: check.tokenIds("request", "prompt", prompt) };
}

/** The engine refuses every format but text, of which it reads the type alone. */
function checkFormat(value: unknown): void {
  if (!check.isPlain(value)) return;
  const format = check.record("request", "response_format", value);
  if (format["type"] === "text") check.knownFields("request", "response_format", format, ["type"]);
}

/** Checks the options beside a request. `extra` names further fields that the caller handles itself. */
export function checkRequestOptions(value: unknown, extra: readonly string[] = []): CheckedOptions {
  const given = check.record("request", "options", value ?? {});
  const options = given as RequestOptions;
  check.knownFields("request", "options", given, ["signal", "timeout", "priority", ...extra]);
  const timeout = check.absent(options.timeout) ? undefined : check.number("request", "timeout", options.timeout, 0, Number.MAX_VALUE);
  return {
    priority: check.absent(options.priority) ? 0 : check.integer("request", "priority", options.priority, -(2 ** 31), 2 ** 31 - 1),
    signal: check.absent(options.signal) ? undefined : check.signal("request", "signal", options.signal),
    // Longer than setTimeout can hold means for ever.
    timeout: timeout !== undefined && timeout > 0x7fff_ffff ? undefined : timeout,
    since: performance.now(),
    extra: Object.fromEntries(extra.map((field) => [field, given[field]])),
  };
}
