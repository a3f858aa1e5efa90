/** One file on its way into storage: bytes are written as they come, hashed in order, and readable at once.
 *
 * One response is streamed from the first gap on; a reader that wants bytes far from there gets them by a request of its own.
 * What arrived is in the journal every few megabytes, so that the next visit goes on from there. Where the file comes to lie, and
 * when it becomes a model, is the caller's.
 */
import { FiresideError } from "../errors.js";
import { checkRange } from "../source/blob.js";
import type { Reply, Target, Validator } from "../source/request.js";
import { ask, askWhole, changed, identifies, OVERLAP_BYTES, refuseOther, sameBytes, truncated } from "../source/request.js";
import { Patience } from "../source/retry.js";
import { Sha256 } from "../source/sha256.js";
import { tuning } from "../source/tuning.js";
import type { ByteSource } from "../wasm/fireside.js";
import type { PartFile } from "./library.js";
import { readAll, storageError, writeAll } from "./opfs.js";
import { Ranges } from "./ranges.js";
import type { Permits } from "./permits.js";

/** A reader within this distance of the stream waits for it. */
const AHEAD_BYTES = 8 * 1024 * 1024;
/** Of a file whose turn has not come, this much is read at once: its header. */
const PEEK_BYTES = 1024 * 1024;
/** What is read back at a time to be hashed. */
const HASH_BYTES = 1024 * 1024;

export interface DownloadOptions {
  /** Name of the model, and how many files it has: for the journal. */
  id: string;
  files: number;
  signal: AbortSignal;
  /** Bytes that are there, of all. */
  onBytes: (loaded: number, total: number) => void;
  permits: Permits;
  /** Throws `storage.quota` when so many more bytes have no room. */
  room: (bytes: number) => Promise<void>;
  /** A sha256 will decide in the end, so an unidentified part may be taken up. */
  certain: boolean;
}

interface Waiting {
  start: number;
  end: number;
  resolve: () => void;
  reject: (error: unknown) => void;
}

/** A running download. */
export class Download implements ByteSource {
  readonly target: Target;
  readonly #part: PartFile;
  readonly #options: DownloadOptions;
  readonly #patience: Patience;
  #validator: Validator & { total: number } = { etag: null, modified: null, total: 0 };
  #ranges = new Ranges();
  #hash = new Sha256();
  /** Where the stream writes next; null while there is none. */
  #cursor: number | null = null;
  #ranged = true;
  #ifRange = false;
  #waiting: Waiting[] = [];
  #failure: { error: unknown } | null = null;
  #asides: Promise<unknown> = Promise.resolve();
  #unsaved = 0;
  #savedAt = 0;
  #open = true;
  #pump: Promise<void> = Promise.resolve();
  #placed: () => void = () => undefined;
  /** Resolves when the download has its turn, or has read the header and waits for its turn. */
  readonly placed = new Promise<void>((resolve) => {
    this.#placed = resolve;
  });

  private constructor(target: Target, part: PartFile, options: DownloadOptions) {
    this.target = target;
    this.#part = part;
    this.#options = options;
    this.#patience = new Patience(options.signal, part.left?.ranges.bytes ?? 0);
  }

  /** Makes first contact; resolves when the file's length is known and its bytes are coming. */
  static async start(target: Target, part: PartFile, options: DownloadOptions): Promise<Download> {
    const download = new Download(target, part, options);
    try {
      const reply = await download.#begin();
      download.#pump = download.#run(reply);
      download.#pump.catch(() => undefined);
      return download;
    } catch (error) {
      download.close();
      throw error;
    }
  }

  get len(): number {
    return this.#validator.total;
  }

  /** The version that is being fetched. */
  get validator(): Validator {
    return this.#validator;
  }

  /** Bytes that are not there yet. */
  get missing(): number {
    return this.len - this.#ranges.bytes;
  }

