/** The public Engine: checks what it is given, talks to the host through a Client, and gives results their public shape. */
/// <reference lib="esnext.disposable" preserve="true" />
import * as check from "./check.js";
import type { EngineMessage } from "./client.js";
import { Client } from "./client.js";
import { FiresideError, requestUnsupported } from "./errors.js";
import type { CheckedLoad } from "./load-options.js";
import { checkLoadOptions, checkSource } from "./load-options.js";
import type { ChatCreate, CompletionCreate, EmbeddingCreate } from "./openai-types.js";
import { chatCreate, checkTools } from "./openai/chat.js";
import { completionCreate } from "./openai/completions.js";
import type { EngineModels } from "./openai/models.js";
import { embeddingCreate, engineModels } from "./openai/models.js";
import { askPersistence } from "./persist.js";
import type { WirePart, WireResult, WireScore, WireSource } from "./protocol.js";
import { untilAborted } from "./request.js";
import { TAB } from "./tab.js";
import { checkRequest, checkRequestOptions, requestJson } from "./request-options.js";
import type {
  ChatGenerateRequest,
  ChatMessage,
  EngineEventMap,
  EngineInfo,
  EngineStats,
  GenerateRequest,
  GenerateResult,
  LoadOptions,
  LoadProgress,
  ModelSource,
  RequestOptions,
  ScoreResult,
  StepTrace,
  TokenEvent,
  Tool,
  Warning,
} from "./types.js";
import { compileResponse } from "./wasm-module.js";

/** Steps that trace() gives when not told how many. */
const TRACE_STEPS = 64;
/** Steps that the engine keeps. */
const MAX_TRACE = 1024;

function refused(name: string): () => Promise<never> {
  return () => Promise.reject(requestUnsupported(name, "this version has no adapters"));
}

const OUR_CONSTRUCTOR = Symbol("fireside");

/** A loaded model that answers requests. Made by `Engine.load`. */
export class Engine extends EventTarget {
  /** What was loaded, and where it runs. */
  readonly info: EngineInfo;
  /** Chat completions, as OpenAI's client has them. */
  readonly chat: { completions: { create: ChatCreate } };
  /** Completions of plain prompts, likewise. */
  readonly completions: { create: CompletionCreate };
  /** Embeddings: `request.unsupported`, for no model that runs today gives them. */
  readonly embeddings: { create: EmbeddingCreate };
  /** The one model that this engine runs. */
  readonly models: EngineModels;
  /** Where the platform has the symbol. */
  declare [Symbol.asyncDispose]: () => Promise<void>;
  readonly #client: Client;
  #disposed: Promise<void> | null = null;

  /** @internal Use `Engine.load`. */
  constructor(key: symbol, client: Client, info: EngineInfo) {
    if (key !== OUR_CONSTRUCTOR) throw new TypeError("Use Engine.load() to make an Engine.");
    super();
    this.#client = client;
    this.info = info;
    const [own, about] = [() => client, () => this.info];
    this.chat = { completions: { create: chatCreate(own, about) } };
    this.completions = { create: completionCreate(own, about) };
    this.embeddings = { create: embeddingCreate(about) };
    this.models = engineModels(about);
    if (typeof Symbol.asyncDispose === "symbol") {
      Object.defineProperty(this, Symbol.asyncDispose, { value: () => this.dispose() });
    }
  }

  /** Loads a model. Rejects with a FiresideError, or with the signal's own reason. */
  static async load(model: ModelSource, options?: LoadOptions): Promise<Engine> {
    const checked = checkLoadOptions(options);
    const source = checkSource(model, checked.headers);
    checked.signal?.throwIfAborted();
    return untilAborted(Engine.#load(source, checked), checked.signal);
  }

  static async #load(source: WireSource, checked: CheckedLoad): Promise<Engine> {
    const loader = new Loading(checked);
    if (checked.persist) {
      // Not waited for: the browser may ask the person, who may take their time.
      void askPersistence().then((value) => {
        if (value) loader.receive({ t: "warning", value });
      });
    }
    const client = Client.connect(checked.worker, (message) => {
      loader.receive(message);
    });
    try {
      // A Response cannot cross a port, a compiled Module can.
      const wasm = check.isA(checked.wasm, "Response")
        ? await settleOnAbort(compileResponse(checked.wasm as Response), checked.signal)
        : checked.wasm;
      const keep = { cache: checked.cache, integrity: checked.integrity, tab: TAB };
      const info = await client.cancellable("load", { source, options: checked.wire, keep, wasm }, checked.signal);
      return loader.finish(new Engine(OUR_CONSTRUCTOR, client, info));
    } catch (error) {
      // In this thread a load that was given up ends by itself; a Worker of ours is simply ended.
      void client.dispose(new FiresideError("engine.disposed", "Loading ended."));
      throw error;
    }
  }

