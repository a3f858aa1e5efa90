/** A number of permits, handed out in the order they were asked for: how many downloads run at the same time. */
export class Permits {
  #free: number;
  readonly #queue: (() => void)[] = [];

  constructor(count: number) {
    this.#free = count;
  }

  /** A permit if one is free now: the function gives it back. */
  now(): (() => void) | null {
    if (this.#free === 0) return null;
    this.#free--;
    return this.#once();
  }

  /** A permit when one is free; rejects with the signal's reason. */
  async next(signal: AbortSignal): Promise<() => void> {
    signal.throwIfAborted();
    const permit = this.now();
    if (permit) return permit;
    return new Promise((resolve, reject) => {
      const grant = (): void => {
        signal.removeEventListener("abort", stop);
        resolve(this.#once());
      };
      const stop = (): void => {
        this.#queue.splice(this.#queue.indexOf(grant), 1);
        reject(signal.reason);
      };
      this.#queue.push(grant);
      signal.addEventListener("abort", stop, { once: true });
    });
  }

  /** A permit goes to the next in the queue, or back. */
  #once(): () => void {
    let given = false;
    return () => {
      if (given) return;
      given = true;
      const next = this.#queue.shift();
      if (next) next();
      else this.#free++;
    };
  }
}
