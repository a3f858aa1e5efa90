/** Where chunks wait for their reader. What fills it is the producer's; how it ends, and when, is decided here. */

/** What a queue tells its producer. */
export interface Hooks<T> {
  /** A reader waits and nothing is there. */
  wanted?(): void;
  /** A reader took this. */
  taken?(item: T): void;
  /** The reader left before the end. */
  left?(): void;
  /** Nothing is read or waited for any more, whatever the reason. */
  over?(): void;
}

interface Waiting<T> {
  resolve: (result: IteratorResult<T, undefined>) => void;
  reject: (error: unknown) => void;
  /** Kept alive for as long as it waits. */
  reader: Reader<T>;
}

/** What ends a queue: an error, or nothing but the end. */
export type End = { error: unknown } | "end";

const DONE = { done: true, value: undefined } as const;

/** One reader's queue. Reads may overlap; they are answered in order. */
export class Queue<T> {
  readonly #hooks: Hooks<T>;
  readonly #items: T[] = [];
  readonly #readers: Waiting<T>[] = [];
  readonly #cuts: ((end: End) => void)[] = [];
  #end: End | null = null;
  #over = false;

  constructor(hooks: Hooks<T> = {}) {
    this.#hooks = hooks;
  }

  /** Adds a chunk, unless the end was told. */
  push(item: T): void {
    if (this.#end) return;
    const reader = this.#readers.shift();
    if (!reader) {
      this.#items.push(item);
      return;
    }
    this.#hooks.taken?.(item);
    reader.resolve({ done: false, value: item });
  }

  /** The end, after what is waiting to be read: with an error, or without. */
  close(end: End): void {
    if (this.#end) return;
    this.#end = end;
    if (this.#items.length === 0 && this.#readers.length > 0) this.#finish();
  }

  /** The end now: what was not read is dropped, and whoever waits is told. */
  cut(end: End): void {
    if (this.#over) return;
    this.#items.length = 0;
    this.#end = end;
    this.#finish(end !== "end" && this.#readers.length === 0);
    for (const tell of this.#cuts) tell(end);
  }

  /** Whoever must end when this is cut. */
  onCut(tell: (end: End) => void): void {
    this.#cuts.push(tell);
  }

  /** The reader leaves: nothing is thrown at it. */
  leave(): void {
    if (this.#over) {
      this.#end = "end";
      return;
    }
    this.cut("end");
    this.#hooks.left?.();
  }

  /** The next chunk, the end, or the error that ends it: that once. */
  next(reader: Reader<T>): Promise<IteratorResult<T, undefined>> {
    if (this.#items.length > 0) {
      const value = this.#items.shift() as T;
      this.#hooks.taken?.(value);
      return Promise.resolve({ done: false, value });
    }
    return new Promise((resolve, reject) => {
      this.#readers.push({ resolve, reject, reader });
      if (this.#end) this.#finish();
      else this.#hooks.wanted?.();
    });
  }

  /** Answers those who wait: an error goes to the first of them, or stays for the next one. */
  #finish(keep = false): void {
    const end = this.#end;
    for (const [i, reader] of this.#readers.splice(0).entries()) {
      if (i === 0 && end !== "end" && end !== null) reader.reject(end.error);
      else reader.resolve(DONE);
    }
    if (!keep) this.#end = "end";
    if (!this.#over) {
      this.#over = true;
      this.#hooks.over?.();
    }
  }
}

/** Requests whose streams were dropped unread would hold their place in the engine for ever. */
const dropped = new FinalizationRegistry<{ leave(): void }>((queue) => {
  queue.leave();
});

/** The reading end of a queue. When nobody holds it any more, and nothing is being waited for, the queue is left. */
export class Reader<T> {
  readonly #queue: Queue<T>;

  constructor(queue: Queue<T>) {
    this.#queue = queue;
    dropped.register(this, queue);
  }

  next(): Promise<IteratorResult<T, undefined>> {
    return this.#queue.next(this);
  }

  leave(): void {
    this.#queue.leave();
  }

  onCut(tell: (end: End) => void): void {
    this.#queue.onCut(tell);
  }
}
