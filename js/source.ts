/** Byte sources for the loader: a Blob, or a URL read with HTTP ranges. Knows nothing of GGUF.
 *
 * The loader reads mostly in file order, so a URL is one long response that is read forward; a small window behind the
 * reading point serves re-reads, a jump opens a new response, and nothing is fetched twice in a forward pass.
 */
import { FiresideError } from "./errors.js";
import type { WireSource } from "./protocol.js";
import type { ByteSource } from "./wasm/fireside.js";

/** Bytes kept behind the reading point. */
const WINDOW_BYTES = 8 * 1024 * 1024;
/** A gap up to this is read through rather than asked for anew. */
const SKIP_BYTES = 1024 * 1024;
/** How often a broken connection is picked up again without any byte arriving in between. */
const RETRIES = 5;
const RETRY_DELAY_MS = 200;

/** Called with the number of bytes that have arrived. */
export type OnBytes = (loaded: number, total: number) => void;

/** Opens a source; `signal` cancels all its reads. */
export async function openSource(source: WireSource, signal: AbortSignal, onBytes: OnBytes): Promise<ByteSource> {
  if ("blob" in source) return new BlobSource(source.blob);
  return UrlSource.open(source.url, source.headers, signal, onBytes);
}

function checkRange(offset: number, length: number, len: number): void {
  if (offset >= 0 && length >= 0 && offset + length <= len) return;
  throw new FiresideError(
    "source.short_read",
    `Bytes ${String(offset)} to ${String(offset + length)} lie outside the file of ${String(len)} bytes.`,
    { offset, length, fileBytes: len },
  );
}

/** A Blob or File: each read is a slice. */
export class BlobSource implements ByteSource {
  readonly #blob: Blob;
  constructor(blob: Blob) {
    this.#blob = blob;
  }
  get len(): number {
    return this.#blob.size;
  }
  async read(offset: number, length: number): Promise<Uint8Array> {
    checkRange(offset, length, this.len);
    try {
      return new Uint8Array(await this.#blob.slice(offset, offset + length).arrayBuffer());
    } catch (cause) {
      const why = cause instanceof Error ? cause.message : String(cause);
      throw new FiresideError("source.failed", `The file could not be read: ${why}`, { offset, length }, { cause });
    }
  }
}

interface Body {
  reader: ReadableStreamDefaultReader<Uint8Array>;
  /** File offset of the next byte that the reader gives. */
  at: number;
}

/** A URL on a server that answers ranges. */
export class UrlSource implements ByteSource {
  readonly len: number;
  readonly #url: string;
  readonly #headers: Record<string, string>;
  readonly #signal: AbortSignal;
  readonly #onBytes: OnBytes;
  readonly #etag: string | null;
  #body: Body | null;
  /** Chunks behind and at the reading point, in order, with their file offsets. */
  #window: { at: number; bytes: Uint8Array }[] = [];
  #arrived = 0;
  #tail: Promise<unknown> = Promise.resolve();

  private constructor(
    url: string,
    headers: Record<string, string>,
    signal: AbortSignal,
    onBytes: OnBytes,
    len: number,
    first: Response,
  ) {
    this.#url = url;
    this.#headers = headers;
    this.#signal = signal;
    this.#onBytes = onBytes;
    this.#etag = strongEtag(first);
    this.#body = first.body ? { reader: first.body.getReader(), at: 0 } : null;
    this.len = len;
  }

  /** One request: its answer says whether ranges work. Where they do not, the body is streamed once into a Blob. */
  static async open(
    url: string,
    headers: Record<string, string>,
    signal: AbortSignal,
    onBytes: OnBytes,
  ): Promise<ByteSource> {
    const response = await request(url, { ...headers, Range: "bytes=0-" }, signal);
    if (response.status === 416) return new BlobSource(new Blob([]));
    if (!response.ok) throw httpError(url, response);
    const encoded = response.headers.get("content-encoding") ?? "identity";
    const len = totalBytes(response);
    if (response.status === 206 && encoded === "identity" && len !== null) {
      return new UrlSource(url, headers, signal, onBytes, len, response);
    }
    const whole = response.status === 200 ? response : await request(url, headers, signal);
    if (!whole.ok) throw httpError(url, whole);
    return new BlobSource(await wholeBody(url, whole, onBytes));
  }

  /** Reads are served one after another: two at once would fight over the one response. */
  read(offset: number, length: number): Promise<Uint8Array> {
    const result = this.#tail.then(() => this.#read(offset, length));
    this.#tail = result.catch(() => undefined);
    return result;
  }

