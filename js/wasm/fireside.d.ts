/** What the generated wasm glue exports, as the host uses it. The build puts fireside.js and fireside_bg.wasm beside the host. */

/** Random access to a model file. */
export interface ByteSource {
  readonly len: number;
  /** Lengths of the files that lie one after another in it; absent: one file. */
  readonly files?: number[];
  read(offset: number, length: number): Promise<Uint8Array>;
}

/** What a model's header tells, as JSON; reads nothing else of the source. */
export function survey(source: ByteSource): Promise<string>;

/** Destroys the GPU device of this instance, which no engine uses any more. True when there was one: the next engine needs a fresh instance. */
export function releaseDevice(): boolean;

/** One loaded model. Strings are JSON; thrown values carry `{ code, message, details }`. */
export class WasmEngine {
  private constructor();
  static load(source: ByteSource, options: string, onEvent: (kind: string, json: string) => void): Promise<WasmEngine>;
  info(): string;
  stats(): string;
  trace(last: number): string;
  submit(request: string, prompt: Uint32Array | undefined, onEvent: (kind: string, json: string) => void, paced: boolean): number;
  read(id: number, count: number): void;
  score(tokens: Uint32Array, topLogprobs: number, onEvent: (kind: string, json: string) => void, priority: number): number;
  pieces(tokens: Uint32Array): string;
  resume(
    request: string,
    prompt: Uint32Array,
    progress: string,
    onEvent: (kind: string, json: string) => void,
    paced: boolean,
  ): number;
  prompt(id: number): Uint32Array | undefined;
  abort(id: number, why: string): void;
  /** The engine loop; resolves once the engine is disposed. */
  run(): Promise<void>;
  tokenize(text: string, addSpecial: boolean, parseSpecial: boolean): Uint32Array;
  detokenize(tokens: Uint32Array, special: boolean): string;
  renderChat(messages: string, options: string): string;
  dispose(): void;
  free(): void;
}

/** Replaces the instance by a fresh one of the same module; what the old one made is of no more use, and says so when called (scripts/lib/build.mjs makes it asynchronous). */
export function __wbg_reset_state(): Promise<void>;

/** Instantiates the module once a thread; later calls return the same instance. */
export default function init(options?: {
  module_or_path: string | URL | Response | WebAssembly.Module | undefined;
}): Promise<unknown>;
