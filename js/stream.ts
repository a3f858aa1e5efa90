/** The public Stream: one queue of chunks, read as an iterator, a ReadableStream of objects or of bytes, or by two readers. */
import { FiresideError } from "./errors.js";
import type { Stream } from "./openai-types.js";
import { Queue, Reader } from "./queue.js";

/** See the contract's `Stream`. */
export class ChunkStream<T> implements Stream<T> {
  /** Aborting it ends the request quietly, for both branches of a tee. */
  readonly controller: AbortController;
  readonly #reader: Reader<T>;
  #claimed = false;
  #readable: ReadableStream<T> | undefined;

  constructor(queue: Queue<T>, controller: AbortController) {
    this.#reader = new Reader(queue);
    this.controller = controller;
  }

  /** Once: a second iterator rejects with `stream.consumed`. */
  [Symbol.asyncIterator](): AsyncIterableIterator<T, undefined, undefined> {
    const reader = this.#claim();
    const iterator: AsyncIterableIterator<T, undefined, undefined> = {
      next: () => (reader ? reader.next() : Promise.reject(consumed())),
      return: () => {
        reader?.leave();
        return Promise.resolve({ done: true, value: undefined });
      },
      throw: (error: unknown) => {
        reader?.leave();
        return Promise.reject(error);
      },
      [Symbol.asyncIterator]: () => iterator,
    };
    return iterator;
  }

  /** The chunks as objects. Reading it is the one iteration; asking for it is not. */
  get readable(): ReadableStream<T> {
    this.#readable ??= this.#pulled((chunk) => chunk);
    return this.#readable;
  }

  cancel(): Promise<void> {
    this.#reader.leave();
    return Promise.resolve();
  }

  /** Two streams of the same chunks. The faster one sets the pace; what the slower one has not read is kept for it. */
  tee(): [Stream<T>, Stream<T>] {
    const source = this.#claim();
    let pulling = false;
    let left = 0;
    const pull = (): void => {
      if (pulling || !source) return;
      pulling = true;
      source.next().then(
        (result) => {
          pulling = false;
          for (const branch of branches) {
            if (result.done) branch.close("end");
            else branch.push(result.value);
          }
        },
        (error: unknown) => {
          for (const branch of branches) branch.close({ error });
        },
      );
    };
    const hooks = {
      wanted: pull,
      left: () => {
        if (++left === 2) source?.leave();
      },
    };
    const branches = [new Queue<T>(hooks), new Queue<T>(hooks)] as const;
    if (source) {
      source.onCut((end) => {
        for (const branch of branches) branch.cut(end);
      });
    } else {
      for (const branch of branches) branch.close({ error: consumed() });
    }
    return [new ChunkStream(branches[0], this.controller), new ChunkStream(branches[1], this.controller)];
  }

  /** The chunks as lines of JSON, in UTF-8: what the OpenAI SDK's `Stream.fromReadableStream` reads. */
  toReadableStream(): ReadableStream<Uint8Array> {
    const encoder = new TextEncoder();
    return this.#pulled((chunk) => encoder.encode(`${JSON.stringify(chunk)}\n`));
  }

  /** Nothing is read ahead: a chunk counts as read when somebody asked for it. */
  #pulled<U>(encode: (chunk: T) => U): ReadableStream<U> {
    let iterator: AsyncIterableIterator<T, undefined, undefined> | undefined;
    return new ReadableStream<U>(
      {
        pull: async (controller) => {
          iterator ??= this[Symbol.asyncIterator]();
          const result = await iterator.next();
          if (result.done) controller.close();
          else controller.enqueue(encode(result.value));
        },
        cancel: async () => {
          iterator ??= this[Symbol.asyncIterator]();
          await iterator.return?.();
        },
      },
      { highWaterMark: 0 },
    );
  }

  #claim(): Reader<T> | null {
    if (this.#claimed) return null;
    this.#claimed = true;
    return this.#reader;
  }
}

function consumed(): FiresideError {
  return new FiresideError("stream.consumed", "A stream is read once; tee() it before reading to read it twice.");
}
