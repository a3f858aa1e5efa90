/**
 * The page's side of an engine: calls with answers, requests with events, settling at once whatever the engine is doing. When the
 * engine's device or instance is lost, another one takes over what was running.
 */
import { FiresideError, fromWire } from "./errors.js";
import { Ledgers } from "./ledger.js";
import type { HostMessage, Loss } from "./link.js";
import { Link } from "./link.js";
import { Losses } from "./losses.js";
import type { Calls, Op, ToHost, WirePart } from "./protocol.js";
import type { Limits, Listener } from "./request.js";
import { Request } from "./request.js";
import type { EngineInfo, TokenEvent } from "./types.js";

/** What concerns the engine rather than one request. */
export type EngineMessage =
  | Extract<HostMessage, { t: "progress" | "warning" }>
  | { t: "devicelost"; value: { reason: string; message: string } }
  | { t: "recovered"; value: { backend: "webgpu" | "cpu"; resumed: number }; info: EngineInfo }
  | { t: "failed"; error: FiresideError };

/** A call without its answer. */
interface Waiting {
  op: Op;
  args: unknown;
  /** Made by the client for itself: not made again after a loss. */
  own: boolean;
  resolve: (value: unknown) => void;
  reject: (error: unknown) => void;
}

/** One engine's connection. */
export class Client {
  readonly #worker: boolean | Worker;
  readonly #onMessage: (message: EngineMessage) => void;
  readonly #calls = new Map<number, Waiting>();
  readonly #requests = new Map<number, Request>();
  readonly #ledgers = new Ledgers();
  readonly #losses = new Losses();
  #link: Link;
  /** Between a loss and its mending calls wait. */
  #mending = false;
  /** Counts the attempts to mend: an older one has nothing to say any more. */
  #turn = 0;
  /** How to make the engine again. */
  #load: Calls["load"]["args"] | null = null;
  #nextId = 1;
  #over: FiresideError | null = null;

  private constructor(worker: boolean | Worker, onMessage: (message: EngineMessage) => void) {
    this.#worker = worker;
    this.#onMessage = onMessage;
    this.#link = this.#connect();
  }

  /** Connects to a new Worker (true), to a given one, or to a host in this thread (false). */
  static connect(worker: boolean | Worker, onMessage: (message: EngineMessage) => void): Client {
    return new Client(worker, onMessage);
  }

  /** One call, one answer. */
  call<O extends Op>(op: O, args: Calls[O]["args"]): Promise<Calls[O]["result"]> {
    return this.#call(op, args, false);
  }

