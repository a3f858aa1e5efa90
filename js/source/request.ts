/** One HTTP request for a range of a file: sent, watched for stalls, its answer read for what it says and checked for what it
 * must not say. Whether to try again is the caller's; see retry.ts.
 */
import { FiresideError } from "../errors.js";
import { tuning } from "./tuning.js";

/** A file on a server. */
export interface Target {
  url: string;
  headers: Record<string, string>;
}

/** What tells one version of a file from another, as far as the server shows it to this origin. */
export interface Validator {
  etag: string | null;
  modified: string | null;
  /** The file's size. */
  total: number | null;
}

/** Bytes `start` to `end` (exclusive; null: to the end). */
export interface Range {
  start: number;
  end: number | null;
}

/** A stall timer that fires this late says nothing of the server; it looks again after the grace. */
const LATE_MS = 500;
const GRACE_MS = 1000;

const HTML = /^\s*(<!doctype|<html|<\?xml|<head|<body)/i;

/** True when two answers cannot be of the same version. What one of them does not show decides nothing. */
export function differs(a: Validator, b: Validator): boolean {
  const unequal = (x: unknown, y: unknown): boolean => x !== null && y !== null && x !== y;
  // A weak tag is as good as a strong one here: that it changed is what matters.
  return unequal(a.etag, b.etag) || unequal(a.total, b.total) || (a.etag === null && unequal(a.modified, b.modified));
}

/** True when the server shows something that a later answer can be compared by. */
export function identifies(validator: Validator): boolean {
  return validator.etag !== null || validator.modified !== null;
}

/**
 * Bytes asked for again when a broken body is picked up from a server that shows neither tag nor date: they must be the ones that
 * are there, or the file is another one.
 */
export const OVERLAP_BYTES = 64 * 1024;

/** Whether two pieces have the same bytes. */
export function sameBytes(a: Uint8Array, b: Uint8Array): boolean {
  return a.length === b.length && a.every((byte, i) => byte === b[i]);
}

/** The error for a file that is not the one that was begun. */
export function changed(url: string, expected: Validator, got: Validator | null): FiresideError {
  return new FiresideError("source.changed", `${url} changed on the server while it was being read.`, { url, expected, got });
}

/** The error for a body that ended early. */
export function truncated(url: string, expected: number | null, got: number): FiresideError {
  const of = expected === null ? "" : ` of ${String(expected)}`;
  return new FiresideError("http.truncated", `${url} stopped at byte ${String(got)}${of}.`, { url, expected, got });
}

/** The four bytes that a model starts with; the second is a big-endian one, for which the reader has its own code. */
const MAGICS = ["GGUF", "FUGG"];

/**
 * Refuses what is no model by its first bytes: pages, pointers of Git LFS, other formats. The reader would do so too, but may have to
 * wait for much more of the body than this.
 */
export function refuseOther(url: string, start: Uint8Array, contentType: string | null): void {
  const text = new TextDecoder("latin1").decode(start.subarray(0, 200));
  const magic = text.slice(0, 4);
  if (MAGICS.some((known) => known.startsWith(magic))) return;
  const pointer = text.startsWith("version https://git-lfs");
  if (!pointer && !HTML.test(text)) throw badMagic(url, magic);
  const what = pointer ? "a Git LFS pointer" : "a web page";
  throw new FiresideError("http.not_a_model", `${url} gave ${what} instead of a model.`, {
    url,
    contentType,
    start: text.slice(0, 80),
  });
}

/** As the reader words it. */
function badMagic(url: string, magic: string): FiresideError {
  const hex = (char: string): string => `\\x${char.charCodeAt(0).toString(16).padStart(2, "0")}`;
  const got = magic.replace(/[^ -~]/g, hex);
  const message = `${url} starts with '${got}', not 'GGUF': it is not a GGUF file.`;
  return new FiresideError("gguf.bad_magic", message, { url, expected: "GGUF", got });
}

