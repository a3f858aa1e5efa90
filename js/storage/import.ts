/** Copies files of the page (Blobs) into storage: hashed on the way, committed like a download. Not resumable, and quick. */
import { Progress } from "../source/progress.js";
import { BlobSource } from "../source/blob.js";
import { Sha256 } from "../source/sha256.js";
import type { StoredModel } from "../types.js";
import type { Library } from "./library.js";
import { hold, writeLock } from "./locks.js";
import type { Hooks, Want } from "./opened.js";
import { checkDigest } from "./opened.js";
import { storageError, writeAll } from "./opfs.js";
import type { StoredFile } from "./record.js";
import { folderKey } from "./record.js";

const PIECE_BYTES = 4 * 1024 * 1024;

/** Stores the files under an id. */
export async function importFiles(library: Library, blobs: readonly Blob[], id: string, want: Want, hooks: Hooks): Promise<StoredModel> {
  const names = blobs.map((_, index) => `file:${id}#${String(index)}`);
  const key = folderKey(names);
  const release = await hold(writeLock(key), { signal: hooks.signal });
  try {
    await library.begin(key);
    const progress = new Progress("download", blobs.length, false, hooks.onProgress);
    const files: StoredFile[] = [];
    for (const [index, blob] of blobs.entries()) {
      const source = names[index] ?? "";
      const sha256 = await copy(library, key, index, blob, hooks.signal, progress.of(index, source));
      checkDigest(source, want.integrity?.[index], sha256);
      files.push({ source, bytes: blob.size, sha256 });
    }
    return await library.describe(await library.commit(key, { id, files, addedAt: Date.now() }));
  } catch (error) {
    await library.drop(key).catch(() => undefined);
    throw hooks.signal.aborted ? hooks.signal.reason : storageError(error, "The file could not be stored");
  } finally {
    release?.();
  }
}

async function copy(
  library: Library,
  key: string,
  index: number,
  blob: Blob,
  signal: AbortSignal,
  onBytes: (loaded: number, total: number) => void,
): Promise<string> {
  const { data, journal } = await library.openPart(key, index);
  try {
    data.truncate(0);
    journal.clear();
    const source = new BlobSource(blob);
    const hash = new Sha256();
    while (hash.bytes < blob.size) {
      signal.throwIfAborted();
      const at = hash.bytes;
      const bytes = await source.read(at, Math.min(PIECE_BYTES, blob.size - at));
      writeAll(data, bytes, at);
      hash.update(bytes);
      onBytes(hash.bytes, blob.size);
    }
    data.flush();
    return hash.hex();
  } finally {
    data.close();
    journal.close();
  }
}
