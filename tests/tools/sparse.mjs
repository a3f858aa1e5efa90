/** A file of any size of which only some places hold bytes, the rest reads as zeros: for what lies beyond 4 GiB. */
export class SparseFile {
  #pieces;

  /** `pieces`: [offset, bytes] in order. */
  constructor(length, pieces) {
    this.length = length;
    this.#pieces = pieces;
  }

  /** As a Buffer's: a view that still knows only its places. */
  subarray(start, end = this.length) {
    return new SparseView(this, start, Math.min(end, this.length));
  }

  bytes(start, end) {
    const out = Buffer.alloc(end - start);
    for (const [at, bytes] of this.#pieces) {
      const from = Math.max(start, at);
      const to = Math.min(end, at + bytes.length);
      if (from < to) out.set(bytes.subarray(from - at, to - at), from - start);
    }
    return out;
  }
}

class SparseView {
  constructor(file, start, end) {
    Object.assign(this, { file, start, length: end - start });
  }

  subarray(start, end) {
    return this.file.bytes(this.start + start, this.start + Math.min(end, this.length));
  }
}
