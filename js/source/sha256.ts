/** SHA-256 (FIPS 180-4), piece by piece, with a state that can be kept and taken up again after a reload.
 *
 * Own code because neither crypto.subtle nor Node's hash can save a state, and a Worker that is served unbundled cannot
 * import a package by its name. Checked against Node's implementation in tests/js/sha256.test.mjs.
 */
const BLOCK = 64;

/** The first 32 bits of the fractional parts of the roots of the first primes, as the standard defines its constants. */
function primeRoots(count: number, root: (n: number) => number): DataView {
  const out = new DataView(new ArrayBuffer(4 * count));
  for (let n = 2, found = 0; found < count; n++) {
    let prime = true;
    for (let d = 2; d * d <= n; d++) if (n % d === 0) prime = false;
    if (prime) out.setInt32(4 * found++, ((root(n) % 1) * 2 ** 32) | 0);
  }
  return out;
}

const START = primeRoots(8, Math.sqrt);
const K = primeRoots(64, Math.cbrt);

/** A hash in the making, as plain data. */
export interface HashState {
  words: number[];
  /** Bytes taken in so far. */
  bytes: number;
  /** Bytes of the last, unfinished block. */
  rest: number[];
}

/** One hash. */
export class Sha256 {
  readonly #words = new DataView(START.buffer.slice(0));
  readonly #schedule = new DataView(new ArrayBuffer(256));
  readonly #block = new Uint8Array(BLOCK);
  #bytes = 0;

  /** Takes up a kept state. Null when it is none. */
  static resume(state: unknown): Sha256 | null {
    const { words, bytes, rest } = (state ?? {}) as Partial<HashState>;
    const whole = (value: unknown): value is number => Number.isSafeInteger(value);
    if (!Array.isArray(words) || words.length !== 8 || !words.every(whole)) return null;
    if (!whole(bytes) || bytes < 0 || !Array.isArray(rest) || rest.length !== bytes % BLOCK || !rest.every(whole)) return null;
    const hash = new Sha256();
    words.forEach((word, i) => {
      hash.#words.setInt32(4 * i, word);
    });
    hash.#block.set(rest);
    hash.#bytes = bytes;
    return hash;
  }

  /** Bytes taken in so far. */
  get bytes(): number {
    return this.#bytes;
  }

  save(): HashState {
    const words = Array.from({ length: 8 }, (_, i) => this.#words.getInt32(4 * i));
    return { words, bytes: this.#bytes, rest: [...this.#block.subarray(0, this.#bytes % BLOCK)] };
  }

  update(data: Uint8Array): this {
    let at = 0;
    const held = this.#bytes % BLOCK;
    this.#bytes += data.length;
    if (held > 0) {
      at = Math.min(BLOCK - held, data.length);
      this.#block.set(data.subarray(0, at), held);
      if (held + at < BLOCK) return this;
      this.#compress(new DataView(this.#block.buffer), 0);
    }
    const view = new DataView(data.buffer, data.byteOffset, data.byteLength);
    for (; at + BLOCK <= data.length; at += BLOCK) this.#compress(view, at);
    this.#block.set(data.subarray(at));
    return this;
  }

  /** The digest in hex. The hash itself can go on. */
  hex(): string {
    const end = Sha256.resume(this.save()) ?? new Sha256();
    const zeros = (2 * BLOCK - 9 - (this.#bytes % BLOCK)) % BLOCK;
    const tail = new Uint8Array(1 + zeros + 8);
    tail[0] = 0x80;
    const view = new DataView(tail.buffer);
    view.setUint32(1 + zeros, Math.floor(this.#bytes / 2 ** 29));
    view.setUint32(1 + zeros + 4, (this.#bytes * 8) % 2 ** 32);
    end.update(tail);
    return end.save().words.map((word) => (word >>> 0).toString(16).padStart(8, "0")).join("");
  }

  /** DataViews, because their reads are big-endian as the standard's are, and never undefined to the type checker. */
  #compress(data: DataView, at: number): void {
    const w = this.#schedule;
    for (let i = 0; i < 64; i += 4) w.setInt32(i, data.getInt32(at + i));
    for (let i = 64; i < 256; i += 4) {
      const x = w.getInt32(i - 60);
      const y = w.getInt32(i - 8);
      const s0 = ((x >>> 7) | (x << 25)) ^ ((x >>> 18) | (x << 14)) ^ (x >>> 3);
      const s1 = ((y >>> 17) | (y << 15)) ^ ((y >>> 19) | (y << 13)) ^ (y >>> 10);
      w.setInt32(i, (w.getInt32(i - 64) + s0 + w.getInt32(i - 28) + s1) | 0);
    }
    const h = this.#words;
    let a = h.getInt32(0);
    let b = h.getInt32(4);
    let c = h.getInt32(8);
    let d = h.getInt32(12);
    let e = h.getInt32(16);
    let f = h.getInt32(20);
    let g = h.getInt32(24);
    let k = h.getInt32(28);
    for (let i = 0; i < 256; i += 4) {
      const s1 = ((e >>> 6) | (e << 26)) ^ ((e >>> 11) | (e << 21)) ^ ((e >>> 25) | (e << 7));
      const t1 = (k + s1 + ((e & f) ^ (~e & g)) + K.getInt32(i) + w.getInt32(i)) | 0;
      const s0 = ((a >>> 2) | (a << 30)) ^ ((a >>> 13) | (a << 19)) ^ ((a >>> 22) | (a << 10));
      const t2 = (s0 + ((a & b) ^ (a & c) ^ (b & c))) | 0;
      k = g;
      g = f;
      f = e;
      e = (d + t1) | 0;
      d = c;
      c = b;
      b = a;
      a = (t1 + t2) | 0;
    }
    const add = (offset: number, value: number): void => {
      h.setInt32(offset, (h.getInt32(offset) + value) | 0);
    };
    add(0, a);
    add(4, b);
    add(8, c);
    add(12, d);
    add(16, e);
    add(20, f);
    add(24, g);
    add(28, k);
  }
}

/** The digest of a text, in hex. */
export function sha256Text(text: string): string {
  return new Sha256().update(new TextEncoder().encode(text)).hex();
}
