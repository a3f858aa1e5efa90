/** Small parts of loading: progress at a steady pace, and a source that remembers what it threw. */
import type { LoadProgress } from "./types.js";
import type { ByteSource } from "./wasm/fireside.js";

/** Progress is told at most this often. */
const PROGRESS_MS = 50;

/** Passes progress on at a pace that a page can draw; the latest is never lost, only late. */
export class Pace {
  readonly #send: (progress: LoadProgress) => void;
  #pending: LoadProgress | null = null;
  #timer: ReturnType<typeof setTimeout> | null = null;
  #told = -Infinity;

  constructor(send: (progress: LoadProgress) => void) {
    this.#send = send;
  }

  tell(progress: LoadProgress): void {
    if (this.#pending && this.#pending.phase !== progress.phase) this.flush();
    this.#pending = progress;
    const wait = this.#told + PROGRESS_MS - performance.now();
    if (wait <= 0) this.flush();
    else this.#timer ??= setTimeout(() => {
      this.flush();
    }, wait);
  }

  flush(): void {
    if (this.#timer !== null) clearTimeout(this.#timer);
    this.#timer = null;
    const pending = this.#pending;
    this.#pending = null;
    if (!pending) return;
    this.#told = performance.now();
    this.#send(pending);
  }
}

/** A source whose error is kept as it was: on its way through wasm it loses its class and what it may hold. */
export class Watched implements ByteSource {
  /** The first error of a read. */
  failure: { error: unknown } | null = null;
  readonly #source: ByteSource;

  constructor(source: ByteSource) {
    this.#source = source;
  }

  get len(): number {
    return this.#source.len;
  }

  get files(): number[] {
    return this.#source.files ?? [this.#source.len];
  }

  async read(offset: number, length: number): Promise<Uint8Array> {
    try {
      return await this.#source.read(offset, length);
    } catch (error) {
      this.failure ??= { error };
      throw error;
    }
  }
}
