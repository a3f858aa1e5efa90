/** Several files seen as one source, one after another; `files` tells the reader where each begins. */
import type { ByteSource } from "../wasm/fireside.js";
import { checkRange } from "./blob.js";

/** The parts of a split model as one source. What each part is its own header says, so their order is free. */
export class PartsSource implements ByteSource {
  readonly len: number;
  readonly files: number[];
  readonly #sources: readonly ByteSource[];

  constructor(sources: readonly ByteSource[]) {
    this.#sources = sources;
    this.files = sources.map((source) => source.len);
    this.len = this.files.reduce((sum, bytes) => sum + bytes, 0);
  }

  async read(offset: number, length: number): Promise<Uint8Array> {
    checkRange(offset, length, this.len);
    let start = 0;
    for (const source of this.#sources) {
      // Tensors do not span files: nearly every read is one read of one file, and is passed through without a copy.
      if (offset >= start && offset + length <= start + source.len) return source.read(offset - start, length);
      start += source.len;
    }
    return this.#spanning(offset, length);
  }

  async #spanning(offset: number, length: number): Promise<Uint8Array> {
    const out = new Uint8Array(length);
    let start = 0;
    for (const source of this.#sources) {
      const from = Math.max(offset, start);
      const to = Math.min(offset + length, start + source.len);
      if (from < to) out.set(await source.read(from - start, to - from), from - offset);
      start += source.len;
    }
    return out;
  }
}

const PART_NAME = /-(\d{5})-of-(\d{5})\.gguf$/i;

/** The URLs of all parts, when a URL names one of them as gguf-split does (`-00001-of-00003.gguf`); else the URL alone. */
export function partUrls(url: string): string[] {
  const parsed = new URL(url);
  const match = PART_NAME.exec(parsed.pathname);
  const count = Number(match?.[2] ?? 1);
  if (!match || count < 2 || Number(match[1]) < 1 || Number(match[1]) > count) return [url];
  const stem = parsed.pathname.slice(0, match.index);
  const ending = parsed.pathname.slice(-5);
  return Array.from({ length: count }, (_, i) => {
    const part = new URL(parsed);
    part.pathname = `${stem}-${String(i + 1).padStart(5, "0")}-of-${match[2] ?? ""}${ending}`;
    return part.href;
  });
}