/** The answer to one request. `next` gives its body piece by piece, null at the end. */
export class Reply {
  readonly url: string;
  /** 206: the range that was asked for. Otherwise the body is the whole file. */
  readonly partial: boolean;
  /** File offset of the body's first byte. */
  readonly start: number;
  readonly validator: Validator;
  readonly contentType: string | null;
  /** Whether the answer comes from this page's own origin, to which If-Range may be sent without being asked about first. */
  readonly sameOrigin: boolean;
  readonly #body: ReadableStreamDefaultReader<Uint8Array> | null;
  readonly #watch: Watch;
  #unread: Uint8Array | null = null;

  constructor(response: Response, target: Target, range: Range, watch: Watch) {
    this.url = target.url;
    this.partial = response.status === 206;
    this.start = this.partial ? range.start : 0;
    this.sameOrigin = !crossOrigin(response.url || target.url);
    this.contentType = response.headers.get("content-type");
    this.validator = {
      etag: response.headers.get("etag"),
      modified: response.headers.get("last-modified"),
      total: totalBytes(response, range, this.sameOrigin),
    };
    // 416 for the first byte means an empty file; what comes with it is talk.
    this.#body = response.body && response.status !== 416 ? response.body.getReader() : null;
    this.#watch = watch;
  }

  async next(): Promise<Uint8Array | null> {
    const unread = this.#unread;
    this.#unread = null;
    if (unread) return unread;
    if (!this.#body) return null;
    const { done, value } = await this.#watch.during(this.#body.read());
    if (!done) return value;
    this.#watch.end();
    return null;
  }

  /** Gives a piece back: it is the next one. */
  unread(bytes: Uint8Array): void {
    this.#unread = bytes;
  }

  /** Gives up the rest of the body. */
  close(): void {
    this.#watch.end();
    this.#body?.cancel().catch(() => undefined);
  }
}

/**
 * Sends a request for the whole file, without Range: the second thing to try on first contact. With Range a browser asks for the
 * bytes as they are, and takes an answer that is compressed all the same for a broken one.
 */
export async function askWhole(target: Target, signal: AbortSignal, expect: Validator | null): Promise<Reply> {
  const watch = new Watch(target.url, signal);
  const init: RequestInit = { headers: target.headers, signal: watch.signal, cache: "no-store" };
  return checked(await watch.during(fetch(target.url, init)), target, { start: 0, end: null }, expect, watch);
}

/** Sends a request for a range. `expect`, the version that was begun, makes another version a `source.changed`. */
export async function ask(target: Target, range: Range, signal: AbortSignal, expect: Validator | null, ifRange: boolean): Promise<Reply> {
  const headers: Record<string, string> = { ...target.headers, Range: rangeHeader(range) };
  const strong = expect?.etag?.startsWith("W/") === false ? expect.etag : null;
  if (ifRange && strong !== null) headers["If-Range"] = strong;
  const watch = new Watch(target.url, signal);
  // The browser's own cache stays out of it: it would keep gigabytes a second time, and it gives a file that was once wrong for as
  // long as it thinks fit, without asking.
  const init: RequestInit = { headers, signal: watch.signal, cache: "no-store" };
  const response = await watch.during(fetch(target.url, init));
  return checked(response, target, range, expect, watch);
}

function checked(response: Response, target: Target, range: Range, expect: Validator | null, watch: Watch): Reply {
  try {
    return check(response, target, range, expect, watch);
  } catch (error) {
    watch.end();
    response.body?.cancel().catch(() => undefined);
    throw error;
  }
}

function check(response: Response, target: Target, range: Range, expect: Validator | null, watch: Watch): Reply {
  const reply = new Reply(response, target, range, watch);
  if (response.status === 416 && range.start === 0) return reply;
  if (response.status === 416 && expect) throw changed(target.url, expect, reply.validator);
  if (response.status !== 200 && response.status !== 206) throw statusError(target.url, response);
  if (reply.partial && isEncoded(response)) {
    const message = `${target.url} answered with a range of a compressed file, which is of no use.`;
    throw new FiresideError("http.bad_range", message, { url: target.url, expected: "identity", got: response.headers.get("content-encoding") });
  }
  const asked = /^bytes (\d+)-/.exec(response.headers.get("content-range") ?? "")?.[1];
  if (reply.partial && asked !== undefined && Number(asked) !== range.start) {
    throw new FiresideError("http.bad_range", `${target.url} answered with another range than the one that was asked for.`, {
      url: target.url,
      expected: range.start,
      got: Number(asked),
    });
  }
  if (expect && differs(expect, reply.validator)) throw changed(target.url, expect, reply.validator);
  return reply;
}

function rangeHeader({ start, end }: Range): string {
  return `bytes=${String(start)}-${end === null ? "" : String(end - 1)}`;
}

function isEncoded(response: Response): boolean {
  return (response.headers.get("content-encoding") ?? "identity") !== "identity";
}

/** The file's size, null where it cannot be known: compressed in transit, or hidden from this origin. */
function totalBytes(response: Response, range: Range, sameOrigin: boolean): number | null {
  const number = (text: string | null | undefined): number | null => {
    const value = Number(text ?? NaN);
    return Number.isSafeInteger(value) && value >= 0 ? value : null;
  };
  const length = number(response.headers.get("content-length"));
  switch (response.status) {
    case 206: {
      const total = number(/\/(\d+)$/.exec(response.headers.get("content-range") ?? "")?.[1]);
      // Content-Range is hidden from other origins unless exposed; the length of an open range says the same.
      return total ?? (range.end === null && length !== null ? range.start + length : null);
    }
    case 416:
      return number(/\/(\d+)$/.exec(response.headers.get("content-range") ?? "")?.[1]) ?? 0;
    default:
      // Another origin may hide that the body is compressed, so its length means nothing certain.
      return sameOrigin && !isEncoded(response) ? length : null;
  }
}

function statusError(url: string, response: Response): FiresideError {
  const after = Number(response.headers.get("retry-after") ?? NaN);
  return new FiresideError("http.status", `${url} answered with HTTP status ${String(response.status)}.`, {
    url,
    status: response.status,
    ...(Number.isFinite(after) ? { retryAfterMs: after * 1000 } : {}),
  });
}

/** Whether a URL is of another origin than the code that asks. Outside a page or Worker nothing is. */
function crossOrigin(url: string): boolean {
  if (typeof location === "undefined" || location.origin === "null") return false;
  return new URL(url, location.href).origin !== location.origin;
}

/** Ends a request that gives no byte for too long, or whose caller gave up, and names what went wrong. */
class Watch {
  readonly #url: string;
  readonly #outer: AbortSignal;
  readonly #controller = new AbortController();
  readonly #stop = (): void => {
    this.#controller.abort(this.#outer.reason);
  };

