/** The page's side of the port: calls with answers, requests with events, and settling at once whatever the engine is doing. */
import type { Connection } from "./connect.js";
import { connectTo } from "./connect.js";
import { FiresideError, fromWire } from "./errors.js";
import { isToClient } from "./messages.js";
import type { Calls, Op, ToClient, ToHost, WirePart } from "./protocol.js";
import type { Limits, Listener } from "./request.js";
import { Request } from "./request.js";

/** How long dispose() waits for a busy engine before it ends the Worker anyway. */
const DISPOSE_MS = 2000;
/** A Worker that has said nothing for this long is warned of: one that was given may not run `fireside/worker`. */
const SILENT_MS = 10_000;

/** Events that concern the engine rather than one request. */
export type EngineMessage = Extract<ToClient, { t: "progress" | "warning" | "devicelost" | "recovered" | "crashed" }>;

interface Waiting {
  resolve: (value: unknown) => void;
  reject: (error: unknown) => void;
}

/** One engine's connection. */
export class Client {
  readonly #port: MessagePort;
  readonly #ownWorker: Worker | null;
  readonly #onMessage: (message: EngineMessage) => void;
  readonly #calls = new Map<number, Waiting>();
  readonly #requests = new Map<number, Request>();
  #nextId = 1;
  /** Runs until the host has been heard. */
  #silence: ReturnType<typeof setTimeout> | undefined;
  #over: FiresideError | null = null;

  private constructor(worker: boolean | Worker, onMessage: (message: EngineMessage) => void) {
    const { port, ownWorker }: Connection = connectTo(worker, (error) => {
      // Later errors of a Worker that is not ours are its owner's.
      if (this.#ownWorker || this.#silence !== undefined) this.#end(error);
    });
    this.#port = port;
    this.#ownWorker = ownWorker;
    this.#onMessage = onMessage;
    this.#silence = setTimeout(() => {
      this.#tellSilence();
    }, SILENT_MS);
    port.onmessage = (event: MessageEvent<unknown>) => {
      this.#receive(event.data);
    };
    port.onmessageerror = () => {
      this.#end(new FiresideError("worker.failed", "A message from the Worker could not be read."));
    };
  }

  /** Connects to a new Worker (true), to a given one, or to a host in this thread (false). */
  static connect(worker: boolean | Worker, onMessage: (message: EngineMessage) => void): Client {
    return new Client(worker, onMessage);
  }

  /** One call, one answer. */
  call<O extends Op>(op: O, args: Calls[O]["args"], transfer: Transferable[] = []): Promise<Calls[O]["result"]> {
    if (this.#over) return Promise.reject(this.#over);
    const id = this.#nextId++;
    return new Promise((resolve, reject) => {
      this.#calls.set(id, { resolve: resolve as (value: unknown) => void, reject });
      try {
        this.#send({ t: "call", id, op, args } as ToHost, transfer);
      } catch (error) {
        this.#calls.delete(id);
        reject(error instanceof Error ? error : new Error(String(error)));
      }
    });
  }

  /** A call during which the caller may lose interest: its signal settles it at once. */
  load(args: Calls["load"]["args"], signal: AbortSignal | undefined): Promise<Calls["load"]["result"]> {
    return new Promise((resolve, reject) => {
      const abort = (): void => {
        this.#send({ t: "cancelLoad" });
        reject(signal?.reason as Error);
      };
      if (signal?.aborted) {
        abort();
        return;
      }
      signal?.addEventListener("abort", abort, { once: true });
      void this.call("load", args)
        .then(resolve, reject)
        .finally(() => signal?.removeEventListener("abort", abort));
    });
  }

  /** Submits the parts of a request together and tells the listener how it goes. */
  open(parts: readonly WirePart[], listener: Listener, limits: Limits): Request {
    const first = this.#nextId;
    this.#nextId += parts.length;
    const wire = {
      submit: (all: (WirePart & { rid: number })[]) => this.call("submit", { parts: all }),
      abort: (rid: number, why: "cancelled" | "deadline") => {
        if (!this.#over) this.#send({ t: "abort", rid, why });
      },
      read: (rid: number, count: number) => {
        if (!this.#over) this.#send({ t: "read", rid, count });
      },
      forget: (rid: number) => this.#requests.delete(rid),
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
    this.#rejectAll(error);
    if (alive) {
      const freed = this.call("dispose", null).catch(() => null);
      this.#over = error;
      let timer: ReturnType<typeof setTimeout> | undefined;
      // Someone else's Worker is never ended, so there is nothing to gain from not waiting for it.
      const patience = new Promise((resolve) => (timer = this.#ownWorker ? setTimeout(resolve, DISPOSE_MS) : undefined));
      await Promise.race([freed, patience]);
      clearTimeout(timer);
    }
    this.#heard();
    this.#port.close();
    this.#ownWorker?.terminate();
  }

  #receive(message: unknown): void {
    this.#heard();
    if (!isToClient(message)) {
      const text = "The Worker sent a message that this page does not know: the two run different versions of fireside.";
      this.#onMessage({ t: "warning", value: { code: "engine.unknown_event", message: text, details: {} } });
      return;
    }
    switch (message.t) {
      case "hello":
        return;
      case "result":
        this.#take(message.id)?.resolve(message.value);
        return;
      case "error":
        this.#take(message.id)?.reject(fromWire(message.error));
        return;
      case "token":
        this.#requests.get(message.rid)?.token(message.rid, message.value);
        return;
      case "done":
        this.#requests.get(message.rid)?.done(message.rid, message.value);
        return;
      case "failed":
        this.#requests.get(message.rid)?.partFailed(message.rid, fromWire(message.error));
        return;
      case "crashed":
        this.#end(fromWire(message.error));
        this.#onMessage(message);
        return;
      case "progress":
      case "warning":
      case "devicelost":
      case "recovered":
        this.#onMessage(message);
        return;
    }
  }

  #heard(): void {
    clearTimeout(this.#silence);
    this.#silence = undefined;
  }

  #tellSilence(): void {
    const message = `The Worker has not answered for ${String(SILENT_MS / 1000)} s: does it run fireside/worker?`;
    this.#onMessage({ t: "warning", value: { code: "worker.silent", message, details: { milliseconds: SILENT_MS } } });
  }

  #take(id: number): Waiting | undefined {
    const waiting = this.#calls.get(id);
    this.#calls.delete(id);
    return waiting;
  }

  #rejectAll(error: FiresideError): void {
    const [calls, requests] = [[...this.#calls.values()], new Set(this.#requests.values())];
    this.#calls.clear();
    this.#requests.clear();
    for (const request of requests) request.fail(error, null);
    for (const call of calls) call.reject(error);
  }

  #end(error: FiresideError): void {
    this.#over ??= error;
    this.#rejectAll(error);
  }

  #send(message: ToHost, transfer: Transferable[] = []): void {
    this.#port.postMessage(message, transfer);
  }
}
