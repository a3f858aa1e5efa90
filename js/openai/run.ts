/** Runs the parts of an OpenAI-shaped call: to one answer, or as a stream of chunks paced by its reader. */
import type { Client } from "../client.js";
import type { WirePart, WireToken } from "../protocol.js";
import { Queue } from "../queue.js";
import type { Limits, Request } from "../request.js";
import { ChunkStream } from "../stream.js";

/** Hands a chunk to the reader; `part` when reading it means that one more of that part's tokens was read. */
export type Emit<C> = (chunk: C, part?: number) => void;

/** Makes chunks of what comes. Every token must be emitted with its part once, sooner or later. */
export interface Shaper<C> {
  token(part: number, token: WireToken, emit: Emit<C>): void;
  done(part: number, value: unknown, emit: Emit<C>): void;
  /** Every part is done. */
  end(emit: Emit<C>): void;
}

/** Resolves when the engine has taken the request: what it refuses rejects here, before there is a stream. */
export async function openStream<C extends object>(
  client: Client,
  parts: readonly WirePart[],
  limits: Limits,
  shaper: Shaper<C>,
): Promise<ChunkStream<C>> {
  const { signal } = limits;
  signal?.throwIfAborted();
  const controller = new AbortController();
  const credits = new WeakMap<C, number>();
  const cut = (): void => {
    queue.cut({ error: signal?.reason as unknown });
  };
  const queue: Queue<C> = new Queue<C>({
    taken(chunk) {
      const part = credits.get(chunk);
      if (part !== undefined) request.read(part, 1);
    },
    left() {
      request.cancel();
    },
    over() {
      signal?.removeEventListener("abort", cut);
    },
  });
  signal?.addEventListener("abort", cut, { once: true });
  controller.signal.addEventListener("abort", () => {
    queue.leave();
  });
  const emit: Emit<C> = (chunk, part) => {
    if (part !== undefined) credits.set(chunk, part);
    queue.push(chunk);
  };
  let left = parts.length;
  const request: Request = client.open(
    parts,
    {
      token(part, value) {
        shaper.token(part, value as WireToken, emit);
      },
      done(part, value) {
        shaper.done(part, value, emit);
        if (--left > 0) return;
        shaper.end(emit);
        queue.close("end");
      },
      failed(error) {
        queue.close({ error });
      },
    },
    limits,
  );
  try {
    await request.accepted;
  } catch (error) {
    queue.leave();
    throw error;
  }
  return new ChunkStream(queue, controller);
}