  constructor(url: string, outer: AbortSignal) {
    this.#url = url;
    this.#outer = outer;
    outer.throwIfAborted();
    outer.addEventListener("abort", this.#stop, { once: true });
  }

  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  end(): void {
    this.#outer.removeEventListener("abort", this.#stop);
  }

  async during<T>(work: Promise<T>): Promise<T> {
    let stalled = false;
    const { stallMs } = tuning;
    let due = performance.now() + stallMs;
    const look = (): void => {
      // A timer that comes late means that this thread was busy or asleep, not the server: what arrived meanwhile gets its turn.
      if (performance.now() - due > LATE_MS) {
        due = performance.now() + GRACE_MS;
        timer = setTimeout(look, GRACE_MS);
        return;
      }
      stalled = true;
      this.#controller.abort();
    };
    let timer = setTimeout(look, stallMs);
    try {
      return await work;
    } catch (cause) {
      this.end();
      this.#outer.throwIfAborted();
      if (stalled) {
        const message = `${this.#url} sent nothing for ${String(stallMs)} ms.`;
        throw new FiresideError("http.stalled", message, { url: this.#url, stallMs }, { cause });
      }
      throw networkError(this.#url, cause);
    } finally {
      clearTimeout(timer);
    }
  }
}

/** The platform does not say why a fetch failed: CORS, a name that does not resolve and a cable that was pulled look alike. */
function networkError(url: string, cause: unknown): FiresideError {
  const possiblyCors = crossOrigin(url);
  const why = cause instanceof Error ? cause.message : String(cause);
  const hint = possiblyCors ? " The server may not allow this page's origin (CORS)." : "";
  return new FiresideError("http.network", `${url} could not be fetched: ${why}.${hint}`, { url, possiblyCors }, { cause });
}
