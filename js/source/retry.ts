/** When to try again: which failures may pass by themselves, how often, and after how long. Fetches nothing itself. */
import { FiresideError } from "../errors.js";
import { tuning } from "./tuning.js";

/** Progress between two failures that counts as the connection working again. */
const WORKING_BYTES = 16 * 1024;

const PASSING_CODES = new Set(["http.network", "http.stalled", "http.truncated"]);
const PASSING_STATUS = new Set([408, 425, 429]);

/** Whether the same request may succeed a moment later. */
export function mayPass(error: unknown): boolean {
  if (!(error instanceof FiresideError)) return false;
  if (PASSING_CODES.has(error.code)) return true;
  const status = Number(error.details["status"]);
  return error.code === "http.status" && (status >= 500 || PASSING_STATUS.has(status));
}

/** A controller that fires when `outer` does, and may be fired by itself: for work that can end before its caller's does. */
export function linked(outer: AbortSignal): AbortController {
  const inner = new AbortController();
  const follow = (): void => {
    inner.abort(outer.reason);
  };
  if (outer.aborted) follow();
  else outer.addEventListener("abort", follow, { once: true });
  inner.signal.addEventListener("abort", () => {
    outer.removeEventListener("abort", follow);
  });
  return inner;
}

/** Resolves after `ms`, rejects with the signal's reason when it fires before. */
export function sleep(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal.aborted) {
      reject(signal.reason);
      return;
    }
    const stop = (): void => {
      clearTimeout(timer);
      reject(signal.reason);
    };
    const timer = setTimeout(() => {
      signal.removeEventListener("abort", stop);
      resolve();
    }, ms);
    signal.addEventListener("abort", stop, { once: true });
  });
}

/** Waits while the browser knows that it is offline, a bounded time. */
async function online(signal: AbortSignal): Promise<void> {
  const until = Date.now() + tuning.offlineMs;
  const offline = (): boolean => typeof navigator === "object" && (navigator as { onLine?: boolean }).onLine === false;
  while (offline() && Date.now() < until) await sleep(Math.min(500, tuning.offlineMs), signal);
}

/** The patience of one file's download. */
export class Patience {
  readonly #signal: AbortSignal;
  #failures = 0;
  #arrived: number;
  #atFailure = 0;
  #any = false;

  /** `arrived`: bytes that are there already. */
  constructor(signal: AbortSignal, arrived = 0) {
    this.#signal = signal;
    this.#arrived = arrived;
  }

  /** Counts bytes that arrived. */
  progressed(bytes: number): void {
    this.#any = true;
    this.#arrived += bytes;
    if (this.#arrived - this.#atFailure >= WORKING_BYTES) this.#failures = 0;
  }

  /** Resolves when the request is to be tried again; rejects with the error, and how far it had come, when it is not. */
  async failed(error: unknown): Promise<void> {
    this.#signal.throwIfAborted();
    const allowed = this.#any ? tuning.retries : tuning.firstRetries;
    if (!mayPass(error) || this.#failures >= allowed) throw this.#final(error);
    const delay = Math.min(tuning.maxDelayMs, tuning.retryDelayMs * 2 ** this.#failures);
    this.#failures++;
    this.#atFailure = this.#arrived;
    const asked = error instanceof FiresideError ? Number(error.details["retryAfterMs"] ?? 0) : 0;
    // A little chance keeps many tabs from coming back at the same moment.
    await sleep(Math.max(delay * (0.75 + Math.random() / 2), Math.min(asked, tuning.maxDelayMs)), this.#signal);
    await online(this.#signal);
  }

  #final(error: unknown): unknown {
    if (!(error instanceof FiresideError)) return error;
    const details = { ...error.details, bytes: this.#arrived, attempts: this.#failures + 1 };
    return new FiresideError(error.code, error.message, details, { cause: error.cause });
  }
}
