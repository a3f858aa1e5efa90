/** A model that is downloaded into storage while it is read: one tab at a time, committed when all is there and right. */
import { FiresideError } from "../errors.js";
import type { OnProgress } from "../source/progress.js";
import { Progress } from "../source/progress.js";
import { linked } from "../source/retry.js";
import { tuning } from "../source/tuning.js";
import type { StoredModel } from "../types.js";
import { Download } from "./download.js";
import { KeptFile } from "./kept.js";
import type { Library, PartFile } from "./library.js";
import type { Release } from "./locks.js";
import { hold, readLock, writeLock } from "./locks.js";
import type { Hooks, Opened, Want } from "./opened.js";
import { checkDigest, joined } from "./opened.js";
import { isHeld, storageError } from "./opfs.js";
import { Permits } from "./permits.js";
import { folderKey } from "./record.js";
import { relay } from "./relay.js";
import { room } from "./room.js";

/** A Worker that was ended may hold its files for a moment longer than its locks. */
const HANDLE_TRIES = 10;
const HANDLE_WAIT_MS = 200;

/** Errors after which nothing of a download is worth keeping: the bytes are not a model, or not the right one. */
function isSpoiled(error: unknown): boolean {
  return error instanceof FiresideError && /^(gguf|model|integrity)\.|^http\.not_a_model$|^source\.changed$/.test(error.code);
}

/** Waits until no other tab downloads this model; what that tab tells of its progress is told here meanwhile. */
export async function waitForTurn(key: string, hooks: Hooks): Promise<Release> {
  const free = await hold(writeLock(key), { ifAvailable: true });
  if (free) return free;
  const stop = relay.listen(key, hooks.onProgress);
  try {
    return (await hold(writeLock(key), { signal: hooks.signal })) ?? (() => undefined);
  } finally {
    stop();
  }
}

/** The downloads of one model's files. The caller holds the write lock, and `release` lets it go. */
export class Keeping implements Opened {
  readonly id: string;
  readonly fromCache = false;
  readonly #library: Library;
  readonly #key: string;
  readonly #urls: readonly string[];
  readonly #want: Want;
  readonly #hooks: Hooks;
  /** Ends the downloads when the caller gives up, and when the reader did. */
  readonly #downloads: AbortController;
  readonly #release: Release;
  readonly #files: KeptFile[] = [];
  readonly #tell: OnProgress;
  readonly #hush: () => void;
  #lost: FiresideError | null = null;

