/** Requests on their way to the engine: what JSON would lose is refused here, what the fields mean is the engine's to judge. */
import * as check from "./check.js";
import { FiresideError } from "./errors.js";
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
}

/**
 * Throws `request.invalid` for what the engine would never see: NaN becomes null in JSON, a function nothing at all.
 * Everything else passes, and the engine refuses what it does not know.
 */
export function requestJson(request: object): string {
  const lost = new Set(["function", "symbol", "bigint"]);
  try {
    return JSON.stringify(request, function (this: Record<string, unknown>, key: string, value: unknown) {
      // What has a toJSON comes here as what that made of it.
      const raw = typeof value === "number" ? value : this[key];
      const gone = typeof raw === "number" ? !Number.isFinite(raw) : lost.has(typeof raw);
      if (gone) throw check.invalid("request", key, "something that JSON can hold", raw);
      return value;
    });
  } catch (error) {
    if (error instanceof FiresideError) throw error;
    throw check.invalid("request", "request", "free of cycles", request);
  }
}

/** Splits the prompt's ids off: a typed array is no JSON. */
export function checkRequest(value: unknown, { priority }: CheckedOptions): WireRequest {
  const { prompt, ...rest } = check.record("request", "request", value);
  const fields = priority === 0 ? rest : { ...rest, priority };
  if (typeof prompt === "string" || check.absent(prompt)) return { request: requestJson({ prompt, ...fields }), prompt: null };
  return { request: requestJson(fields), prompt: check.tokenIds("request", "prompt", prompt) };
}

/** Checks the options beside a request. `extra` names further fields that the caller handles itself. */
export function checkRequestOptions(value: unknown, extra: readonly string[] = []): CheckedOptions {
  const options = check.record("request", "options", value ?? {}) as RequestOptions;
  check.knownFields("request", "options", options, ["signal", "timeout", "priority", ...extra]);
  const timeout = check.absent(options.timeout) ? undefined : check.number("request", "timeout", options.timeout, 0, Number.MAX_VALUE);
  return {
    priority: check.absent(options.priority) ? 0 : check.integer("request", "priority", options.priority, -(2 ** 31), 2 ** 31 - 1),
    signal: check.absent(options.signal) ? undefined : check.signal("request", "signal", options.signal),
    // Longer than setTimeout can hold means for ever.
    timeout: timeout !== undefined && timeout > 0x7fff_ffff ? undefined : timeout,
  };
}
