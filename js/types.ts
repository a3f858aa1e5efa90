/** The public types: what callers give and get. Shapes follow the API contract in tests/contract; behaviour lives elsewhere. */

/**
 * One GGUF file (URL, Blob or File), the parts of a split GGUF, or a model already pulled into storage by its id. The URL of one
 * part named as gguf-split names them stands for all parts. A stored copy of the same URL is used without network.
 */
export type ModelSource = string | URL | Blob | readonly (string | URL | Blob)[] | { stored: string };

/** How to load a model. Unknown fields are refused with `load.unsupported`, never ignored. */
export interface LoadOptions {
  /** "auto" (default): WebGPU when a usable adapter passes the kernel self-test, else CPU. */
  backend?: "auto" | "webgpu" | "cpu";
  /** Run in a dedicated module Worker (default true where one can be made). A Worker given here runs `fireside/worker` and outlives dispose(). */
  worker?: boolean | Worker;
  /** Only "exact" in this version. */
  precision?: "exact" | "fast";
  /** Longest sequence, prompt and completion together, in tokens. Default: min(model's, what memory allows). */
  contextLength?: number;
  /** KV cache geometry. Give `bytes` or `blocks`, not both. */
  kvCache?: { blockSize?: number; blocks?: number; bytes?: number; dtype?: "f32" | "f16" | "q8_0" };
  /** Sequences that may run at once (default 8). */
  maxRunning?: number;
  /** Requests that may wait (default 64). */
  maxQueued?: number;
  /** Most prompt tokens computed in one step while other sequences decode. */
  prefillChunk?: number;
  /** Share KV blocks of equal prefixes between requests. */
  prefixCache?: boolean;
  /** Where downloaded weights are kept (default "opfs"; falls back with a warning event). "none" neither keeps nor looks for a stored copy. */
  cache?: "opfs" | "none";
  /** Ask the browser to keep this origin's storage (`navigator.storage.persist()`, which may ask the person); a warning where it does not. */
  persist?: boolean;
  /** sha256 of each file, hex; a mismatch is refused and nothing of it is kept. */
  integrity?: string | string[];
  /** Extra request headers when the model is a URL. */
  headers?: Record<string, string>;
  /** Threads of the CPU backend: only 1 in this version. */
  threads?: number;
  /** Where the package's wasm is, when the bundler moves it: its URL, a Response, or a compiled Module. */
  wasm?: string | URL | Response | WebAssembly.Module;
  /** The name this model answers to (default: general.name of the file). */
  modelId?: string;
  /** Called as loading goes on. */
  onProgress?: (p: LoadProgress) => void;
  /** Called for each warning; they are also in info.warnings, and sent as "warning" events once there is an engine. */
  onWarning?: (w: Warning) => void;
  /** Gives up loading; the promise rejects with the signal's reason. */
  signal?: AbortSignal;
}

/** Something the caller should know that did not stop the work. */
export interface Warning {
  code: string;
  message: string;
  details: Record<string, unknown>;
}

/** One step of loading. */
export interface LoadProgress {
  phase: "download" | "verify" | "upload" | "compile" | "selftest" | "ready";
  /** Bytes, or units of the phase; never goes back within a phase. */
  loaded: number;
  total: number;
  file?: string;
  fromCache: boolean;
}

/** The engine's events. */
export interface EngineEventMap {
  warning: CustomEvent<Warning>;
  /** Running requests are paused; they go on after "recovered", or end with the code of "failed". */
  devicelost: CustomEvent<{ reason: string; message: string }>;
  recovered: CustomEvent<{ backend: "webgpu" | "cpu"; resumed: number }>;
  failed: CustomEvent<import("./errors.js").FiresideError>;
}

/** What was loaded, and where it runs. */
export interface EngineInfo {
  modelId: string;
  architecture: string;
  parameters: number;
  quantization: string;
  contextLength: number;
  /** Transformer layers. */
  layers: number;
  vocabSize: number;
  backend: "webgpu" | "cpu";
  adapter?: { vendor: string; architecture: string; features: string[]; fallback: boolean };
  threads: number;
  memory: { weightBytes: number; kvBytes: number; wasmBytes: number };
  kv: { blockSize: number; blocks: number; dtype: string };
  /** Family of the GPU's kernels: "serial" (software adapters) or "workgroup". Absent on the CPU. */
  kernels?: "serial" | "workgroup";
  warnings: Warning[];
  version: string;
}

/** What every request may carry besides its fields. */
export interface RequestOptions {
  /** Ends the request; the promise rejects with the signal's reason. */
  signal?: AbortSignal;
  /** Milliseconds from submission; past it the request ends with code "request.deadline". */
  timeout?: number;
  /** Higher runs first and is preempted last (default 0). */
  priority?: number;
}

/**
 * How tokens are drawn. Defaults: temperature 1, top_p 1, top_k, min_p and typical_p off, penalties off
 * (repetition_penalty 1), n 1, seed random and reported in `timings.seed`; choice i draws from (seed, i).
 */
export interface SamplingFields {
  /** 0 is greedy. */
  temperature?: number | null;
  top_k?: number | null;
  top_p?: number | null;
  min_p?: number | null;
  typical_p?: number | null;
  repetition_penalty?: number | null;
  presence_penalty?: number | null;
  frequency_penalty?: number | null;
  logit_bias?: Record<string, number> | null;
  seed?: number | null;
  stop?: string | string[] | null;
  n?: number | null;
  /** Structured output: only `{ type: "text" }` in this version. */
  response_format?:
    | { type: "text" }
    | { type: "json_object" }
    | { type: "json_schema"; json_schema: { name?: string; schema: object; strict?: boolean } }
    | { type: "regex"; pattern: string }
    | { type: "grammar"; grammar: string };
  /** Refused in this version. */
  adapter?: string;
}

