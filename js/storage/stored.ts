/** A model that is stored already: read from snapshots of its files, checked only when the caller gives a sha256. */
import { BlobSource } from "../source/blob.js";
import { hashOf } from "../source/whole.js";
import { Progress } from "../source/progress.js";
import type { Library, Found } from "./library.js";
import { hold, readLock } from "./locks.js";
import type { Hooks, Opened } from "./opened.js";
import { checkDigest, joined } from "./opened.js";

/** A file whose reads are told as progress. */
class WatchedBlob extends BlobSource {
  readonly #onRead: (end: number, total: number) => void;

  constructor(file: File, name: string, onRead: (end: number, total: number) => void) {
    super(file, name);
    this.#onRead = onRead;
  }

  override async read(offset: number, length: number): Promise<Uint8Array> {
    const bytes = await super.read(offset, length);
    this.#onRead(offset + length, this.len);
    return bytes;
  }
}

/**
 * Opens a stored model; null when it is being removed. With `integrity` every byte is hashed first; a model that fails is removed, and
 * the error is thrown. `owned`: the caller holds the model's write lock.
 */
export async function openStored(
  library: Library,
  found: Found,
  integrity: string[] | null,
  hooks: Hooks,
  owned = false,
): Promise<Opened | null> {
  const release = await hold(readLock(found.key), { mode: "shared", ifAvailable: true });
  if (!release) return null;
  if (integrity) {
    try {
      await verify(found, integrity, hooks);
    } catch (error) {
      release();
      if (!hooks.signal.aborted) await library.dropUnused(found.key, found.record.id, owned);
      throw error;
    }
  }
  const progress = new Progress("download", found.files.length, true, hooks.onProgress);
  const tellers = found.record.files.map(({ source }, index) => progress.of(index, source));
  found.files.forEach((file, index) => tellers[index]?.(0, file.size));
  const sources = found.files.map((file, index) => {
    return new WatchedBlob(file, found.record.files[index]?.source ?? "", tellers[index] ?? (() => undefined));
  });
  const end = (): void => {
    for (const source of sources) source.release();
    release();
  };
  return {
    bytes: joined(sources),
    id: found.record.id,
    fromCache: true,
    async finish() {
      found.files.forEach((file, index) => tellers[index]?.(file.size, file.size));
      end();
      // Nobody waits for the note of when it was used.
      void library.touch(found.key);
      return library.describe(found);
    },
    abandon() {
      end();
      return Promise.resolve();
    },
  };
}

async function verify({ record, files }: Found, integrity: string[], hooks: Hooks): Promise<void> {
  const progress = new Progress("verify", files.length, true, hooks.onProgress);
  for (const [index, { source, sha256 }] of record.files.entries()) {
    // The record knows the hash that the file had: where that differs there is no need to read it again.
    checkDigest(source, integrity[index], sha256);
    const file = files[index];
    if (file) checkDigest(source, integrity[index], await hashOf(new BlobSource(file, source), hooks.signal, progress.of(index, source)));
  }
}