  async #read(offset: number, length: number): Promise<Uint8Array> {
    checkRange(offset, length, this.len);
    const out = new Uint8Array(length);
    if (length === 0) return out;
    const oldest = this.#window[0]?.at ?? this.#body?.at ?? 0;
    if (offset < oldest) return this.#readAside(offset, out);
    let filled = this.#fromWindow(offset, out);
    if (filled < length) {
      const next = offset + filled;
      if (this.#body && (next < this.#body.at || next > this.#body.at + SKIP_BYTES)) await this.#close();
      this.#body ??= await this.#open(next);
    }
    while (filled < length) {
      const chunk = await this.#next(offset + filled);
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

  /** The next chunk of the long response, kept in the window. A broken connection is picked up where it broke. */
  async #next(wanted: number): Promise<{ at: number; bytes: Uint8Array }> {
    for (let attempt = 0; ; attempt++) {
      const at = this.#body?.at ?? wanted;
      let cause: unknown;
      try {
        this.#body ??= await this.#open(at);
        const { done, value } = await this.#body.reader.read();
        if (!done) return this.#keep(value);
      } catch (error) {
        if (error instanceof FiresideError && error.code !== "http.network") throw error;
        cause = error;
      }
      this.#signal.throwIfAborted();
      await this.#close();
      if (attempt >= RETRIES) {
        throw new FiresideError(
          "http.truncated",
          `${this.#url} stopped at byte ${String(at)} of ${String(this.len)}.`,
          { url: this.#url, expected: this.len, got: at },
          { cause },
        );
      }
      await new Promise((resolve) => setTimeout(resolve, RETRY_DELAY_MS * 2 ** attempt));
    }
  }

  #keep(bytes: Uint8Array): { at: number; bytes: Uint8Array } {
    const body = this.#body;
    const chunk = { at: body?.at ?? 0, bytes };
    if (body) body.at += bytes.length;
    this.#window.push(chunk);
    let held = this.#window.reduce((sum, c) => sum + c.bytes.length, 0);
    while (this.#window.length > 1 && held > WINDOW_BYTES) held -= this.#window.shift()?.bytes.length ?? 0;
    this.#count(bytes.length);
    return chunk;
  }

  /** A read behind the window: its own small request, the long response stays open. */
  async #readAside(offset: number, out: Uint8Array): Promise<Uint8Array> {
    const response = await this.#ask(`bytes=${String(offset)}-${String(offset + out.length - 1)}`);
    const bytes = new Uint8Array(await response.arrayBuffer());
    if (bytes.length !== out.length) {
      throw new FiresideError("http.truncated", `${this.#url} gave fewer bytes than asked for.`, {
        url: this.#url,
        offset,
        expected: out.length,
        got: bytes.length,
      });
    }
    return bytes;
  }

  async #open(at: number): Promise<Body> {
    const response = await this.#ask(`bytes=${String(at)}-`);
    this.#window = [];
    if (!response.body) throw new FiresideError("http.network", `${this.#url} gave no body.`, { url: this.#url });
    return { reader: response.body.getReader(), at };
  }

  async #ask(range: string): Promise<Response> {
    const headers = { ...this.#headers, Range: range, ...(this.#etag === null ? {} : { "If-Range": this.#etag }) };
    const response = await request(this.#url, headers, this.#signal);
    if (!response.ok) throw httpError(this.#url, response);
    const total = totalBytes(response);
    const etag = strongEtag(response);
    const changed = etag !== null && this.#etag !== null && etag !== this.#etag;
    if (response.status !== 206 || changed || (total !== null && hasTotal(response) && total !== this.len)) {
      throw new FiresideError("source.changed", `${this.#url} changed on the server while it was being read.`, {
        url: this.#url,
        expected: this.len,
        got: total,
        status: response.status,
      });
    }
    return response;
  }

  async #close(): Promise<void> {
    const body = this.#body;
    this.#body = null;
    await body?.reader.cancel().catch(() => undefined);
  }

  #count(bytes: number): void {
    this.#arrived = Math.min(this.len, this.#arrived + bytes);
    this.#onBytes(this.#arrived, this.len);
  }
}

async function request(url: string, headers: Record<string, string>, signal: AbortSignal): Promise<Response> {
  try {
    return await fetch(url, { headers, signal });
  } catch (cause) {
    signal.throwIfAborted();
    const why = cause instanceof Error ? cause.message : String(cause);
    throw new FiresideError("http.network", `${url} could not be fetched: ${why}`, { url }, { cause });
  }
}

function httpError(url: string, response: Response): FiresideError {
  return new FiresideError("http.status", `${url} answered with HTTP status ${String(response.status)}.`, {
    url,
    status: response.status,
  });
}

function hasTotal(response: Response): boolean {
  return /\/\d+$/.test(response.headers.get("content-range") ?? "");
}

/** The file's size. Another origin hides Content-Range unless it exposes it; the length of `bytes=0-` says the same. */
function totalBytes(response: Response): number | null {
  const total = /\/(\d+)$/.exec(response.headers.get("content-range") ?? "")?.[1] ?? response.headers.get("content-length");
  if (total === null) return null;
  const bytes = Number(total);
  return Number.isSafeInteger(bytes) ? bytes : null;
}

function strongEtag(response: Response): string | null {
  const etag = response.headers.get("etag");
  return etag === null || etag.startsWith("W/") ? null : etag;
}

/** Streams a body into a Blob, which the browser may keep on disk: the file is never whole in our memory. */
async function wholeBody(url: string, response: Response, onBytes: OnBytes): Promise<Blob> {
  const encoded = (response.headers.get("content-encoding") ?? "identity") !== "identity";
  const expected = encoded ? null : totalBytes(response);
  let loaded = 0;
  const count = new TransformStream<Uint8Array, Uint8Array>({
    transform(chunk, controller) {
      loaded += chunk.length;
      onBytes(loaded, expected ?? loaded);
      controller.enqueue(chunk);
    },
  });
  const body = response.body?.pipeThrough(count as ReadableWritablePair<Uint8Array<ArrayBuffer>, Uint8Array<ArrayBuffer>>);
  const blob = await new Response(body ?? null).blob().catch((cause: unknown) => {
    throw new FiresideError("http.network", `${url} broke off after ${String(loaded)} bytes.`, { url }, { cause });
  });
  if (expected !== null && blob.size !== expected) {
    throw new FiresideError("http.truncated", `${url} gave ${String(blob.size)} of ${String(expected)} bytes.`, {
      url,
      expected,
      got: blob.size,
    });
  }
  return blob;
}
