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

/** One loaded model. Strings are JSON; thrown values carry `{ code, message, details }`. */
export class WasmEngine {
  private constructor();
  static load(source: ByteSource, options: string, onEvent: (kind: string, json: string) => void): Promise<WasmEngine>;
  info(): string;
  stats(): string;
  submit(request: string, prompt: Uint32Array | undefined, onEvent: (kind: string, json: string) => void): number;
  score(tokens: Uint32Array, topLogprobs: number, onEvent: (kind: string, json: string) => void): number;
  abort(id: number, why: string): void;
  /** The engine loop; resolves once the engine is disposed. */
  run(): Promise<void>;
  tokenize(text: string, addSpecial: boolean, parseSpecial: boolean): Uint32Array;
  detokenize(tokens: Uint32Array, special: boolean): string;
  renderChat(messages: string, options: string): string;
  dispose(): void;
  free(): void;
}

/** Instantiates the module once a thread; later calls return the same instance. */
export default function init(options?: {
  module_or_path: string | URL | Response | WebAssembly.Module | undefined;
}): Promise<unknown>;
