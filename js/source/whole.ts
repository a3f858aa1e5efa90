/** A URL on a server without ranges: its body is read once, from the start, into a Blob. Asking is the caller's. */
import type { ByteSource } from "../wasm/fireside.js";
import { BlobSource, checkRange } from "./blob.js";
import type { HashedSource, OnBytes } from "./http.js";
import type { Reply, Target, Validator } from "./request.js";
import { changed, refuseOther, truncated } from "./request.js";
import { Sha256 } from "./sha256.js";

/** A file that came whole. */
export class WholeSource extends BlobSource implements HashedSource {
  static async read(target: Target, reply: Reply, onBytes: OnBytes): Promise<WholeSource> {
    return new WholeSource(await wholeBody(target, reply, onBytes));
  }

  async digest(): Promise<string> {
    return hashOf(this);
  }
}

/**
 * One of several files on a server without ranges. Its first bytes are looked at when it is opened, so that a wrong or missing part is
 * told before the parts before it have come; its body is asked for when it is first read.
 */
export class LaterSource implements HashedSource {
  readonly len: number;
  readonly #target: Target;
  readonly #open: () => Promise<HashedSource>;
  #whole: Promise<HashedSource> | null = null;

  private constructor(target: Target, len: number, open: () => Promise<HashedSource>) {
    this.#target = target;
    this.#open = open;
    this.len = len;
  }

  /** `open` asks for the whole body. */
  static async begin(target: Target, reply: Reply, len: number, open: () => Promise<HashedSource>): Promise<LaterSource> {
    try {
      const bytes = await reply.next();
      if (bytes) refuseOther(target.url, bytes, reply.contentType);
    } finally {
      reply.close();
    }
    return new LaterSource(target, len, open);
  }

  async read(offset: number, length: number): Promise<Uint8Array> {
    checkRange(offset, length, this.len);
    return (await this.#all()).read(offset, length);
  }

  async digest(): Promise<string> {
    return (await this.#all()).digest();
  }

  #all(): Promise<HashedSource> {
    this.#whole ??= this.#open().then((source) => {
      if (source.len === this.len) return source;
      const version = (total: number): Validator => ({ etag: null, modified: null, total });
      throw changed(this.#target.url, version(this.len), version(source.len));
    });
    return this.#whole;
  }
}

/** The sha256 of a source that is all there, read in pieces; `onBytes` follows it. */
export async function hashOf(source: ByteSource, signal?: AbortSignal, onBytes?: OnBytes): Promise<string> {
  const hash = new Sha256();
  while (hash.bytes < source.len) {
    signal?.throwIfAborted();
    hash.update(await source.read(hash.bytes, Math.min(1024 * 1024, source.len - hash.bytes)));
    onBytes?.(hash.bytes, source.len);
  }
  return hash.hex();
}

/** Streams a body into a Blob, which the browser may keep on disk: the file is never whole in our memory. */
async function wholeBody(target: Target, reply: Reply, onBytes: OnBytes): Promise<Blob> {
  const expected = reply.validator.total;
  let loaded = 0;
  // Through a Response every error comes out as the same TypeError: what it was is kept beside.
  let failure: { error: unknown } | null = null;
  const next = async (): Promise<Uint8Array | null> => {
    const bytes = await reply.next();
    if (bytes === null) return null;
    if (loaded === 0) refuseOther(target.url, bytes, reply.contentType);
    loaded += bytes.length;
    onBytes(loaded, Math.max(loaded, expected ?? 0));
    return bytes;
  };
  const stream = new ReadableStream<Uint8Array<ArrayBuffer>>({
    async pull(controller) {
      const bytes = await next().catch((error: unknown) => {
        failure = { error };
        throw error;
      });
      if (bytes === null) controller.close();
      else controller.enqueue(bytes as Uint8Array<ArrayBuffer>);
    },
  });
  const blob = await new Response(stream).blob().catch((error: unknown) => {
    reply.close();
    throw (failure ?? { error }).error;
  });
  if (expected !== null && blob.size !== expected) throw truncated(target.url, expected, blob.size);
  return blob;
}
