/** A URL read without keeping anything: one long response that is read forward as the loader does.
 *
 * A small window behind the reading point serves re-reads, a jump opens a new response, a broken connection is picked up where
 * it broke, and nothing is fetched twice in a forward pass. For a server without ranges see whole.ts.
 */
import { FiresideError } from "../errors.js";
import type { ByteSource } from "../wasm/fireside.js";
import { checkRange } from "./blob.js";
import type { Reply, Target, Validator } from "./request.js";
import { ask, askWhole, changed, identifies, OVERLAP_BYTES, refuseOther, sameBytes, truncated } from "./request.js";
import { Patience } from "./retry.js";
import { Sha256 } from "./sha256.js";
import { LaterSource, WholeSource } from "./whole.js";

/** Bytes kept behind the reading point. */
const WINDOW_BYTES = 8 * 1024 * 1024;
/** A gap up to this is read through rather than asked for anew. */
const SKIP_BYTES = 1024 * 1024;
/** Of a file that is not read next, only this much is read when it is opened: its header. */
const PEEK_BYTES = 1024 * 1024;

/** Called with the number of bytes that have arrived, and of all, of one file. */
export type OnBytes = (loaded: number, total: number) => void;

export interface UrlOptions {
  signal: AbortSignal;
  onBytes: OnBytes;
  /** Hash the bytes on their way, for `digest`: a new hash, or one that has had the file's first bytes. */
  hash?: Sha256;
  /** Read the start only and close the connection: one of several files. */
  peek?: boolean;
  /** Nothing but the start of the file will be read: no more is asked for than the reader wants. */
  headerOnly?: boolean;
  /** The version that was begun elsewhere; another one is refused. */
  expect?: Validator;
}

/** A source that can tell the sha256 of all its bytes once the reader is done. */
export interface HashedSource extends ByteSource {
  digest(): Promise<string>;
}

/** Opens a URL. One request: its answer says whether ranges work. */
export async function openUrl(target: Target, options: UrlOptions): Promise<HashedSource> {
  const patience = new Patience(options.signal);
  for (let attempt = 1; ; attempt++) {
    try {
      const reply = await first(target, options, attempt);
      const { total } = reply.validator;
      if (total !== null && (reply.partial || options.headerOnly)) return await UrlSource.begin(target, options, reply, total);
      if (total === null || !options.peek) return await WholeSource.read(target, reply, options.onBytes);
      const later: UrlOptions = { ...options, peek: false, expect: reply.validator };
      return await LaterSource.begin(target, reply, total, () => openUrl(target, later));
    } catch (error) {
      await patience.failed(error);
    }
  }
}

async function first(target: Target, options: UrlOptions, attempt: number): Promise<Reply> {
  const send = (end: number | null): Promise<Reply> => ask(target, { start: 0, end }, options.signal, options.expect ?? null, false);
  if (attempt === 2) return askWhole(target, options.signal, options.expect ?? null);
  if (!options.headerOnly) return send(null);
  const reply = await send(PEEK_BYTES);
  if (!reply.partial || reply.validator.total !== null) return reply;
  // The server hides the file's size from this origin; the length of an open range tells it.
  reply.close();
  return send(null);
}

interface Chunk {
  at: number;
  bytes: Uint8Array;
}

/** A URL on a server that answers ranges. */
class UrlSource implements HashedSource {
  readonly len: number;
  readonly #target: Target;
  readonly #options: UrlOptions;
  readonly #patience: Patience;
  readonly #validator: Validator;
  readonly #ifRange: boolean;
  readonly #hash: Sha256 | null;
  #reply: Reply | null;
  /** File offset of the next byte that the open response gives. */
  #at = 0;
  /** Where the open response ends. */
  #until: number;
  /** Chunks behind and at the reading point, in order. */
  #window: Chunk[] = [];
  #arrived = 0;
  #tail: Promise<unknown> = Promise.resolve();

  private constructor(target: Target, options: UrlOptions, reply: Reply, len: number) {
    this.#target = target;
    this.#options = options;
    this.#patience = new Patience(options.signal);
    this.#validator = reply.validator;
    this.#ifRange = reply.sameOrigin;
    this.#hash = options.hash ?? null;
    this.#reply = reply;
    this.#until = options.headerOnly && reply.partial ? Math.min(len, PEEK_BYTES) : len;
    this.len = len;
  }

  static async begin(target: Target, options: UrlOptions, reply: Reply, len: number): Promise<UrlSource> {
    const source = new UrlSource(target, options, reply, len);
    if (len === 0) return source;
    const first = await source.#next(0);
    refuseOther(target.url, first.bytes, reply.contentType);
    if (options.peek) {
      while (source.#reply && source.#at < Math.min(len, PEEK_BYTES)) await source.#next(source.#at);
      source.#close();
    }
    return source;
  }

  /** Reads are served one after another: two at once would fight over the one response. */
  read(offset: number, length: number): Promise<Uint8Array> {
    const result = this.#tail.then(() => this.#read(offset, length));
    this.#tail = result.catch(() => undefined);
    return result;
  }

  /** Fetches what the reader passed over, and gives the hash of all. */
  async digest(): Promise<string> {
    const hash = this.#hash ?? new Sha256();
    while (hash.bytes < this.len) {
      const want = Math.min(WINDOW_BYTES / 2, this.len - hash.bytes);
      const before = hash.bytes;
      const bytes = await this.read(before, want);
      // Reading forward has hashed them already, unless they came from the window or from a response of their own.
      if (hash.bytes === before) hash.update(bytes);
    }
    return hash.hex();
  }

  async #read(offset: number, length: number): Promise<Uint8Array> {
    checkRange(offset, length, this.len);
    const out = new Uint8Array(length);
    if (length === 0) return out;
    const oldest = this.#window[0]?.at ?? this.#at;
    if (offset < oldest) return this.#readAside(offset, out);
    let filled = this.#fromWindow(offset, out);
    if (filled < length) {
      const next = offset + filled;
      if (next < this.#at || next > this.#at + SKIP_BYTES) {
        this.#close();
        this.#window = [];
        this.#at = next;
      }
    }
    while (filled < length) {
      const chunk = await this.#next(this.#at);
      const skip = offset + filled - chunk.at;
      if (skip >= chunk.bytes.length) continue;
      const part = chunk.bytes.subarray(skip, skip + length - filled);
      out.set(part, filled);
      filled += part.length;
    }
    return out;
  }

