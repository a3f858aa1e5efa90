/** The wasm instance of this thread: whether it can run another engine, a fresh one where it cannot, and reading headers with it. Engines are the host's. */
import { fromWire, toWire } from "./errors.js";
import { Watched } from "./load.js";
import type { Survey } from "./protocol.js";
import type { ByteSource } from "./wasm/fireside.js";
import { releaseDevice as release, survey } from "./wasm/fireside.js";
import { renewWasm, startWasm } from "./wasm-module.js";

/** Why it can run no more engines: it trapped or lost its device, or let its device go when its last engine went. */
let spent: "lost" | "released" | null = null;
let renewing: Promise<void> | null = null;
/** An engine has been asked for: there is an instance. */
let used = false;
/** Headers that are being read: they need an instance, but not a device. */
const reading = new Set<Promise<unknown>>();

/** The instance is of no more use to engines. */
export function spoil(): void {
  spent = "lost";
}

/**
 * Nobody runs in this instance: its device goes, and with it the memory of the GPU at once. Dropped buffers alone would lie there until
 * the garbage collector found them, and a device cannot be made twice in one instance.
 */
export function releaseDevice(): void {
  if (!used || spent !== null) return;
  try {
    if (release()) spent = "released";
  } catch {
    // It has trapped before: nothing that it does counts any more.
    spoil();
  }
}

/** Makes the instance usable again, once for all who load meanwhile. */
export async function freshInstance(): Promise<void> {
  used = true;
  if (spent === null) return;
  // Whoever reads a header in an instance that works is let finish.
  renewing ??= (spent === "released" ? Promise.allSettled(reading) : Promise.resolve())
    .then(() => renewWasm())
    .then(() => {
      spent = null;
    })
    .finally(() => {
      renewing = null;
    });
  await renewing;
}

/** A model's header, read by the engine's own reader. */
export async function readHeader(source: ByteSource): Promise<Survey> {
  await startWasm(null, new AbortController().signal);
  const bytes = new Watched(source);
  const work = survey(bytes);
  reading.add(work);
  try {
    return JSON.parse(await work) as Survey;
  } catch (thrown) {
    throw bytes.failure?.error ?? asError(thrown);
  } finally {
    reading.delete(work);
  }
}

/** What wasm threw, as an error with its code. */
export function asError(thrown: unknown): unknown {
  if (thrown instanceof Error) return thrown;
  return fromWire(toWire(thrown));
}