/** One prompt to complete: text, or token ids. */
export interface GenerateRequest extends SamplingFields {
  prompt: string | ArrayLike<number>;
  /** Default: what the context has left. */
  max_tokens?: number;
  /** How many alternatives to report beside each token's log-probability. */
  logprobs?: number;
}

/** The same with chat messages instead of a prompt: the model's own template makes the prompt. */
export type ChatGenerateRequest = Omit<GenerateRequest, "prompt"> & { messages: readonly ChatMessage[] };

/** One token of one choice. A choice's texts, concatenated, are its text; one may be empty. */
export interface TokenEvent {
  choice: number;
  position: number;
  token: number;
  text: string;
  logprob?: number;
  top?: { token: number; logprob: number }[];
  /** With log-probabilities: where the token's text begins in the choice's text, in UTF-16 units. Its text may come with a later token. */
  offset?: number;
  /** With the last token of the choice: why it ended. */
  finish_reason?: FinishReason;
}

/** The whole answer. */
export interface GenerateResult {
  choices: { text: string; tokens: Uint32Array; finish_reason: FinishReason; logprobs?: TokenEvent[] }[];
  usage: Usage;
  timings: Timings;
}

export type FinishReason = "stop" | "length" | "tool_calls";

export interface Usage {
  prompt_tokens: number;
  completion_tokens: number;
  total_tokens: number;
  prompt_tokens_details: { cached_tokens: number };
}

/** Milliseconds on the engine's clock, and the seed that was used. */
export interface Timings {
  queued: number;
  prefill: number;
  decode: number;
  time_to_first_token: number;
  seed: number;
}

export interface ChatMessage {
  role: "system" | "developer" | "user" | "assistant" | "tool";
  content?: string | null | { type: "text"; text: string }[];
  name?: string;
  tool_calls?: ToolCall[];
  tool_call_id?: string;
}
export interface AssistantMessage {
  role: "assistant";
  content: string | null;
  refusal: null;
  tool_calls?: ToolCall[];
}
export interface AssistantDelta {
  role?: "assistant";
  content?: string | null;
  tool_calls?: { index: number; id?: string; type?: "function"; function?: { name?: string; arguments?: string } }[];
}
export interface Tool {
  type: "function";
  function: { name: string; description?: string; parameters?: Record<string, unknown>; strict?: boolean | null };
}
export interface ToolCall {
  id: string;
  type: "function";
  function: { name: string; arguments: string };
}

/** Log-probability (natural log) of each token given those before it; entry 0 is NaN. */
export interface ScoreResult {
  logprobs: Float32Array;
  top?: { token: number; logprob: number }[][];
}

/** Scheduler, block pool, cache and speed figures. */
export interface EngineStats {
  sequences: {
    waiting: number;
    prefilling: number;
    decoding: number;
    preempted: number;
    finished: number;
    aborted: number;
  };
  blocks: { total: number; free: number; cached: number; held: number; shared: number; blockSize: number };
  steps: number;
  preemptions: number;
  copiesOnWrite: number;
  prefixCache: { hits: number; hitTokens: number; missTokens: number; evictions: number };
  tokens: { prompt: number; completion: number };
  /** Of the last second; what is a step's is the mean over steps that only decoded. */
  rate: {
    prefillTokensPerSecond: number;
    decodeTokensPerSecond: number;
    dispatchesPerStep: number;
    readbacksPerStep: number;
    readbackBytesPerStep: number;
    weightBytesPerStep: number;
    hostMsPerStep: number;
  };
  /** Since load. */
  executor: {
    dispatches: number;
    readbacks: number;
    readbackBytes: number;
    weightBytes: number;
    peakDeviceBytes: number;
    hostMs: number;
  };
  /** Turns that the loop took since load; it takes none while there is nothing to do. */
  ticks: number;
  /** Size of wasm linear memory, which never shrinks, in bytes. */
  peakWasmBytes: number;
  /** Bytes of it in use now, all engines of this wasm instance together. */
  liveWasmBytes: number;
}

/** One scheduler step. */
export interface StepTrace {
  step: number;
  at: number;
  planned: { sequence: string; state: string; tokens: number }[];
  blocks: { allocated: number[]; freed: number[]; copied: [number, number][]; cached: number[] };
  transitions: { sequence: string; from: string; event: string; to: string }[];
}

/** What this browser can do, before a byte of weights is fetched. */
export interface Preflight {
  webgpu: {
    available: boolean;
    reason?: string;
    adapter?: NonNullable<EngineInfo["adapter"]>;
    limits?: Record<string, number>;
  };
  cpu: { simd: boolean; relaxedSimd: boolean; threads: boolean };
  storage: { usage: number; quota: number; persisted: boolean } | null;
  /** WebGPU does not tell how much memory a GPU has: "unknown" until an allocation says so. */
  fits?: {
    webgpu: "yes" | "no" | "unknown";
    cpu: "yes" | "no";
    weightBytes: number;
    kvBytesPerToken: number;
    reason?: string;
  };
}

export interface StoredModel {
  id: string;
  /** Of an unfinished download: what has arrived. */
  bytes: number;
  complete: boolean;
  sha256: string | null;
  source: string;
  addedAt: number;
  lastUsedAt: number;
  /** Each file; absent while incomplete. Of a model in several files `sha256` is null and these have it. */
  files?: { source: string; bytes: number; sha256: string }[];
}