  /** Copies what the window has of the range's start; returns how many bytes. */
  #fromWindow(offset: number, out: Uint8Array): number {
    let filled = 0;
    for (const { at, bytes } of this.#window) {
      const skip = offset + filled - at;
      if (skip < 0 || skip >= bytes.length || filled === out.length) continue;
      const part = bytes.subarray(skip, skip + out.length - filled);
      out.set(part, filled);
      filled += part.length;
    }
    return filled;
  }

  /** The chunk at `at`, kept in the window. A broken connection is picked up where it broke. */
  async #next(at: number): Promise<Chunk> {
    for (;;) {
      try {
        if (!this.#reply) {
          this.#until = this.#options.headerOnly ? Math.min(this.len, at + PEEK_BYTES) : this.len;
          this.#reply = await this.#openAt(at);
        }
        const bytes = await this.#reply.next();
        if (bytes === null && at === this.#until) {
          // The piece of the header that was asked for is there; the reader wants another.
          this.#close();
          continue;
        }
        if (bytes === null) throw truncated(this.#target.url, this.len, at);
        if (at + bytes.length > this.len) throw truncated(this.#target.url, this.len, at + bytes.length);
        return this.#keep({ at, bytes });
      } catch (error) {
        this.#close();
        await this.#patience.failed(error);
      }
    }
  }

  /** A response from `at` on. From a server that shows no version, from a little before: those bytes must be the ones that came. */
  async #openAt(at: number): Promise<Reply> {
    const end = this.#until === this.len ? null : this.#until;
    const oldest = this.#window[0]?.at ?? at;
    const overlap = identifies(this.#validator) ? 0 : Math.min(OVERLAP_BYTES, at - oldest);
    const reply = await this.#open({ start: at - overlap, end });
    const known = new Uint8Array(overlap);
    this.#fromWindow(at - overlap, known);
    for (let seen = 0; seen < overlap; ) {
      const bytes = await reply.next();
      if (bytes === null) throw truncated(this.#target.url, this.len, at - overlap + seen);
      const part = bytes.subarray(0, overlap - seen);
      if (!sameBytes(part, known.subarray(seen, seen + part.length))) throw changed(this.#target.url, this.#validator, reply.validator);
      seen += part.length;
      if (part.length < bytes.length) reply.unread(bytes.subarray(part.length));
    }
    return reply;
  }

  #keep(chunk: Chunk): Chunk {
    this.#at = chunk.at + chunk.bytes.length;
    this.#window.push(chunk);
    let held = this.#window.reduce((sum, c) => sum + c.bytes.length, 0);
    while (this.#window.length > 1 && held > WINDOW_BYTES) held -= this.#window.shift()?.bytes.length ?? 0;
    if (this.#hash?.bytes === chunk.at) this.#hash.update(chunk.bytes);
    this.#patience.progressed(chunk.bytes.length);
    this.#arrived = Math.min(this.len, this.#arrived + chunk.bytes.length);
    this.#options.onBytes(this.#arrived, this.len);
    if (this.#at === this.len) this.#close();
    return chunk;
  }

  /** A read behind the window: its own small request, the long response stays open. */
  async #readAside(offset: number, out: Uint8Array): Promise<Uint8Array> {
    const patience = new Patience(this.#options.signal, this.#arrived);
    let filled = 0;
    while (filled < out.length) {
      try {
        const reply = await this.#open({ start: offset + filled, end: offset + out.length });
        for (let bytes = await reply.next(); bytes && filled < out.length; bytes = await reply.next()) {
          out.set(bytes.subarray(0, out.length - filled), filled);
          filled += bytes.length;
          patience.progressed(bytes.length);
        }
        reply.close();
        if (filled < out.length) throw truncated(this.#target.url, offset + out.length, offset + filled);
      } catch (error) {
        await patience.failed(error);
      }
    }
    return out;
  }

  async #open(range: { start: number; end: number | null }): Promise<Reply> {
    const reply = await ask(this.#target, range, this.#options.signal, this.#validator, this.#ifRange);
    if (reply.partial || range.start === 0) return reply;
    reply.close();
    throw new FiresideError("source.changed", `${this.#target.url} no longer answers ranges, or is another file now.`, {
      url: this.#target.url,
      expected: this.#validator,
      got: reply.validator,
    });
  }

  #close(): void {
    this.#reply?.close();
    this.#reply = null;
  }
}