  private constructor(library: Library, urls: readonly string[], want: Want, hooks: Hooks, release: Release) {
    this.#library = library;
    this.#key = folderKey(urls);
    this.#urls = urls;
    this.#want = want;
    this.#hooks = hooks;
    this.#downloads = linked(hooks.signal);
    this.#release = release;
    this.id = want.id ?? urls[0] ?? "";
    const teller = relay.speak(this.#key);
    this.#hush = () => {
      teller.close();
    };
    this.#tell = (progress) => {
      hooks.onProgress(progress);
      teller.tell(progress);
    };
  }

  /** Makes contact for every file. Throws what the network says, and `storage.*` when nothing can be kept. */
  static async begin(library: Library, urls: readonly string[], headers: Record<string, string>, want: Want, hooks: Hooks, release: Release): Promise<Keeping> {
    const reading = await hold(readLock(folderKey(urls)), { mode: "shared" });
    const keeping = new Keeping(library, urls, want, hooks, () => {
      reading?.();
      release();
    });
    try {
      await library.begin(keeping.#key);
      await keeping.#start(headers);
      return keeping;
    } catch (error) {
      const storage = storageCode(error);
      await keeping.#end(storage || isSpoiled(error));
      throw error;
    }
  }

  get bytes(): ReturnType<typeof joined> {
    return joined(this.#files);
  }

  /** Why nothing is kept, once that is so. */
  get lost(): FiresideError | null {
    return this.#lost;
  }

  /** Waits for the rest, checks it, commits. Null when storage gave up on the way; a file that is not the right one is an error. */
  async finish(): Promise<StoredModel | null> {
    const hashes: string[] = [];
    let kept = true;
    try {
      for (const [index, file] of this.#files.entries()) {
        kept = (await file.settled()) && kept;
        if (!kept && !this.#want.integrity) continue;
        const got = await file.digest();
        checkDigest(this.#urls[index] ?? "", this.#want.integrity?.[index], got);
        hashes.push(got);
      }
    } catch (error) {
      await this.abandon(error);
      throw error;
    }
    if (!kept) {
      await this.#end(true);
      return null;
    }
    return this.#commit(hashes);
  }

  async abandon(error: unknown): Promise<void> {
    await this.#end(this.#lost !== null || isSpoiled(error));
  }

  async #start(headers: Record<string, string>): Promise<void> {
    const progress = new Progress("download", this.#urls.length, false, this.#tell);
    const permits = new Permits(tuning.connections);
    for (const [index, url] of this.#urls.entries()) {
      const onBytes = progress.of(index, url);
      const download = await Download.start({ url, headers }, await this.#openPart(index), {
        id: this.id,
        files: this.#urls.length,
        signal: this.#downloads.signal,
        onBytes,
        permits,
        room,
        certain: this.#want.integrity !== null,
      });
      onBytes(download.len - download.missing, download.len);
      // What one file fails of the model fails of: the reader is told at once, whichever file it is waiting for.
      download.finish().catch((error: unknown) => {
        if (!storageCode(error)) this.#downloads.abort(error);
      });
      // The next file is asked for when this one streams or waits: so many connections at most.
      await download.placed;
      this.#files.push(
        new KeptFile(download, this.#downloads.signal, onBytes, (error, missing) => {
          this.#lose(error, missing);
        }),
      );
    }
  }

  async #openPart(index: number): Promise<PartFile> {
    for (let tries = 1; ; tries++) {
      try {
        return await this.#library.openPart(this.#key, index);
      } catch (error) {
        if (!isHeld(error) || tries === HANDLE_TRIES) throw storageError(error, "The file to download into could not be opened");
        await new Promise((resolve) => setTimeout(resolve, HANDLE_WAIT_MS));
      }
    }
  }

  #lose(error: FiresideError, missing: number): void {
    if (this.#lost) return;
    this.#lost = new FiresideError(error.code, error.message, { ...error.details, missing, id: this.id }, { cause: error });
    this.#hooks.onWarning(lostWarning(this.#lost));
  }

  async #commit(hashes: string[]): Promise<StoredModel | null> {
    const files = this.#urls.map((source, index) => ({ source, bytes: this.#files[index]?.len ?? 0, sha256: hashes[index] ?? "" }));
    try {
      await Promise.all(this.#files.map((file) => file.stop()));
      const found = await this.#library.commit(this.#key, { id: this.id, files, addedAt: Date.now() });
      await this.#library.touch(this.#key);
      return await this.#library.describe(found);
    } catch (error) {
      this.#lose(storageError(error, "The model could not be committed"), 0);
      await this.#library.drop(this.#key).catch(() => undefined);
      return null;
    } finally {
      this.#letGo();
    }
  }

  /** Closes everything; what arrived stays to be resumed, or goes. */
  async #end(drop: boolean): Promise<void> {
    this.#downloads.abort();
    try {
      await Promise.all(this.#files.map((file) => file.stop()));
      if (drop) await this.#library.drop(this.#key);
      else await this.#library.dropEmpty(this.#key);
    } catch {
      // What cannot be removed now has no record, so it counts for nothing.
    } finally {
      this.#letGo();
    }
  }

  #letGo(): void {
    this.#downloads.abort();
    this.#hush();
    this.#release();
  }
}

/** Whether an error says that storage, not the network or the file, is the trouble. */
export function storageCode(error: unknown): boolean {
  return error instanceof FiresideError && error.code.startsWith("storage.");
}

/** The warning that a model is used without being kept. */
export function lostWarning(error: FiresideError): { code: string; message: string; details: Record<string, unknown> } {
  return { code: error.code, message: `The model is not kept for the next visit. ${error.message}`, details: error.details };
}
