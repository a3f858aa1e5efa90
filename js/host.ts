/** The engine's side of the port: owns one wasm engine, runs its loop, answers calls. Runs in a Worker or in the page's thread. */
import { FiresideError, toWire } from "./errors.js";
import { HostRequests } from "./host-requests.js";
import { asError, freshInstance, readHeader, releaseDevice, spoil } from "./instance.js";
import { Pace, Watched } from "./load.js";
import { callId, isToHost } from "./messages.js";
import type { Calls, Op, ToClient, ToHost } from "./protocol.js";
import type { Release } from "./storage/locks.js";
import { announce } from "./storage/locks.js";
import { openForHeader, openModel, pullModel } from "./storage/open.js";
import type { Hooks, Opened } from "./storage/opened.js";
import type { LoadProgress, StoredModel, Warning } from "./types.js";
import type { WasmEngine } from "./wasm/fireside.js";
import { startWasm } from "./wasm-module.js";
import { WasmEngine as Wasm } from "./wasm/fireside.js";

type LoadArgs = Calls["load"]["args"];

const hosts = new Set<Host>();

/** Starts a host on one end of a channel. */
export function serve(port: MessagePort): void {
  hosts.add(new Host(port));
}

/** A trap in wasm leaves the instance in no usable state: every engine of this thread is over. */
export function crashAll(error: unknown): void {
  spoil();
  for (const host of [...hosts]) host.end("crashed", error);
}

/** The engines of a thread share its GPU device, which an instance makes once. */
function loseAll(error: unknown): void {
  spoil();
  for (const host of [...hosts]) if (host.hasEngine) host.end("lost", error);
}

/** The last engine of a thread takes the device along. */
function releaseUnused(): void {
  if (![...hosts].some((host) => host.hasEngine)) releaseDevice();
}

class Host {
  readonly #port: MessagePort;
  readonly #loading = new AbortController();
  #engine: WasmEngine | null = null;
  #requests: HostRequests | null = null;
  /** Settles when the engine's loop has ended. */
  #running: Promise<void> = Promise.resolve();
  #loadingEngine = false;
  #ended: FiresideError | null = null;
  readonly #pace: Pace;
  /** What is being loaded or pulled now: it is let settle before the host ends, so that what arrived is kept. */
  #opening: Promise<unknown> = Promise.resolve();
  /** Ends the announcement of the running engine. */
  #quiet: Release | null = null;

