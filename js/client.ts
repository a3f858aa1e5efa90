/** The page's side of the port: calls with answers, requests with events, and settling at once whatever the engine is doing. */
import { FiresideError, fromWire } from "./errors.js";
import type { Calls, Connect, Op, ToClient, ToHost } from "./protocol.js";
import { isToClient } from "./protocol.js";

/** How long dispose() waits for a busy engine before it ends the Worker anyway. */
const DISPOSE_MS = 2000;

/** Events that concern the engine rather than one request. */
export type EngineMessage = Extract<ToClient, { t: "progress" | "warning" | "devicelost" | "recovered" | "crashed" }>;

interface Waiting {
  resolve: (value: unknown) => void;
  reject: (error: unknown) => void;
  onToken?: (value: unknown) => void;
}

/** How a request may end early, besides by the engine. */
export interface Limits {
  signal?: AbortSignal | undefined;
  timeout?: number | undefined;
}

/** One engine's connection. */
export class Client {
  readonly #port: MessagePort;
  readonly #ownWorker: Worker | null;
  readonly #onMessage: (message: EngineMessage) => void;
  readonly #calls = new Map<number, Waiting>();
  readonly #requests = new Map<number, Waiting>();
  #nextId = 1;
  #over: FiresideError | null = null;

  private constructor(port: MessagePort, ownWorker: Worker | null, onMessage: (message: EngineMessage) => void) {
    this.#port = port;
    this.#ownWorker = ownWorker;
    this.#onMessage = onMessage;
    port.onmessage = (event: MessageEvent<unknown>) => {
      if (isToClient(event.data)) this.#receive(event.data);
    };
    port.onmessageerror = () => {
      this.#end(new FiresideError("worker.failed", "A message from the Worker could not be read."));
    };
  }

  /** Connects to a new Worker (true), to a given one, or to a host in this thread (false). */
  static async connect(worker: boolean | Worker, onMessage: (message: EngineMessage) => void): Promise<Client> {
    const { port1, port2 } = new MessageChannel();
    if (worker === false) {
      const { serveHere } = await import("./local.js");
      serveHere(port2);
      return new Client(port1, null, onMessage);
    }
    const target = worker === true ? makeWorker() : worker;
    const client = new Client(port1, worker === true ? target : null, onMessage);
    if (worker === true) {
      target.addEventListener("error", (event) => {
        client.#workerError(event);
      });
    }
    const connect: Connect = { fireside: "connect", port: port2 };
    target.postMessage(connect, [port2]);
    return client;
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

  /**
   * Runs one request to its end. `start` makes the call that submits it under the given id; tokens come to `onToken`.
   * An error thrown by `onToken` ends the request and is what the promise rejects with.
   */
  request(
    start: (rid: number) => Promise<null>,
    onToken: ((value: unknown) => void) | undefined,
    { signal, timeout }: Limits,
  ): Promise<unknown> {
    if (signal?.aborted) return Promise.reject(signal.reason as Error);
    const rid = this.#nextId++;
    let timer: ReturnType<typeof setTimeout> | undefined;
    let onAbort: (() => void) | undefined;
    const settled = new Promise<unknown>((resolve, reject) => {
      const stop = (error: unknown, why: "cancelled" | "deadline"): void => {
        if (!this.#requests.delete(rid)) return;
        if (!this.#over) this.#send({ t: "abort", rid, why });
        reject(error);
      };
      const waiting: Waiting = { resolve, reject };
      if (onToken) {
        waiting.onToken = (value) => {
          try {
            onToken(value);
          } catch (error) {
            stop(error, "cancelled");
          }
        };
      }
      this.#requests.set(rid, waiting);
      onAbort = () => {
        stop(signal?.reason, "cancelled");
      };
      signal?.addEventListener("abort", onAbort, { once: true });
      if (timeout !== undefined) {
        timer = setTimeout(() => {
          const message = `The request was not done within ${String(timeout)} ms.`;
          stop(new FiresideError("request.deadline", message, { timeout }), "deadline");
        }, timeout);
      }
      start(rid).catch((error: unknown) => {
        if (this.#requests.delete(rid)) reject(error);
      });
    });
    return settled.finally(() => {
      clearTimeout(timer);
      if (onAbort) signal?.removeEventListener("abort", onAbort);
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
    this.#port.close();
    this.#ownWorker?.terminate();
  }

  #receive(message: ToClient): void {
    switch (message.t) {
      case "result":
        this.#take(this.#calls, message.id)?.resolve(message.value);
        return;
      case "error":
        this.#take(this.#calls, message.id)?.reject(fromWire(message.error));
        return;
      case "token":
        this.#requests.get(message.rid)?.onToken?.(message.value);
        return;
      case "done":
        this.#take(this.#requests, message.rid)?.resolve(message.value);
        return;
      case "failed":
        this.#take(this.#requests, message.rid)?.reject(fromWire(message.error));
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

  /** A Worker that cannot start (no such file, blocked by policy) says so here and nowhere else. */
  #workerError(event: ErrorEvent): void {
    const why = event.message ? `: ${event.message}` : "";
    const details = { file: event.filename ?? "", line: event.lineno ?? 0 };
    this.#end(new FiresideError("worker.failed", `The Worker failed or could not be started${why}.`, details));
  }

  #take(map: Map<number, Waiting>, id: number): Waiting | undefined {
    const waiting = map.get(id);
    map.delete(id);
    return waiting;
  }

  #rejectAll(error: FiresideError): void {
    const all = [...this.#calls.values(), ...this.#requests.values()];
    this.#calls.clear();
    this.#requests.clear();
    for (const waiting of all) waiting.reject(error);
  }

  #end(error: FiresideError): void {
    this.#over ??= error;
    this.#rejectAll(error);
  }

  #send(message: ToHost, transfer: Transferable[] = []): void {
    this.#port.postMessage(message, transfer);
  }
}

/** The literal form is what bundlers look for. */
function makeWorker(): Worker {
  try {
    return new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
  } catch (cause) {
    const why = cause instanceof Error ? cause.message : String(cause);
    throw new FiresideError("worker.failed", `The Worker could not be made: ${why}`, {}, { cause });
  }
}
