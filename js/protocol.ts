/** What crosses the port between the page's client and the engine's host. Plain data only: callbacks and signals stay in the page. */
import type { WireError } from "./errors.js";
import type { EngineInfo, EngineStats, LoadProgress, StoredModel, Warning } from "./types.js";

/** The message that hands a Worker one end of a channel. Anything else a Worker receives is not ours. */
export interface Connect {
  fireside: "connect";
  port: MessagePort;
}

/** Load options that the wasm side reads (as JSON), each already checked for its type. */
export interface WireLoadOptions {
  backend?: string;
  contextLength?: number;
  kvCache?: { blockSize?: number; blocks?: number; bytes?: number; dtype?: string };
  maxRunning?: number;
  maxQueued?: number;
  prefillChunk?: number;
  prefixCache?: boolean;
  modelId?: string;
}

/** One file: its absolute URL, or a Blob. */
export type WireFile = { url: string } | { blob: Blob };

/** The bytes to load: the files of a model with headers for requests, or the id of a stored one. */
export type WireSource = { files: WireFile[]; headers: Record<string, string> } | { stored: string };

/** What of loading concerns where the bytes come from and stay. */
export interface WireKeep {
  cache: "opfs" | "none";
  /** sha256 of each file, in lower-case hex. */
  integrity: string[] | null;
  /** The page that loads, for `models.running`. */
  tab: string;
}

/** What a model's header tells (src/model/survey.rs). */
export interface Survey {
  metadata: Record<string, unknown>;
  tensors: { name: string; type: string; shape: number[] }[];
  weightBytes: number;
  needs: {
    weightBytes: number;
    kvBytesPerToken: number;
    scratchBytes: number;
    rowBytes: number;
    contextLength: number;
    wasmTokens: number;
  } | null;
  refused: WireError | null;
}

/** Calls, each answered once. */
export interface Calls {
  load: {
    args: { source: WireSource; options: WireLoadOptions; keep: WireKeep; wasm: string | WebAssembly.Module | null };
    result: EngineInfo;
  };
  /** Downloads into storage without running. */
  pull: { args: { source: WireSource; integrity: string[] | null; id: string | null }; result: StoredModel };
  /** Reads a header, of a stored model or with as few bytes as the server gives. */
  survey: { args: { source: WireSource }; result: { survey: Survey; stored: StoredModel | null } };
  info: { args: null; result: EngineInfo };
  stats: { args: null; result: EngineStats };
  submit: { args: { rid: number; request: string; prompt: Uint32Array | null }; result: null };
  score: { args: { rid: number; tokens: Uint32Array; topLogprobs: number }; result: null };
  tokenize: { args: { text: string; addSpecial: boolean; parseSpecial: boolean }; result: Uint32Array };
  detokenize: { args: { tokens: Uint32Array; special: boolean }; result: string };
  renderChat: { args: { messages: string; options: string }; result: string };
  dispose: { args: null; result: null };
}
export type Op = keyof Calls;

/** Client to host. An abort has no answer: the page has already settled. */
export type ToHost =
  | { [O in Op]: { t: "call"; id: number; op: O; args: Calls[O]["args"] } }[Op]
  | { t: "abort"; rid: number; why: "cancelled" | "deadline" }
  | { t: "cancelLoad" };

/** Host to client. */
export type ToClient =
  | { t: "result"; id: number; value: unknown }
  | { t: "error"; id: number; error: WireError }
  | { t: "token"; rid: number; value: unknown }
  | { t: "done"; rid: number; value: unknown }
  | { t: "failed"; rid: number; error: WireError }
  | { t: "progress"; value: LoadProgress }
  | { t: "warning"; value: Warning }
  | { t: "devicelost"; value: { reason: string; message: string } }
  | { t: "recovered"; value: { backend: "webgpu" | "cpu"; resumed: number } }
  | { t: "crashed"; error: WireError };