  /** The hash of what has come in order, to be gone on with elsewhere. */
  get hash(): Sha256 {
    return Sha256.resume(this.#hash.save()) ?? new Sha256();
  }

  async read(offset: number, length: number): Promise<Uint8Array> {
    checkRange(offset, length, this.len);
    while (!this.#ranges.covers(offset, offset + length)) {
      if (this.#failure) throw this.#failure.error;
      await this.#arrival(offset, offset + length);
    }
    return readAll(this.#part.data, offset, length);
  }

  /** Resolves with the sha256 when every byte is there and flushed. */
  async finish(): Promise<string> {
    await this.#pump;
    return this.#hash.hex();
  }

  /** Closes the files after noting what arrived: the download can be taken up again. */
  async stop(): Promise<void> {
    await this.#pump.catch(() => undefined);
    await this.#asides;
    try {
      if (this.#open && this.len > 0) this.#save();
    } catch {
      // Storage that fails now has the older slot of the journal.
    }
    this.close();
  }

  close(): void {
    if (!this.#open) return;
    this.#open = false;
    this.#part.data.close();
    this.#part.journal.close();
  }

  /** Takes up what is there, or starts over; the answer to the first request, or null when nothing is missing. */
  async #begin(): Promise<Reply | null> {
    const { left } = this.#part;
    if (left && this.#fits(left)) {
      [this.#ranges, this.#hash, this.#validator] = [left.ranges, left.hash, left.validator];
      if (this.missing === 0) return null;
    } else {
      this.#startOver();
    }
    for (let attempt = 1; ; ) {
      try {
        return await this.#contact(attempt);
      } catch (error) {
        const stale = error instanceof FiresideError && error.code === "source.changed" && this.#ranges.bytes > 0;
        attempt = stale ? 1 : attempt + 1;
        if (stale) this.#startOver();
        else await this.#patience.failed(error);
      }
    }
  }

  /** Whether an earlier download may be gone on with: same place, bytes there, and some way to know that it is the same file. */
  #fits(left: NonNullable<PartFile["left"]>): boolean {
    const end = left.ranges.save().at(-1)?.[1] ?? 0;
    const complete = left.ranges.bytes === left.validator.total;
    const same = complete || this.#options.certain || identifies(left.validator);
    return left.source === this.target.url && same && this.#part.data.getSize() >= end;
  }

  #startOver(): void {
    try {
      this.#part.journal.clear();
      this.#part.data.truncate(0);
    } catch (error) {
      throw storageError(error, "The download could not be started over");
    }
    this.#ranges = new Ranges();
    this.#hash = new Sha256();
    this.#validator = { etag: null, modified: null, total: 0 };
  }

  async #contact(attempt: number): Promise<Reply> {
    const resumed = this.#ranges.bytes > 0;
    const { signal } = this.#options;
    const [start = 0, end = null] = resumed ? (this.#ranges.gap(0, this.len) ?? []) : [];
    const range = { start, end: end === this.len ? null : end };
    const reply =
      attempt === 2 && !resumed
        ? await askWhole(this.target, signal, null)
        : await ask(this.target, range, signal, resumed ? this.#validator : null, sameOrigin(this.target.url));
    this.#ranged = reply.partial;
    this.#ifRange = reply.sameOrigin;
    if (resumed && !this.#options.certain && !identifies(reply.validator)) {
      reply.close();
      throw changed(this.target.url, this.#validator, reply.validator);
    }
    if (resumed) {
      await this.#options.room(this.missing);
      return reply;
    }
    const { total } = reply.validator;
    this.#validator = { ...reply.validator, total: total ?? 0 };
    if (total === null) return this.#whole(reply);
    try {
      await this.#options.room(total);
    } catch (error) {
      reply.close();
      throw error;
    }
    return reply;
  }

  /** A body of unknown length is the file when it has ended without an error. */
  async #whole(reply: Reply): Promise<Reply> {
    let at = 0;
    for (let bytes = await reply.next(); bytes; bytes = await reply.next()) {
      if (at === 0) refuseOther(this.target.url, bytes, reply.contentType);
      this.#write(at, bytes);
      at += bytes.length;
      this.#options.onBytes(at, at);
    }
    // An earlier attempt may have come further.
    this.#part.data.truncate(at);
    this.#validator.total = at;
    this.#ranges.add(0, at);
    this.#hashUpTo(at);
    return reply;
  }

  async #run(first: Reply | null): Promise<void> {
    let reply = first;
    let release: (() => void) | null = this.#options.permits.now();
    try {
      if (!release && reply) {
        await this.#stream(reply, PEEK_BYTES).catch(() => undefined);
        reply.close();
        reply = null;
        this.#cursor = null;
      }
      this.#placed();
      release ??= await this.#options.permits.next(this.#options.signal);
      for (let gap = this.#ranges.gap(0, this.len); gap; gap = this.#ranges.gap(0, this.len)) {
        try {
          reply ??= await this.#ask(gap[0], gap[1]);
          await this.#stream(reply, this.len);
        } catch (error) {
          reply?.close();
          await this.#patience.failed(error);
        } finally {
          reply = null;
          this.#cursor = null;
        }
      }
      reply?.close();
      await this.#asides;
      // A damaged copy that was taken up may be too long.
      if (this.#part.data.getSize() > this.len) this.#part.data.truncate(this.len);
      this.#save();
    } catch (error) {
      this.#fail(error);
      throw error;
    } finally {
      this.#placed();
      release?.();
    }
  }

  async #ask(gapStart: number, end: number): Promise<Reply> {
    const known = identifies(this.#validator) || !this.#ranges.covers(Math.max(0, gapStart - OVERLAP_BYTES), gapStart);
    const start = known ? gapStart : Math.max(0, gapStart - OVERLAP_BYTES);
    const range = { start, end: end === this.len ? null : end };
    const reply = await ask(this.target, range, this.#options.signal, this.#validator, this.#ifRange);
    this.#ranged = reply.partial;
    return reply;
  }

  /** Writes a body to its end, to `limit`, or to where a long stretch is there already. */
  async #stream(reply: Reply, limit: number): Promise<void> {
    this.#cursor = reply.start;
    while (this.#cursor < limit) {
      const bytes: Uint8Array | null = await reply.next();
      if (bytes === null) {
        if (this.#ranges.gap(this.#cursor, this.len)?.[0] === this.#cursor) throw truncated(this.target.url, this.len, this.#cursor);
        return;
      }
      this.#take(this.#cursor, bytes, reply.contentType);
      this.#cursor += bytes.length;
      const next = this.#ranges.gap(this.#cursor, this.len);
      if (!next || (this.#ranged && next[0] > this.#cursor + AHEAD_BYTES)) break;
    }
    reply.close();
  }

  /** One piece of a body: checked, written, hashed, told. */
  #take(at: number, bytes: Uint8Array, contentType: string | null): void {
    if (at === 0) refuseOther(this.target.url, bytes, contentType);
    if (at + bytes.length > this.len) {
      const details = { url: this.target.url, expected: this.len, got: at + bytes.length };
      throw new FiresideError("http.wrong_length", `${this.target.url} gave more bytes than it announced.`, details);
    }
    this.#compare(at, bytes);
    if (this.#ranges.covers(at, at + bytes.length)) return;
    this.#write(at, bytes);
    const before = this.#ranges.bytes;
    this.#ranges.add(at, at + bytes.length);
    if (this.#hash.bytes >= at && this.#hash.bytes < at + bytes.length) this.#hash.update(bytes.subarray(this.#hash.bytes - at));
    this.#hashUpTo(this.#ranges.prefix);
    const fresh = this.#ranges.bytes - before;
    this.#patience.progressed(fresh);
    this.#unsaved += fresh;
    this.#saveNowAndThen();
    this.#wake();
    this.#options.onBytes(this.#ranges.bytes, this.len);
  }

  /** What comes a second time from a server that shows no version must be what came the first time. */
  #compare(at: number, bytes: Uint8Array): void {
    if (identifies(this.#validator)) return;
    const known = Math.min(bytes.length, (this.#ranges.gap(at, this.len)?.[0] ?? this.len) - at);
    if (known === 0 || sameBytes(readAll(this.#part.data, at, known), bytes.subarray(0, known))) return;
    throw changed(this.target.url, this.#validator, null);
  }

  #write(at: number, bytes: Uint8Array): void {
    try {
      writeAll(this.#part.data, bytes, at);
    } catch (error) {
      throw storageError(error, "The download could not be written");
    }
  }

  /** Hashes what came out of order, read back from the file. */
  #hashUpTo(end: number): void {
    while (this.#hash.bytes < end) {
      this.#hash.update(readAll(this.#part.data, this.#hash.bytes, Math.min(HASH_BYTES, end - this.#hash.bytes)));
    }
  }

  #saveNowAndThen(): void {
    const due = this.#unsaved >= tuning.journalBytes || Date.now() - this.#savedAt >= tuning.journalMs;
    if (due) this.#save();
  }

  /** Data before journal: what the journal says is there, is there. */
  #save(): void {
    try {
      this.#part.data.flush();
      this.#part.journal.write({
        id: this.#options.id,
        source: this.target.url,
        files: this.#options.files,
        validator: this.#validator,
        ranges: this.#ranges.save(),
        hash: this.#hash.save(),
      });
    } catch (error) {
      throw storageError(error, "The download's journal could not be written");
    }
    this.#unsaved = 0;
    this.#savedAt = Date.now();
  }

  /** Resolves when more has arrived that may cover the range. */
  async #arrival(start: number, end: number): Promise<void> {
    const missing = this.#ranges.gap(start, end)?.[0] ?? start;
    const coming = this.#cursor !== null && missing >= this.#cursor && missing <= this.#cursor + AHEAD_BYTES;
    if (this.#ranged && !coming && this.#cursor !== null) {
      await this.#aside(missing, end);
      return;
    }
    await new Promise<void>((resolve, reject) => {
      this.#waiting.push({ start: missing, end, resolve, reject });
    });
  }

  /** A range far from the stream, by a request of its own; one at a time. */
  #aside(start: number, end: number): Promise<void> {
    const work = this.#asides.then(async () => {
      const patience = new Patience(this.#options.signal, this.#ranges.bytes);
      for (let gap = this.#ranges.gap(start, end); gap; gap = this.#ranges.gap(start, end)) {
        try {
          const [from, to] = gap;
          const reply = await ask(this.target, { start: from, end: to }, this.#options.signal, this.#validator, this.#ifRange);
          let at = reply.start;
          for (let bytes = await reply.next(); bytes && at < to; bytes = await reply.next()) {
            this.#take(at, bytes.subarray(0, to - at), reply.contentType);
            at += bytes.length;
            patience.progressed(bytes.length);
          }
          reply.close();
          if (at < to) throw truncated(this.target.url, to, at);
        } catch (error) {
          await patience.failed(error);
        }
      }
    });
    this.#asides = work.catch(() => undefined);
    return work;
  }

  #wake(): void {
    const ready = this.#waiting.filter(({ start, end }) => this.#ranges.covers(start, end));
    if (ready.length === 0) return;
    this.#waiting = this.#waiting.filter((waiting) => !ready.includes(waiting));
    for (const { resolve } of ready) resolve();
  }

  #fail(error: unknown): void {
    this.#failure = { error };
    const waiting = this.#waiting;
    this.#waiting = [];
    for (const { reject } of waiting) reject(error);
  }
}

function sameOrigin(url: string): boolean {
  return typeof location !== "undefined" && new URL(url, location.href).origin === location.origin;
}
