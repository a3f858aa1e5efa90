/** The engine's side of the port: owns one wasm engine, runs its loop, answers calls. Runs in a Worker or in the page's thread. */
import { FiresideError, fromWire, toWire } from "./errors.js";
import { Pace, Watched } from "./load.js";
import type { Calls, Connect, Op, Survey, ToClient, ToHost } from "./protocol.js";
import type { Release } from "./storage/locks.js";
import { announce } from "./storage/locks.js";
import { openForHeader, openModel, pullModel } from "./storage/open.js";
import type { Hooks, Opened } from "./storage/opened.js";
import type { LoadProgress, StoredModel, Warning } from "./types.js";
import type { ByteSource, WasmEngine } from "./wasm/fireside.js";
import init, { survey as surveyHeader, WasmEngine as Wasm } from "./wasm/fireside.js";

type LoadArgs = Calls["load"]["args"];

const hosts = new Set<Host>();

/** Starts a host on one end of a channel. */
export function serve(port: MessagePort): void {
  hosts.add(new Host(port));
}

/** True for the message by which a page hands a Worker its port. */
export function isConnect(data: unknown): data is Connect {
  return typeof data === "object" && data !== null && (data as Partial<Connect>).fireside === "connect";
}

/** A trap in wasm leaves the instance in no usable state: every engine of this thread is over. */
export function crashAll(error: unknown): void {
  for (const host of hosts) host.crash(error);
}

class Host {
  readonly #port: MessagePort;
  readonly #loading = new AbortController();
  /** Wasm request ids by the client's. */
  readonly #requests = new Map<number, number>();
  #engine: WasmEngine | null = null;
  #crashed: FiresideError | null = null;
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
    port.onmessage = (event: MessageEvent<ToHost>) => {
      void this.#receive(event.data);
    };
  }

  crash(error: unknown): void {
    if (this.#crashed) return;
    const wire = toWire(error);
    this.#crashed = new FiresideError(wire.code, wire.message, wire.details);
    this.#requests.clear();
    this.#quiet?.();
    this.#post({ t: "crashed", error: wire });
  }

  async #receive(message: ToHost): Promise<void> {
    switch (message.t) {
      case "abort": {
        const id = this.#requests.get(message.rid);
        this.#requests.delete(message.rid);
        if (id !== undefined && this.#engine && !this.#crashed) this.#engine.abort(id, message.why);
        return;
      }
      case "cancelLoad":
        this.#loading.abort();
        return;
      case "call":
        try {
          this.#post({ t: "result", id: message.id, value: await this.#call(message.op, message.args) });
        } catch (error) {
          this.#post({ t: "error", id: message.id, error: toWire(error) });
          if (error instanceof WebAssembly.RuntimeError) crashAll(error);
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
    if (this.#crashed) throw this.#crashed;
    const engine = this.#engine;
    if (!engine) throw new FiresideError("engine.disposed", "The engine was disposed.");
    switch (op) {
      case "info":
        return JSON.parse(engine.info()) as Calls["info"]["result"];
      case "stats":
        return JSON.parse(engine.stats()) as Calls["stats"]["result"];
      case "submit": {
        const { rid, request, prompt } = args as Calls["submit"]["args"];
        return this.#start(rid, (onEvent) => engine.submit(request, prompt ?? undefined, onEvent));
      }
      case "score": {
        const { rid, tokens, topLogprobs } = args as Calls["score"]["args"];
        return this.#start(rid, (onEvent) => engine.score(tokens, topLogprobs, onEvent));
      }
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
    }
  }

  #settling<T>(work: Promise<T>): Promise<T> {
    this.#opening = work.catch(() => undefined);
    return work;
  }

  async #load(args: LoadArgs): Promise<Calls["load"]["result"]> {
    await init({ module_or_path: args.wasm ?? undefined });
    const { engine, id } = await this.#open(args);
    if (this.#loading.signal.aborted) {
      engine.dispose();
      this.#loading.signal.throwIfAborted();
    }
    this.#engine = engine;
    this.#quiet = await announce({ id, tab: args.keep.tab, since: Date.now() });
    engine.run().then(
      () => undefined,
      (error: unknown) => {
        this.crash(error);
      },
    );
    return JSON.parse(engine.info()) as Calls["load"]["result"];
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
      case "devicelost":
        this.#post({ t: "devicelost", value: value as { reason: string; message: string } });
        return;
      case "recovered":
        this.#post({ t: "recovered", value: value as { backend: "webgpu" | "cpu"; resumed: number } });
        return;
      case "failed":
        this.crash(value);
        return;
      default:
        this.#post({
          t: "warning",
          value: { code: "engine.unknown_event", message: `The engine sent an event of unknown kind ${kind}.`, details: { kind } },
        });
    }
  }

  /** Submits and ties the request's events to the client's id. Events may come before the wasm call returns. */
  #start(rid: number, submit: (onEvent: (kind: string, json: string) => void) => number): null {
    let over = false;
    const id = submit((kind, json) => {
      const value: unknown = JSON.parse(json);
      if (kind === "token") {
        this.#post({ t: "token", rid, value });
        return;
      }
      over = true;
      this.#requests.delete(rid);
      this.#post(kind === "done" ? { t: "done", rid, value } : { t: "failed", rid, error: toWire(value) });
    });
    if (!over) this.#requests.set(rid, id);
    return null;
  }

  async #dispose(): Promise<null> {
    this.#loading.abort();
    await this.#opening;
    this.#quiet?.();
    const engine = this.#engine;
    this.#engine = null;
    if (engine && !this.#crashed) engine.dispose();
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

/** What wasm threw, as an error with its code. */
function asError(thrown: unknown): unknown {
  if (thrown instanceof Error) return thrown;
  return fromWire(toWire(thrown));
}

/** A model's header, read by the engine's own reader. */
async function readHeader(source: ByteSource): Promise<Survey> {
  await init({ module_or_path: undefined });
  const bytes = new Watched(source);
  try {
    return JSON.parse(await surveyHeader(bytes)) as Survey;
  } catch (thrown) {
    throw bytes.failure?.error ?? asError(thrown);
  }
}
