/** What crosses the port between the page's client and the engine's host. Plain data only: callbacks and signals stay in the page. */
import type { WireError } from "./errors.js";
import type { EngineInfo, EngineStats, GenerateResult, LoadProgress, StepTrace, StoredModel, TokenEvent, Warning } from "./types.js";

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

/** A token as the vocabulary has it. Control tokens add nothing to a text. */
export interface Piece {
  bytes: number[];
  control: boolean;
}

/** What a part of a request is: a prompt to complete, or tokens to score. `pieces` asks for the piece of each token that comes back. */
export type WirePart =
  | {
      kind: "generate";
      request: string;
      prompt: Uint32Array | null;
      /** "paced": as they come, and no more than some that were not read. */
      tokens: "none" | "all" | "paced";
      pieces: boolean;
    }
  | { kind: "score"; scored: Uint32Array; topLogprobs: number; priority: number; pieces: boolean };

/** A part that another engine ran before: how far it came, or null where it begins anew. */
export type TakenPart = WirePart & { rid: number; taken: { prompt: Uint32Array; progress: string } | null };

/** Token events and results as they cross the port. */
export type WireToken = Omit<TokenEvent, "top"> & {
  piece?: Piece;
  top?: { token: number; logprob: number; piece?: Piece }[];
};
export type WireResult = Omit<GenerateResult, "choices"> & {
  choices: (Omit<GenerateResult["choices"][number], "tokens" | "logprobs"> & { tokens: number[]; logprobs?: WireToken[] })[];
};
export interface WireScore {
  /** JSON has no NaN: the first token's entry is null. */
  logprobs: (number | null)[];
  top?: NonNullable<WireToken["top"]>[];
  pieces?: Piece[];
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
  trace: { args: { last: number }; result: StepTrace[] };
  /** All parts are queued, or none. */
  submit: { args: { parts: (WirePart & { rid: number })[] }; result: null };
  /** Takes over parts of an engine that is gone; one that cannot be ends by itself. */
  resume: { args: { parts: TakenPart[] }; result: null };
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
  | { t: "read"; rid: number; count: number }
  | { t: "cancelLoad" };

/** Host to client. `hello` comes first: the Worker runs our script. After `lost` (the device) or `crashed` (the instance) nothing follows. */
export type ToClient =
  | { t: "hello" }
  | { t: "result"; id: number; value: unknown }
  | { t: "error"; id: number; error: WireError }
  | { t: "prompt"; rid: number; tokens: Uint32Array }
  | { t: "token"; rid: number; value: unknown }
  | { t: "done"; rid: number; value: unknown }
  | { t: "failed"; rid: number; error: WireError }
  | { t: "progress"; value: LoadProgress }
  | { t: "warning"; value: Warning }
  | { t: "lost"; error: WireError }
  | { t: "crashed"; error: WireError };