  /** One prompt in (text, ids, or chat messages), a callback per token, the whole result out. */
  async generate(
    request: GenerateRequest | ChatGenerateRequest,
    options?: RequestOptions & { onToken?: (t: TokenEvent) => void },
  ): Promise<GenerateResult> {
    const limits = checkRequestOptions(options, ["onToken"]);
    const onToken = limits.extra["onToken"] ?? undefined;
    if (onToken !== undefined) check.callback("request", "onToken", onToken);
    const part: WirePart = { kind: "generate", ...checkRequest(request, limits), tokens: onToken ? "all" : "none", pieces: false };
    const [done] = (await this.#client.run([part], limits, onToken as ((value: unknown) => void) | undefined)) as [WireResult];
    return { ...done, choices: done.choices.map((choice) => ({ ...choice, tokens: Uint32Array.from(choice.tokens) })) };
  }

  /** Text to token ids. By default adds the model's special tokens as its file says, and reads special tokens in the text as text. */
  async tokenize(text: string, options?: { addSpecial?: boolean; parseSpecial?: boolean }): Promise<Uint32Array> {
    check.string("request", "text", text);
    const given = check.options("request", options, ["addSpecial", "parseSpecial"]);
    return this.#client.call("tokenize", {
      text,
      addSpecial: check.boolean("request", "addSpecial", given["addSpecial"] ?? true),
      parseSpecial: check.boolean("request", "parseSpecial", given["parseSpecial"] ?? false),
    });
  }

  /** Token ids to text; special tokens are left out unless asked for. */
  async detokenize(tokens: ArrayLike<number>, options?: { special?: boolean }): Promise<string> {
    const given = check.options("request", options, ["special"]);
    const special = check.boolean("request", "special", given["special"] ?? false);
    return this.#client.call("detokenize", { tokens: check.tokenIds("request", "tokens", tokens), special });
  }

  /** The prompt that the model's own template makes of these messages. */
  async renderChat(
    messages: ChatMessage[],
    options?: { tools?: Tool[]; addGenerationPrompt?: boolean; templateArgs?: object },
  ): Promise<string> {
    const args = check.reading("request", "messages", () => {
      if (!Array.isArray(messages)) throw check.invalid("request", "messages", "an array of messages", messages);
      const given = check.options("request", options, ["tools", "addGenerationPrompt", "templateArgs"]);
      if (!check.absent(given["tools"])) checkTools(given["tools"]);
      return { messages: requestJson(messages), options: requestJson(given) };
    });
    return this.#client.call("renderChat", args);
  }

  /** Log-probability (natural log) of each token given those before it; entry 0 is NaN. */
  async score(tokens: ArrayLike<number>, options?: RequestOptions & { topLogprobs?: number }): Promise<ScoreResult> {
    const ids = check.tokenIds("request", "tokens", tokens);
    const limits = checkRequestOptions(options, ["topLogprobs"]);
    const topLogprobs = check.integer("request", "topLogprobs", limits.extra["topLogprobs"] ?? 0, 0, 0xffff_ffff);
    const part: WirePart = { kind: "score", scored: ids, topLogprobs, priority: limits.priority, pieces: false };
    const [done] = (await this.#client.run([part], limits)) as [WireScore];
    // JSON has no NaN: the first token's entry comes as null.
    const logprobs = Float32Array.from(done.logprobs, (value) => value ?? NaN);
    return done.top ? { logprobs, top: done.top } : { logprobs };
  }

  /** Refused with `request.unsupported` in this version, as is the next one. */
  loadAdapter(_name: string, _source: ModelSource, _options?: { scale?: number; signal?: AbortSignal }): Promise<void> {
    return refused("loadAdapter")();
  }
  unloadAdapter(_name: string): Promise<void> {
    return refused("unloadAdapter")();
  }

  /** Scheduler, block pool, cache and speed figures. */
  async stats(): Promise<EngineStats> {
    return this.#client.call("stats", null);
  }

  /** The last scheduler steps, oldest first: who ran, which blocks were taken, copied, freed. */
  async trace(options?: { last?: number }): Promise<StepTrace[]> {
    const given = check.options("request", options, ["last"]);
    return this.#client.call("trace", { last: check.integer("request", "last", given["last"] ?? TRACE_STEPS, 0, MAX_TRACE) });
  }

  /** Ends every request with code "engine.disposed", frees the GPU device, ends its own Worker. Idempotent. */
  dispose(): Promise<void> {
    this.#disposed ??= this.#client.dispose(new FiresideError("engine.disposed", "The engine was disposed."));
    return this.#disposed;
  }

  override addEventListener<K extends keyof EngineEventMap>(
    type: K,
    listener: (event: EngineEventMap[K]) => void,
    options?: boolean | AddEventListenerOptions,
  ): void;
  override addEventListener(
    type: string,
    listener: EventListenerOrEventListenerObject | null,
    options?: boolean | AddEventListenerOptions,
  ): void;
  override addEventListener(
    type: string,
    listener: EventListenerOrEventListenerObject | null,
    options?: boolean | AddEventListenerOptions,
  ): void {
    super.addEventListener(type, listener, options);
  }

  override removeEventListener<K extends keyof EngineEventMap>(
    type: K,
    listener: (event: EngineEventMap[K]) => void,
    options?: boolean | EventListenerOptions,
  ): void;
  override removeEventListener(
    type: string,
    listener: EventListenerOrEventListenerObject | null,
    options?: boolean | EventListenerOptions,
  ): void;
  override removeEventListener(
    type: string,
    listener: EventListenerOrEventListenerObject | null,
    options?: boolean | EventListenerOptions,
  ): void {
    super.removeEventListener(type, listener, options);
  }
}

