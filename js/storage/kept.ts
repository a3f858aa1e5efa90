/** A file that is downloaded into storage while it is read, and goes on without storage when storage gives up.
 *
 * What had arrived is read from the part file, the rest from the network, so the reader never notices; `lost` says why nothing is
 * kept. Only storage's own errors are passed over like this.
 */
import { FiresideError } from "../errors.js";
import type { HashedSource, OnBytes } from "../source/http.js";
import { openUrl } from "../source/http.js";
import type { Download } from "./download.js";

function isStorage(error: unknown): boolean {
  return error instanceof FiresideError && error.code.startsWith("storage.");
}

/** One file of a model that is being kept. */
export class KeptFile implements HashedSource {
  readonly #download: Download;
  readonly #signal: AbortSignal;
  readonly #onBytes: OnBytes;
  readonly #onLost: (error: FiresideError, missing: number) => void;
  #rest: Promise<HashedSource> | null = null;

  constructor(download: Download, signal: AbortSignal, onBytes: OnBytes, onLost: (error: FiresideError, missing: number) => void) {
    this.#download = download;
    this.#signal = signal;
    this.#onBytes = onBytes;
    this.#onLost = onLost;
  }

  get len(): number {
    return this.#download.len;
  }

  get lost(): boolean {
    return this.#rest !== null;
  }

  async read(offset: number, length: number): Promise<Uint8Array> {
    try {
      return await this.#download.read(offset, length);
    } catch (error) {
      return (await this.#goOn(error)).read(offset, length);
    }
  }

  /** Resolves with the sha256 once every byte has been seen, wherever it went. */
  async digest(): Promise<string> {
    try {
      return await this.#download.finish();
    } catch (error) {
      return (await this.#goOn(error)).digest();
    }
  }

  /** Waits for the download to end; false when storage gave up. */
  async settled(): Promise<boolean> {
    try {
      await this.#download.finish();
      return true;
    } catch (error) {
      if (!isStorage(error)) throw error;
      if (!this.#rest) this.#onLost(error as FiresideError, this.#download.missing);
      return false;
    }
  }

  stop(): Promise<void> {
    return this.#download.stop();
  }

  #goOn(error: unknown): Promise<HashedSource> {
    if (!isStorage(error)) throw error;
    if (!this.#rest) {
      const { target, validator, missing, hash } = this.#download;
      this.#onLost(error as FiresideError, missing);
      const options = { signal: this.#signal, onBytes: this.#onBytes, expect: validator, hash };
      this.#rest = openUrl(target, options);
    }
    return this.#rest;
  }
}
