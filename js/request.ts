/** One request of a page, in one or several parts that are accepted or refused together: its limits, and that it ends exactly once. */
import { FiresideError } from "./errors.js";
import type { WirePart } from "./protocol.js";

/** How a request may end early, besides by the engine. */
export interface Limits {
  signal?: AbortSignal | undefined;
  timeout?: number | undefined;
  /** When the timeout began, by `performance.now()`; else now. */
  since?: number;
}

/** Calls back when the time is over: the function that stops the clock. */
function onDeadline({ timeout, since }: Limits, late: (error: FiresideError) => void): () => void {
  if (timeout === undefined) return () => undefined;
  const left = since === undefined ? timeout : timeout - (performance.now() - since);
  const timer = setTimeout(
    () => {
      late(new FiresideError("request.deadline", `The request was not done within ${String(timeout)} ms.`, { timeout }));
    },
    Math.max(0, left),
  );
  return () => {
    clearTimeout(timer);
  };
}

/** Hears of a request. After `failed`, or after every part is done, nothing more comes. */
export interface Listener {
  /** Only for parts that ask for tokens. What it throws ends the request. */
  token?(part: number, value: unknown): void;
  done(part: number, value: unknown): void;
  failed(error: unknown): void;
}

/** What a request needs of its connection. */
export interface Wire {
  submit(parts: (WirePart & { rid: number })[]): Promise<null>;
  abort(rid: number, why: "cancelled" | "deadline"): void;
  read(rid: number, count: number): void;
  forget(rid: number): void;
}

/** A live request. Whatever ends it, it settles in the page at once: nothing waits for the engine. */
export class Request {
  /** Resolves when the engine has taken the request; rejects when it fails before. */
  readonly accepted: Promise<void>;
  readonly #wire: Wire;
  readonly #listener: Listener;
  readonly #open: Set<number>;
  readonly #first: number;
  readonly #limits: Limits;
  readonly #unread = new Map<number, number>();
  #rejectAccepted: ((error: unknown) => void) | undefined;
  readonly #stopClock: () => void;
  #over = false;

  /** Submits the parts under the ids from `first` on. */
  constructor(wire: Wire, first: number, parts: readonly WirePart[], listener: Listener, limits: Limits) {
    this.#wire = wire;
    this.#listener = listener;
    this.#first = first;
    this.#limits = limits;
    this.#open = new Set(parts.map((_, i) => first + i));
    this.accepted = new Promise((resolve, reject) => {
      this.#rejectAccepted = reject;
      wire.submit(parts.map((part, i) => ({ ...part, rid: first + i }))).then(
        () => {
          resolve();
        },
        (error: unknown) => {
          this.fail(error, null);
        },
      );
    });
    // Whoever has no use for it must not be told of it as an unhandled rejection.
    this.accepted.catch(() => undefined);
    limits.signal?.addEventListener("abort", this.#onAbort, { once: true });
    this.#stopClock = onDeadline(limits, (error) => {
      this.fail(error, "deadline");
    });
  }

  /** A token of a part arrived. */
  token(rid: number, value: unknown): void {
    if (this.#over) return;
    try {
      this.#listener.token?.(rid - this.#first, value);
    } catch (error) {
      this.fail(error, "cancelled");
    }
  }

  /** A part is done. */
  done(rid: number, value: unknown): void {
    if (this.#over || !this.#open.delete(rid)) return;
    this.#wire.forget(rid);
    if (this.#open.size === 0) this.#end();
    this.#listener.done(rid - this.#first, value);
  }

  /** Ends the request with an error. `why` tells the engine, when it is not the engine that failed. */
  fail(error: unknown, why: "cancelled" | "deadline" | null): void {
    if (!this.#stop(why)) return;
    this.#rejectAccepted?.(error);
    this.#listener.failed(error);
  }

  /** One part failed in the engine: the others end with it. */
  partFailed(rid: number, error: unknown): void {
    if (this.#open.delete(rid)) this.#wire.forget(rid);
    this.fail(error, "cancelled");
  }

  /** Ends the request without a word to its listener. */
  cancel(): void {
    this.#stop("cancelled");
  }

  /** So many more tokens of a paced part were read. Told once for all that is read in one go. */
  read(part: number, count: number): void {
    if (!this.#open.has(this.#first + part)) return;
    if (this.#unread.size === 0) queueMicrotask(this.#tellRead);
    this.#unread.set(part, (this.#unread.get(part) ?? 0) + count);
  }

  readonly #tellRead = (): void => {
    for (const [part, count] of this.#unread) {
      if (this.#open.has(this.#first + part)) this.#wire.read(this.#first + part, count);
    }
    this.#unread.clear();
  };

  readonly #onAbort = (): void => {
    this.fail(this.#limits.signal?.reason, "cancelled");
  };

  #stop(why: "cancelled" | "deadline" | null): boolean {
    if (this.#over) return false;
    for (const rid of this.#open) {
      this.#wire.forget(rid);
      if (why) this.#wire.abort(rid, why);
    }
    this.#open.clear();
    this.#end();
    return true;
  }

  #end(): void {
    this.#over = true;
    this.#stopClock();
    this.#limits.signal?.removeEventListener("abort", this.#onAbort);
  }
}

/** The promise's outcome, or the signal's reason if that comes first. */
export function untilAborted<T>(promise: Promise<T>, signal: AbortSignal | undefined): Promise<T> {
  return within({ signal }, promise);
}

/** The promise's outcome, or what the limits end it with if that comes first. */
export function within<T>(limits: Limits, promise: Promise<T>): Promise<T> {
  const { signal } = limits;
  return new Promise((resolve, reject) => {
    const onAbort = (): void => {
      reject(signal?.reason as Error);
    };
    signal?.addEventListener("abort", onAbort, { once: true });
    const stopClock = onDeadline(limits, reject);
    void promise.then(resolve, reject).finally(() => {
      signal?.removeEventListener("abort", onAbort);
      stopClock();
    });
  });
}
