/** A Blob or File, and stored files too: reads are slices, taken in large pieces and one piece ahead of the reader. */
import { FiresideError } from "../errors.js";
import type { ByteSource } from "../wasm/fireside.js";

/** Read at once, and in advance: while the reader works on one piece the browser fetches the next. */
const PIECE_BYTES = 8 * 1024 * 1024;
/** Pieces held: the reader's and the one ahead of it. */
const HELD = 2;

/** The error for bytes that are not there. */
export function checkRange(offset: number, length: number, len: number): void {
  if (offset >= 0 && length >= 0 && offset + length <= len) return;
  throw new FiresideError(
    "source.short_read",
    `Bytes ${String(offset)} to ${String(offset + length)} lie outside the file of ${String(len)} bytes.`,
    { offset, length, fileBytes: len },
  );
}

/** Random access to a Blob. */
export class BlobSource implements ByteSource {
  readonly #blob: Blob;
  readonly #name: string;
  readonly #pieces = new Map<number, Promise<Uint8Array>>();
  #last = -1;

  constructor(blob: Blob, name = "") {
    this.#blob = blob;
    this.#name = name;
  }

  get len(): number {
    return this.#blob.size;
  }

  async read(offset: number, length: number): Promise<Uint8Array> {
    checkRange(offset, length, this.len);
    const out = new Uint8Array(length);
    let filled = 0;
    while (filled < length) {
      const at = offset + filled;
      const index = Math.floor(at / PIECE_BYTES);
      const piece = await this.#piece(index);
      const part = piece.subarray(at - index * PIECE_BYTES, at - index * PIECE_BYTES + length - filled);
      out.set(part, filled);
      filled += part.length;
    }
    return out;
  }

  /** Lets go of what was read in advance. */
  release(): void {
    this.#pieces.clear();
    this.#last = -1;
  }

  async #piece(index: number): Promise<Uint8Array> {
    const wanted = this.#fetch(index);
    // Only a reader that goes forward is served in advance: a header alone needs no second piece.
    if (index === this.#last + 1 && index > 0 && (index + 1) * PIECE_BYTES < this.len) void this.#fetch(index + 1);
    this.#last = index;
    return wanted;
  }

  #fetch(index: number): Promise<Uint8Array> {
    const known = this.#pieces.get(index);
    if (known) return known;
    const slice = this.#blob.slice(index * PIECE_BYTES, (index + 1) * PIECE_BYTES);
    const piece = slice.arrayBuffer().then(
      (buffer) => new Uint8Array(buffer),
      (cause: unknown) => {
        this.#pieces.delete(index);
        const why = cause instanceof Error ? cause.message : String(cause);
        const details = { name: this.#name, offset: index * PIECE_BYTES };
        throw new FiresideError("source.failed", `The file could not be read: ${why}`, details, { cause });
      },
    );
    piece.catch(() => undefined);
    this.#pieces.set(index, piece);
    for (const old of this.#pieces.keys()) {
      if (this.#pieces.size <= HELD) break;
      if (old !== index) this.#pieces.delete(old);
    }
    return piece;
  }
}