  constructor(port: MessagePort) {
    this.#port = port;
    this.#pace = new Pace((value) => {
      this.#post({ t: "progress", value });
    });
    port.onmessage = (event: MessageEvent<unknown>) => {
      if (isToHost(event.data)) void this.#receive(event.data);
      else this.#refuse(event.data);
    };
    this.#post({ t: "hello" });
  }

  /** An engine is here, or is being made. */
  get hasEngine(): boolean {
    return this.#loadingEngine || this.#engine !== null;
  }

  /** The engine is over, for a reason that is not its own; the page decides what follows. */
  end(how: "crashed" | "lost", error: unknown): void {
    if (this.#ended) return;
    const wire = toWire(error);
    this.#ended = new FiresideError(wire.code, wire.message, wire.details);
    this.#engine = null;
    this.#requests = null;
    this.#quiet?.();
    this.#post({ t: how, error: wire });
    // Reads that a load waits for end, and let go of their files.
    this.#loading.abort(this.#ended);
    this.#close();
  }

  /** A page of another version: its call gets an answer, so that nothing waits for ever. */
  #refuse(data: unknown): void {
    const id = callId(data);
    const message = "The Worker got a message that it does not know: it runs another version of fireside than the page.";
    if (id !== null) this.#post({ t: "error", id, error: { code: "worker.bad_message", message, details: {} } });
  }

  async #receive(message: ToHost): Promise<void> {
    switch (message.t) {
      case "abort":
        this.#requests?.abort(message.rid, message.why);
        return;
      case "read":
        this.#requests?.read(message.rid, message.count);
        return;
      case "cancelLoad":
        this.#loading.abort();
        return;
      case "call":
        try {
          this.#post({ t: "result", id: message.id, value: await this.#call(message.op, message.args) });
        } catch (error) {
          if (error instanceof WebAssembly.RuntimeError) crashAll(error);
          else if ((error as { code?: unknown } | null)?.code === "device.lost") {
            // Also where there is no engine yet: the page loads again.
            this.end("lost", error);
            loseAll(error);
          }
          this.#post({ t: "error", id: message.id, error: toWire(error) });
        }
        if (message.op === "dispose") this.#close();
        return;
    }
  }

  async #call(op: Op, args: Calls[Op]["args"]): Promise<Calls[Op]["result"]> {
    if (op === "load") return this.#settling(this.#load(args as LoadArgs));
    if (op === "pull") return this.#settling(this.#pull(args as Calls["pull"]["args"]));
    if (op === "survey") return this.#settling(this.#survey(args as Calls["survey"]["args"]));
    if (op === "dispose") return this.#dispose();
    if (this.#ended) throw this.#ended;
    const [engine, requests] = [this.#engine, this.#requests];
    if (!engine || !requests) throw new FiresideError("engine.disposed", "The engine was disposed.");
    switch (op) {
      case "info":
        return JSON.parse(engine.info()) as Calls["info"]["result"];
      case "stats":
        return JSON.parse(engine.stats()) as Calls["stats"]["result"];
      case "trace":
        return JSON.parse(engine.trace((args as Calls["trace"]["args"]).last)) as Calls["trace"]["result"];
      case "submit":
        return requests.submit((args as Calls["submit"]["args"]).parts);
      case "resume":
        return requests.resume((args as Calls["resume"]["args"]).parts);
      case "tokenize": {
        const { text, addSpecial, parseSpecial } = args as Calls["tokenize"]["args"];
        return engine.tokenize(text, addSpecial, parseSpecial);
      }
      case "detokenize": {
        const { tokens, special } = args as Calls["detokenize"]["args"];
        return engine.detokenize(tokens, special);
      }
      case "renderChat": {
        const { messages, options } = args as Calls["renderChat"]["args"];
        return engine.renderChat(messages, options);
      }
      default:
        throw new FiresideError("worker.bad_message", `The Worker has no operation ${String(op)}.`, { op });
    }
  }

  #settling<T>(work: Promise<T>): Promise<T> {
    this.#opening = work.catch(() => undefined);
    return work;
  }

  async #load(args: LoadArgs): Promise<Calls["load"]["result"]> {
    this.#loadingEngine = true;
    try {
      await startWasm(args.wasm, this.#loading.signal);
      await freshInstance();
      const { engine, id } = await this.#open(args);
      if (this.#loading.signal.aborted) {
        engine.dispose();
        this.#loading.signal.throwIfAborted();
      }
      this.#engine = engine;
      this.#requests = new HostRequests(
        engine,
        (message) => {
          this.#post(message);
        },
        loseAll,
      );
      this.#quiet = await announce({ id, tab: args.keep.tab, since: Date.now() });
      this.#running = engine.run().catch(crashAll);
      return JSON.parse(engine.info()) as Calls["load"]["result"];
    } finally {
      this.#loadingEngine = false;
      if (!this.#engine) releaseUnused();
    }
  }

  /** A file that changes on the server while it is read is read once more, from its start. */
  async #open(args: LoadArgs): Promise<{ engine: WasmEngine; id: string }> {
    try {
      return await this.#openOnce(args);
    } catch (error) {
      if (!(error instanceof FiresideError) || error.code !== "source.changed") throw error;
      return this.#openOnce(args);
    }
  }

  async #openOnce({ source, options, keep }: LoadArgs): Promise<{ engine: WasmEngine; id: string }> {
    const opened = await openModel({ source, cache: keep.cache, integrity: keep.integrity, id: null }, this.#hooks());
    const engine = await this.#fill(opened, JSON.stringify(options));
    try {
      await opened.finish();
    } catch (error) {
      engine.dispose();
      throw error;
    }
    this.#pace.flush();
    this.#post({ t: "progress", value: { phase: "ready", loaded: 1, total: 1, fromCache: opened.fromCache } });
    return { engine, id: opened.id };
  }

  /** Loads the engine from what was opened. What the source threw is told as it was, not as it came back through wasm. */
  async #fill(opened: Opened, options: string): Promise<WasmEngine> {
    const bytes = new Watched(opened.bytes);
    try {
      return await Wasm.load(bytes, options, (kind, json) => {
        this.#event(kind, JSON.parse(json), opened.fromCache);
      });
    } catch (thrown) {
      const error = bytes.failure?.error ?? asError(thrown);
      await opened.abandon(error);
      throw error;
    }
  }

  async #pull({ source, integrity, id }: Calls["pull"]["args"]): Promise<StoredModel> {
    const want = { source, cache: "opfs" as const, integrity, id };
    const model = await pullModel(want, this.#hooks(), (bytes) => readHeader(bytes));
    this.#pace.flush();
    return model;
  }

  async #survey({ source }: Calls["survey"]["args"]): Promise<Calls["survey"]["result"]> {
    const reading = new AbortController();
    this.#loading.signal.addEventListener("abort", () => {
      reading.abort(this.#loading.signal.reason);
    });
    try {
      const { bytes, stored } = await openForHeader(source, reading.signal);
      return { survey: await readHeader(bytes), stored };
    } finally {
      reading.abort();
    }
  }

  #hooks(): Hooks {
    return {
      signal: this.#loading.signal,
      onProgress: (progress) => {
        this.#pace.tell(progress);
      },
      onWarning: (value) => {
        this.#post({ t: "warning", value });
      },
    };
  }

  #event(kind: string, value: unknown, fromCache: boolean): void {
    switch (kind) {
      case "progress":
        // The engine is ready before the rest of its file is; the host says so when both are.
        if ((value as LoadProgress).phase !== "ready") this.#post({ t: "progress", value: { ...(value as LoadProgress), fromCache } });
        return;
      case "warning":
        this.#post({ t: "warning", value: value as Warning });
        return;
      default:
        this.#post({
          t: "warning",
          value: { code: "engine.unknown_event", message: `The engine sent an event of unknown kind ${kind}.`, details: { kind } },
        });
    }
  }

  async #dispose(): Promise<null> {
    this.#loading.abort();
    await this.#opening;
    this.#quiet?.();
    const engine = this.#engine;
    this.#engine = null;
    engine?.dispose();
    // Not left to the garbage collector, which does not know what it holds.
    engine?.free();
    // A step that the GPU is in ends before its device does.
    await this.#running;
    releaseUnused();
    return null;
  }

  #close(): void {
    hosts.delete(this);
    this.#port.close();
  }

  #post(message: ToClient): void {
    this.#port.postMessage(message);
  }
}
