/** Progress over several files as one figure that never goes back. */
import type { LoadProgress } from "../types.js";

/** What is told of bytes on their way. */
export type OnProgress = (progress: LoadProgress) => void;

/** Adds up what each file has; a file that starts over does not take back what was told. */
export class Progress {
  readonly #phase: LoadProgress["phase"];
  readonly #fromCache: boolean;
  readonly #send: OnProgress;
  readonly #loaded: number[];
  readonly #total: number[];

  constructor(phase: LoadProgress["phase"], files: number, fromCache: boolean, send: OnProgress) {
    this.#phase = phase;
    this.#fromCache = fromCache;
    this.#send = send;
    this.#loaded = new Array<number>(files).fill(0);
    this.#total = new Array<number>(files).fill(0);
  }

  /** The reporter of one file. */
  of(index: number, file: string): (loaded: number, total: number) => void {
    return (loaded, total) => {
      this.#loaded[index] = Math.max(this.#loaded[index] ?? 0, loaded);
      this.#total[index] = Math.max(total, this.#loaded[index]);
      const sum = (list: number[]): number => list.reduce((a, b) => a + b, 0);
      const progress = { phase: this.#phase, loaded: sum(this.#loaded), total: sum(this.#total), fromCache: this.#fromCache };
      this.#send(file === "" ? progress : { ...progress, file });
    };
  }
}
