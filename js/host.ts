/** The engine's side of the port: owns one wasm engine, runs its loop, answers calls. Runs in a Worker or in the page's thread. */
import { FiresideError, toWire } from "./errors.js";
import { callId, isToHost } from "./messages.js";
import type { Calls, Op, Piece, ToClient, ToHost, WireLoadOptions, WirePart, WireResult, WireScore, WireSource, WireToken } from "./protocol.js";
import { openSource } from "./source.js";
import type { LoadProgress, Warning } from "./types.js";
import type { WasmEngine } from "./wasm/fireside.js";
import { startWasm } from "./wasm-module.js";
import { WasmEngine as Wasm } from "./wasm/fireside.js";

/** Download progress is told at most this often. */
const PROGRESS_MS = 50;

const hosts = new Set<Host>();

/** Starts a host on one end of a channel. */
export function serve(port: MessagePort): void {
  hosts.add(new Host(port));
}

/** A trap in wasm leaves the instance in no usable state: every engine of this thread is over. */
export function crashAll(error: unknown): void {
  for (const host of hosts) host.crash(error);
}

/** A request of the client's that runs here. */
interface Running {
  /** Of the wasm engine. */
  id: number;
  /** Nobody listens any more. */
  muted: boolean;
}

class Host {
  readonly #port: MessagePort;
  readonly #loading = new AbortController();
  /** By the client's ids. */
  readonly #requests = new Map<number, Running>();
  readonly #pieces = new Map<number, Piece>();
  #engine: WasmEngine | null = null;
  #crashed: FiresideError | null = null;

  constructor(port: MessagePort) {
    this.#port = port;
    port.onmessage = (event: MessageEvent<unknown>) => {
      if (isToHost(event.data)) void this.#receive(event.data);
      else this.#refuse(event.data);
    };
    this.#post({ t: "hello" });
  }

  crash(error: unknown): void {
    if (this.#crashed) return;
    const wire = toWire(error);
    this.#crashed = new FiresideError(wire.code, wire.message, wire.details);
    this.#requests.clear();
    this.#post({ t: "crashed", error: wire });
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
        this.#abort(message.rid, message.why);
        return;
      case "read": {
        const running = this.#requests.get(message.rid);
        if (running && this.#engine && !this.#crashed) this.#engine.read(running.id, message.count);
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
      case "trace":
        return JSON.parse(engine.trace((args as Calls["trace"]["args"]).last)) as Calls["trace"]["result"];
      case "submit":
        return this.#submit(engine, (args as Calls["submit"]["args"]).parts);
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

  async #load({ source, options, wasm }: Calls["load"]["args"]): Promise<Calls["load"]["result"]> {
    await startWasm(wasm, this.#loading.signal);
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

  /** All parts or none: the loop has no turn in between, so what is taken back was never begun. */
  #submit(engine: WasmEngine, parts: Calls["submit"]["args"]["parts"]): null {
    try {
      for (const part of parts) this.#start(engine, part);
    } catch (error) {
      for (const { rid } of parts) this.#abort(rid, "cancelled");
      throw error;
    }
    return null;
  }

  /** Submits a part and ties its events to the client's id. Events may come before the wasm call returns. */
  #start(engine: WasmEngine, part: WirePart & { rid: number }): void {
    const { rid } = part;
    const running: Running = { id: -1, muted: false };
    this.#requests.set(rid, running);
    const onEvent = (kind: string, json: string): void => {
      if (running.muted || (kind === "token" && part.kind === "generate" && part.tokens === "none")) return;
      const value: unknown = JSON.parse(json);
      if (kind === "token") {
        this.#post({ t: "token", rid, value: part.pieces ? this.#withPiece(engine, value as WireToken) : value });
        return;
      }
      this.#requests.delete(rid);
      if (kind === "done") this.#post({ t: "done", rid, value: part.pieces ? this.#withPieces(engine, part, value) : value });
      else this.#post({ t: "failed", rid, error: toWire(value) });
    };
    try {
      running.id =
        part.kind === "score"
          ? engine.score(part.scored, part.topLogprobs, onEvent, part.priority)
          : engine.submit(part.request, part.prompt ?? undefined, onEvent, part.tokens === "paced");
    } catch (error) {
      this.#requests.delete(rid);
      throw error;
    }
  }

  #abort(rid: number, why: string): void {
    const running = this.#requests.get(rid);
    if (!running) return;
    this.#requests.delete(rid);
    running.muted = true;
    if (this.#engine && !this.#crashed) this.#engine.abort(running.id, why);
  }

  /** The result with the piece of every token in it. */
  #withPieces(engine: WasmEngine, part: WirePart, value: unknown): unknown {
    if (part.kind === "score") {
      const score = value as WireScore;
      const top = score.top?.map((list) => list.map((t) => ({ ...t, piece: this.#piece(engine, t.token) })));
      return { ...score, top, pieces: Array.from(part.scored, (token) => this.#piece(engine, token)) };
    }
    const result = value as WireResult;
    for (const choice of result.choices) choice.logprobs = choice.logprobs?.map((t) => this.#withPiece(engine, t)) ?? [];
    return result;
  }

  #withPiece(engine: WasmEngine, event: WireToken): WireToken {
    const top = event.top?.map((t) => ({ ...t, piece: this.#piece(engine, t.token) })) ?? [];
    return { ...event, piece: this.#piece(engine, event.token), top };
  }

  #piece(engine: WasmEngine, token: number): Piece {
    let piece = this.#pieces.get(token);
    if (!piece) {
      const [found] = JSON.parse(engine.pieces(Uint32Array.of(token))) as (Piece | null)[];
      piece = found ?? { bytes: [], control: false };
      this.#pieces.set(token, piece);
    }
    return piece;
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
