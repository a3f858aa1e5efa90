/** One connection to one host: a port, perhaps a Worker of our own behind it, and how both end. What is said is the client's. */
import { afterAwake } from "./awake.js";
import type { Connection } from "./connect.js";
import { connectTo } from "./connect.js";
import { FiresideError, fromWire } from "./errors.js";
import { isToClient } from "./messages.js";
import type { Op, ToClient, ToHost } from "./protocol.js";

/** How long a busy host may take to free what it holds before it is left, and a Worker of our own ended anyway. */
const DISPOSE_MS = 2000;
/** A Worker that has said nothing for this long is warned of: one that was given may not run `fireside/worker`. */
const SILENT_MS = 10_000;

/** Why a connection is of no more use: its GPU device or its wasm instance is gone, or it never worked. */
export type Loss = "device" | "crash" | "failed";

/** What comes from a host that is not about the connection itself. */
export type HostMessage = Exclude<ToClient, { t: "hello" | "crashed" | "lost" }>;

export interface LinkListener {
  message(message: HostMessage): void;
  /** At most once, and nothing after it. */
  lost(loss: Loss, error: FiresideError): void;
}

export class Link {
  readonly #port: MessagePort;
  readonly #ownWorker: Worker | null;
  readonly #listener: LinkListener;
  /** Runs until the host has been heard. */
  #silence: ReturnType<typeof setTimeout> | undefined;
  #disposed: (() => void) | null = null;
  #over = false;

  /** Connects to a new Worker (true), to a given one, or to a host in this thread (false). */
  constructor(worker: boolean | Worker, listener: LinkListener) {
    this.#listener = listener;
    const { port, ownWorker }: Connection = connectTo(worker, (error) => {
      // Later errors of a Worker that is not ours are its owner's.
      if (this.#silence !== undefined) this.#lose("failed", error);
      else if (this.#ownWorker) this.#lose("crash", error);
    });
    this.#port = port;
    this.#ownWorker = ownWorker;
    this.#silence = setTimeout(() => {
      this.#tellSilence();
    }, SILENT_MS);
    port.onmessage = (event: MessageEvent<unknown>) => {
      this.#receive(event.data);
    };
    port.onmessageerror = () => {
      this.#lose("failed", new FiresideError("worker.failed", "A message from the Worker could not be read."));
    };
  }

  send(message: ToHost): void {
    if (!this.#over) this.#port.postMessage(message);
  }

  /** Lets the host free what it holds, then ends the connection, and the Worker that is ours. `id` is of a call that nothing waits for. */
  async dispose(id: number): Promise<void> {
    if (!this.#over) {
      const op: Op = "dispose";
      let stop: (() => void) | undefined;
      await new Promise<void>((resolve) => {
        this.#disposed = resolve;
        this.send({ t: "call", id, op, args: null });
        // Someone else's Worker is never ended by us, but may have been by its owner: then no answer comes.
        stop = afterAwake(DISPOSE_MS, resolve);
      });
      stop?.();
    }
    this.drop();
  }

  /** Ends the connection where it stands, and the Worker that is ours. */
  drop(): void {
    this.#over = true;
    this.#heard();
    this.#port.close();
    this.#ownWorker?.terminate();
    this.#disposed?.();
  }

  #receive(message: unknown): void {
    this.#heard();
    if (this.#disposed) {
      if (isToClient(message) && (message.t === "result" || message.t === "error")) this.#disposed();
      return;
    }
    if (this.#over) return;
    if (!isToClient(message)) {
      const text = "The Worker sent a message that this page does not know: the two run different versions of fireside.";
      this.#listener.message({ t: "warning", value: { code: "engine.unknown_event", message: text, details: {} } });
    } else if (message.t === "crashed" || message.t === "lost") {
      this.#lose(message.t === "lost" ? "device" : "crash", fromWire(message.error));
    } else if (message.t !== "hello") {
      this.#listener.message(message);
    }
  }

  #lose(loss: Loss, error: FiresideError): void {
    if (this.#over || this.#disposed) return;
    this.#over = true;
    this.#heard();
    this.#listener.lost(loss, error);
  }

  #heard(): void {
    clearTimeout(this.#silence);
    this.#silence = undefined;
  }

  #tellSilence(): void {
    const message = `The Worker has not answered for ${String(SILENT_MS / 1000)} s: does it run fireside/worker?`;
    this.#listener.message({ t: "warning", value: { code: "worker.silent", message, details: { milliseconds: SILENT_MS } } });
  }
}
