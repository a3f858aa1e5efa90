/** The engine's side of the port: owns one wasm engine, runs its loop, answers calls. Runs in a Worker or in the page's thread. */
import { FiresideError, toWire } from "./errors.js";
import type { Calls, Connect, Op, ToClient, ToHost, WireLoadOptions, WireSource } from "./protocol.js";
import { isToHost } from "./protocol.js";
import { openSource } from "./source.js";
import type { LoadProgress, Warning } from "./types.js";
import type { WasmEngine } from "./wasm/fireside.js";
import init, { WasmEngine as Wasm } from "./wasm/fireside.js";

/** Download progress is told at most this often. */
const PROGRESS_MS = 50;

const hosts = new Set<Host>();

/** Starts a host on one end of a channel. */
export function serve(port: MessagePort): void {
  hosts.add(new Host(port));
}

/** True for the message by which a page hands a Worker its port. */
export function isConnect(data: unknown): data is Connect {
  if (typeof data !== "object" || data === null) return false;
  const { fireside, port } = data as Partial<Connect>;
  return fireside === "connect" && port instanceof MessagePort;
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

  constructor(port: MessagePort) {
    this.#port = port;
    port.onmessage = (event: MessageEvent<unknown>) => {
      if (isToHost(event.data)) void this.#receive(event.data);
    };
  }

  crash(error: unknown): void {
    if (this.#crashed) return;
    const wire = toWire(error);
    this.#crashed = new FiresideError(wire.code, wire.message, wire.details);
    this.#requests.clear();
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
    if (op === "load") return this.#load(args as Calls["load"]["args"]);
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

  async #load({ source, options, wasm }: Calls["load"]["args"]): Promise<Calls["load"]["result"]> {
    await init({ module_or_path: wasm ?? undefined });
    const engine = await this.#open(source, options);
    if (this.#loading.signal.aborted) {
      engine.dispose();
      this.#loading.signal.throwIfAborted();
    }
    this.#engine = engine;
    engine.run().then(
      () => undefined,
      (error: unknown) => {
        this.crash(error);
      },
    );
    return JSON.parse(engine.info()) as Calls["load"]["result"];
  }

  async #open(source: WireSource, options: WireLoadOptions): Promise<WasmEngine> {
    const signal = this.#loading.signal;
    let told = 0;
    const bytes = await openSource(source, signal, (loaded, total) => {
      const now = performance.now();
      if (loaded < total && now - told < PROGRESS_MS) return;
      told = now;
      const file = "url" in source ? { file: source.url } : {};
      this.#post({ t: "progress", value: { phase: "download", loaded, total, fromCache: false, ...file } });
    });
    return Wasm.load(bytes, JSON.stringify(options), (kind, json) => {
      this.#event(kind, JSON.parse(json));
    });
  }

  #event(kind: string, value: unknown): void {
    switch (kind) {
      case "progress":
        this.#post({ t: "progress", value: value as LoadProgress });
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

  #dispose(): null {
    this.#loading.abort();
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