/** What comes from the host while there is no Engine yet, and the same afterwards as events. */
class Loading {
  readonly #options: CheckedLoad;
  readonly #loaded = new Map<string, number>();
  readonly #warnings: Warning[] = [];
  #engine: Engine | null = null;

  constructor(options: CheckedLoad) {
    this.#options = options;
  }

  receive(message: EngineMessage): void {
    switch (message.t) {
      case "progress":
        this.#progress(message.value);
        return;
      case "warning":
        this.#warn(message.value);
        return;
      case "devicelost":
        this.#engine?.dispatchEvent(new CustomEvent("devicelost", { detail: message.value }));
        return;
      case "recovered":
        // What was loaded is the same; where it runs may not be.
        if (this.#engine) Object.assign(this.#engine.info, message.info, { warnings: this.#engine.info.warnings });
        this.#engine?.dispatchEvent(new CustomEvent("recovered", { detail: message.value }));
        return;
      case "failed":
        this.#engine?.dispatchEvent(new CustomEvent("failed", { detail: message.error }));
        return;
    }
  }

  finish(engine: Engine): Engine {
    this.#engine = engine;
    const known = new Set(engine.info.warnings.map((w) => w.code + w.message));
    engine.info.warnings.push(...this.#warnings.filter((w) => !known.has(w.code + w.message)));
    if (!this.#loaded.has("ready")) this.#progress({ phase: "ready", loaded: 1, total: 1, fromCache: false });
    return engine;
  }

  /** Progress is for looking at: it never goes back within a phase, and a callback that throws does not stop the load. */
  #progress(p: LoadProgress): void {
    if (this.#options.signal?.aborted || p.loaded < (this.#loaded.get(p.phase) ?? 0)) return;
    this.#loaded.set(p.phase, p.loaded);
    callQuietly(this.#options.onProgress, p);
  }

  #warn(warning: Warning): void {
    callQuietly(this.#options.onWarning, warning);
    if (!this.#engine) {
      this.#warnings.push(warning);
      return;
    }
    this.#engine.info.warnings.push(warning);
    this.#engine.dispatchEvent(new CustomEvent("warning", { detail: warning }));
  }
}

function callQuietly<T>(callback: ((value: T) => void) | undefined, value: T): void {
  try {
    callback?.(value);
  } catch (error) {
    // Surfaces as an uncaught error of the caller's, and stops nothing here.
    queueMicrotask(() => {
      throw error;
    });
  }
}

/** The promise, or the signal's reason as soon as it fires. */
function settleOnAbort<T>(promise: Promise<T>, signal: AbortSignal | undefined): Promise<T> {
  if (!signal) return promise;
  return new Promise((resolve, reject) => {
    const abort = (): void => {
      reject(signal.reason as Error);
    };
    if (signal.aborted) abort();
    signal.addEventListener("abort", abort, { once: true });
    void promise.then(resolve, reject).finally(() => {
      signal.removeEventListener("abort", abort);
    });
  });
}
