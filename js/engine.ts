/** The public Engine: checks what it is given, talks to the host through a Client, and gives results their public shape. */
/// <reference lib="esnext.disposable" preserve="true" />
import * as check from "./check.js";
import type { EngineMessage } from "./client.js";
import { Client } from "./client.js";
import { FiresideError, fromWire, requestUnsupported } from "./errors.js";
import type { CheckedLoad } from "./load-options.js";
import { checkLoadOptions, checkSource } from "./load-options.js";
import { askPersistence } from "./persist.js";
import type { ChatCreate, CompletionCreate, EmbeddingCreate, ModelCard } from "./openai-types.js";
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

type WireResult = Omit<GenerateResult, "choices"> & {
  choices: (Omit<GenerateResult["choices"][number], "tokens"> & { tokens: number[] })[];
};
interface WireScore {
  logprobs: (number | null)[];
  top?: { token: number; logprob: number }[][];
}

function refused(name: string): () => Promise<never> {
  return () => Promise.reject(requestUnsupported(name, "this version has generate(), tokenize(), detokenize(), renderChat() and score()"));
}

const OUR_CONSTRUCTOR = Symbol("fireside");

/** A loaded model that answers requests. Made by `Engine.load`. */
export class Engine extends EventTarget {
  /** What was loaded, and where it runs. */
  readonly info: EngineInfo;
  /** Refused with `request.unsupported` in this version, as are the next three. */
  readonly chat: { completions: { create: ChatCreate } } = {
    completions: { create: refused("chat.completions.create") },
  };
  readonly completions: { create: CompletionCreate } = { create: refused("completions.create") };
  readonly embeddings: { create: EmbeddingCreate } = { create: refused("embeddings.create") };
  readonly models: { list(): Promise<{ object: "list"; data: ModelCard[] }>; retrieve(id: string): Promise<ModelCard> } = {
    list: refused("models.list"),
    retrieve: refused("models.retrieve"),
  };
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
    if (typeof Symbol.asyncDispose === "symbol") {
      Object.defineProperty(this, Symbol.asyncDispose, { value: () => this.dispose() });
    }
  }

  /** Loads a model. Rejects with a FiresideError, or with the signal's own reason. */
  static async load(model: ModelSource, options: LoadOptions = {}): Promise<Engine> {
    const checked = checkLoadOptions(options);
    const source = checkSource(model, options.headers);
    checked.signal?.throwIfAborted();
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
      const wasm = checked.wasm instanceof Response ? await settleOnAbort(compileResponse(checked.wasm), checked.signal) : checked.wasm;
      const info = await client.load({ source, options: checked.wire, wasm }, checked.signal);
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
    options: RequestOptions & { onToken?: (t: TokenEvent) => void } = {},
  ): Promise<GenerateResult> {
    const limits = checkRequestOptions(options, ["onToken"]);
    const onToken = options.onToken ?? undefined;
    if (onToken !== undefined) check.callback("request", "onToken", onToken);
    const wire = checkRequest(request, limits);
    const done = (await this.#client.request(
      (rid) => this.#client.call("submit", { rid, ...wire }),
      onToken as ((value: unknown) => void) | undefined,
      limits,
    )) as WireResult;
    return { ...done, choices: done.choices.map((choice) => ({ ...choice, tokens: Uint32Array.from(choice.tokens) })) };
  }

  /** Text to token ids. By default adds the model's special tokens as its file says, and reads special tokens in the text as text. */
  async tokenize(text: string, options: { addSpecial?: boolean; parseSpecial?: boolean } = {}): Promise<Uint32Array> {
    check.string("request", "text", text);
    const given = check.record("request", "options", options);
    check.knownFields("request", "options", given, ["addSpecial", "parseSpecial"]);
    return this.#client.call("tokenize", {
      text,
      addSpecial: check.boolean("request", "addSpecial", options.addSpecial ?? true),
      parseSpecial: check.boolean("request", "parseSpecial", options.parseSpecial ?? false),
    });
  }

  /** Token ids to text; special tokens are left out unless asked for. */
  async detokenize(tokens: ArrayLike<number>, options: { special?: boolean } = {}): Promise<string> {
    const given = check.record("request", "options", options);
    check.knownFields("request", "options", given, ["special"]);
    const special = check.boolean("request", "special", options.special ?? false);
    return this.#client.call("detokenize", { tokens: check.tokenIds("request", "tokens", tokens), special });
  }

  /** The prompt that the model's own template makes of these messages. */
  async renderChat(
    messages: ChatMessage[],
    options: { tools?: Tool[]; addGenerationPrompt?: boolean; templateArgs?: object } = {},
  ): Promise<string> {
    if (!Array.isArray(messages)) throw check.invalid("request", "messages", "an array of messages", messages);
    const given = check.record("request", "options", options);
    check.knownFields("request", "options", given, ["tools", "addGenerationPrompt", "templateArgs"]);
    return this.#client.call("renderChat", { messages: requestJson(messages), options: requestJson(given) });
  }

  /** Log-probability (natural log) of each token given those before it; entry 0 is NaN. */
  async score(tokens: ArrayLike<number>, options: RequestOptions & { topLogprobs?: number } = {}): Promise<ScoreResult> {
    const ids = check.tokenIds("request", "tokens", tokens);
    const limits = checkRequestOptions(options, ["topLogprobs"]);
    if (limits.priority !== 0) throw requestUnsupported("priority of a score", "scores run in the order they came");
    const topLogprobs = check.integer("request", "topLogprobs", options.topLogprobs ?? 0, 0, 0xffff_ffff);
    const done = (await this.#client.request(
      (rid) => this.#client.call("score", { rid, tokens: ids, topLogprobs }),
      undefined,
      limits,
    )) as WireScore;
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

  /** Refused with `request.unsupported` in this version. */
  trace(_options?: { last?: number }): Promise<StepTrace[]> {
    return refused("trace")();
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
      case "recovered":
        this.#engine?.dispatchEvent(new CustomEvent(message.t, { detail: message.value }));
        return;
      case "crashed":
        this.#engine?.dispatchEvent(new CustomEvent("failed", { detail: fromWire(message.error) }));
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