  #call<O extends Op>(op: O, args: Calls[O]["args"], own: boolean): Promise<Calls[O]["result"]> {
    if (this.#over) return Promise.reject(this.#over);
    const id = this.#nextId++;
    return new Promise((resolve, reject) => {
      this.#calls.set(id, { op, args, own, resolve: resolve as (value: unknown) => void, reject });
      if (this.#mending && !own) return;
      try {
        this.#link.send({ t: "call", id, op, args } as ToHost);
      } catch (error) {
        this.#calls.delete(id);
        reject(error instanceof Error ? error : new Error(String(error)));
      }
    });
  }

  /** A call during which the caller may lose interest: its signal settles it at once. */
  cancellable<O extends "load" | "pull" | "survey">(
    op: O,
    args: Calls[O]["args"],
    signal: AbortSignal | undefined,
  ): Promise<Calls[O]["result"]> {
    return new Promise((resolve, reject) => {
      const abort = (): void => {
        this.#link.send({ t: "cancelLoad" });
        reject(signal?.reason as Error);
      };
      if (signal?.aborted) {
        abort();
        return;
      }
      signal?.addEventListener("abort", abort, { once: true });
      if (op === "load") this.#load = args as Calls["load"]["args"];
      void this.call(op, args)
        .then(resolve, reject)
        .finally(() => signal?.removeEventListener("abort", abort));
    });
  }

  /** Submits the parts of a request together and tells the listener how it goes. */
  open(parts: readonly WirePart[], listener: Listener, limits: Limits): Request {
    const first = this.#nextId;
    this.#nextId += parts.length;
    const wire = {
      submit: async (all: (WirePart & { rid: number })[]) => {
        const parts = all.map((part) => this.#ledgers.begin(part, performance.now()));
        await this.call("submit", { parts });
        for (const { rid } of parts) this.#ledgers.accept(rid);
        return null;
      },
      abort: (rid: number, why: "cancelled" | "deadline") => {
        if (!this.#over) this.#link.send({ t: "abort", rid, why });
      },
      read: (rid: number, count: number) => {
        if (!this.#over) this.#link.send({ t: "read", rid, count });
      },
      forget: (rid: number) => {
        this.#requests.delete(rid);
        this.#ledgers.end(rid);
      },
    };
    const request = new Request(wire, first, parts, listener, limits);
    parts.forEach((_, i) => this.#requests.set(first + i, request));
    return request;
  }

  /** Runs a request to its end: the results of its parts. An error thrown by `onToken` ends it and is what the promise rejects with. */
  run(parts: readonly WirePart[], limits: Limits, onToken?: (value: unknown) => void): Promise<unknown[]> {
    if (limits.signal?.aborted) return Promise.reject(limits.signal.reason as Error);
    return new Promise((resolve, reject) => {
      const results: unknown[] = [];
      let left = parts.length;
      this.open(
        parts,
        {
          token(_part, value) {
            onToken?.(value);
          },
          done(part, value) {
            results[part] = value;
            if (--left === 0) resolve(results);
          },
          failed: reject,
        },
        limits,
      );
    });
  }

  /** Ends every request and call with `error`, lets the engine free what it holds, and ends the Worker that is ours. */
  async dispose(error: FiresideError): Promise<void> {
    const alive = this.#over === null;
    this.#end(error);
    if (alive && !this.#mending) await this.#link.dispose(this.#nextId++);
    else this.#link.drop();
  }

  // ---- what comes from the host

  #connect(): Link {
    const link: Link = new Link(this.#worker, {
      message: (message) => {
        if (this.#link === link) this.#receive(message);
      },
      lost: (loss, error) => {
        if (this.#link === link) this.#lost(loss, error);
      },
    });
    return link;
  }

  #receive(message: HostMessage): void {
    switch (message.t) {
      case "result":
        this.#take(message.id)?.resolve(message.value);
        return;
      case "error":
        this.#take(message.id)?.reject(fromWire(message.error));
        return;
      case "prompt":
        this.#ledgers.prompt(message.rid, message.tokens);
        return;
      case "token":
        this.#ledgers.token(message.rid, message.value as TokenEvent, performance.now());
        this.#requests.get(message.rid)?.token(message.rid, message.value);
        return;
      case "done":
        this.#requests.get(message.rid)?.done(message.rid, message.value);
        return;
      case "failed":
        this.#requests.get(message.rid)?.partFailed(message.rid, fromWire(message.error));
        return;
      case "progress":
      case "warning":
        this.#onMessage(message);
        return;
    }
  }

  // ---- losses

  /** An engine that is gone is made again, in a new Worker where it is ours, and takes over what ran; or everything ends with the code. */
  #lost(loss: Loss, error: FiresideError): void {
    if (this.#over) return;
    const load = this.#load;
    if (loss === "failed" || this.#worker === false || !load) {
      this.#fail(error);
      return;
    }
    const verdict = this.#losses.judge(loss, load.options.backend, performance.now());
    if (verdict === "give up") {
      this.#fail(error);
      return;
    }
    if (verdict === "cpu") this.#load = { ...load, options: { ...load.options, backend: "cpu" } };
    const told = !this.#mending;
    this.#mending = true;
    this.#link.drop();
    for (const [id, { own, reject }] of this.#calls) {
      if (own && this.#calls.delete(id)) reject(error);
    }
    if (told) this.#onMessage({ t: "devicelost", value: { reason: loss === "crash" ? "crashed" : "lost", message: error.message } });
    void this.#mend(++this.#turn);
  }

  async #mend(turn: number): Promise<void> {
    let info: EngineInfo | null = null;
    try {
      this.#link = this.#connect();
      // The first load may be what was interrupted: then its call, made again, is all there is to do.
      const loading = [...this.#calls.values()].some(({ op }) => op === "load");
      if (!loading && this.#load) info = await this.#call("load", this.#load, true);
    } catch (cause) {
      if (turn !== this.#turn || this.#over) return;
      const why = cause instanceof Error ? cause.message : String(cause);
      this.#fail(new FiresideError("device.lost", `The engine was lost and could not be loaded again: ${why}`, {}, { cause }));
      return;
    }
    if (turn !== this.#turn || this.#over) return;
    this.#mending = false;
    const [parts, waiting] = [this.#ledgers.taken(performance.now()), [...this.#calls]];
    // What cannot be taken over ends by itself, part by part.
    if (parts.length > 0) this.#call("resume", { parts }, true).catch(() => undefined);
    for (const [id, waits] of waiting) this.#again(id, waits);
    if (info) this.#onMessage({ t: "recovered", value: { backend: info.backend, resumed: parts.length }, info });
  }

  /** Makes a call again that had no answer. Parts of requests that ended meanwhile are nobody's any more. */
  #again(id: number, { op, args, resolve }: Waiting): void {
    let now = op === "load" ? this.#load : args;
    if (op === "submit") {
      const parts = (args as Calls["submit"]["args"]).parts.filter(({ rid }) => this.#requests.has(rid));
      if (parts.length === 0) {
        this.#calls.delete(id);
        resolve(null);
        return;
      }
      now = { parts };
    }
    this.#link.send({ t: "call", id, op, args: now } as ToHost);
  }

  #fail(error: FiresideError): void {
    this.#link.drop();
    this.#end(error);
    this.#onMessage({ t: "failed", error });
  }

  #take(id: number): Waiting | undefined {
    const waiting = this.#calls.get(id);
    this.#calls.delete(id);
    return waiting;
  }

  #end(error: FiresideError): void {
    this.#over ??= error;
    const [calls, requests] = [[...this.#calls.values()], new Set(this.#requests.values())];
    this.#calls.clear();
    this.#requests.clear();
    for (const request of requests) request.fail(error, null);
    for (const call of calls) call.reject(error);
  }
}
