/** The origin private file system as far as storage needs it: folders, small files, sync handles. Knows nothing of models.
 *
 * Sync access handles exist in dedicated Workers only. In a page's own thread this reads, removes and, where
 * `createWritable` is there, writes small files; large files are written in Workers.
 */
import { FiresideError } from "../errors.js";

/** A sync access handle; the DOM library of TypeScript has it for Workers only. */
export interface SyncFile {
  read(into: Uint8Array, options: { at: number }): number;
  write(from: Uint8Array, options: { at: number }): number;
  truncate(bytes: number): void;
  getSize(): number;
  flush(): void;
  close(): void;
}

type Handle = FileSystemFileHandle & { createSyncAccessHandle?: () => Promise<SyncFile> };

const isNamed = (error: unknown, name: string): boolean => error instanceof Error && error.name === name;

/** True for the error of a full disk or a used-up quota. */
export function isQuota(error: unknown): boolean {
  return isNamed(error, "QuotaExceededError");
}

/** The error for storage that cannot be used here at all. */
export function unavailable(why: string, cause?: unknown): FiresideError {
  const message = `Models cannot be kept here: ${why}.`;
  return new FiresideError("storage.unavailable", message, { reason: why }, { cause });
}

/** Whatever a storage call threw, as an error with a code. */
export function storageError(error: unknown, what: string): FiresideError {
  if (error instanceof FiresideError) return error;
  const name = error instanceof Error ? error.name : typeof error;
  const why = error instanceof Error ? error.message : String(error);
  const code = isQuota(error) ? "storage.quota" : "storage.failed";
  return new FiresideError(code, `${what}: ${why}`, { name }, { cause: error });
}

/** True for the error of a file that somebody else holds open. */
export function isHeld(error: unknown): boolean {
  return error instanceof FiresideError && error.details["name"] === "NoModificationAllowedError";
}

/** True for the error of removing what somebody else has open, with or without a lock of ours. */
export function isInUse(error: unknown): boolean {
  return isHeld(error) || (error instanceof FiresideError && error.details["name"] === "InvalidModificationError");
}

/** Whether this thread may hold sync handles. */
export function hasSyncHandles(): boolean {
  const handle = (globalThis as { FileSystemFileHandle?: { prototype: object } }).FileSystemFileHandle;
  return handle !== undefined && "createSyncAccessHandle" in handle.prototype;
}

/** A folder. Names are ours: hex digits, digits and fixed words. */
export class Folder {
  readonly #handle: FileSystemDirectoryHandle;

  private constructor(handle: FileSystemDirectoryHandle) {
    this.#handle = handle;
  }

  /** The folder of that path, made where it is missing. Throws `storage.unavailable` where there is no storage. */
  static async open(...path: string[]): Promise<Folder> {
    const storage = typeof navigator === "object" ? (navigator as { storage?: StorageManager }).storage : undefined;
    if (typeof storage?.getDirectory !== "function") throw unavailable("this browser, or an insecure page, has no private file system");
    try {
      let handle = await storage.getDirectory();
      for (const name of path) handle = await handle.getDirectoryHandle(name, { create: true });
      return new Folder(handle);
    } catch (cause) {
      const why = cause instanceof Error ? cause.message : String(cause);
      throw unavailable(`the browser denies storage (${why})`, cause);
    }
  }

  async folder(name: string, create: boolean): Promise<Folder | null> {
    return this.#found(this.#handle.getDirectoryHandle(name, { create }), (handle) => new Folder(handle));
  }

  /** Names of the folders in this one. */
  async folders(): Promise<string[]> {
    const names: string[] = [];
    const entries = (this.#handle as unknown as { entries(): AsyncIterable<[string, FileSystemHandle]> }).entries();
    for await (const [name, handle] of entries) if (handle.kind === "directory") names.push(name);
    return names.sort();
  }

  /** A snapshot to read from, null when there is no such file. */
  async file(name: string): Promise<File | null> {
    const handle = await this.#found(this.#handle.getFileHandle(name), (found) => found);
    return handle ? this.#found(handle.getFile(), (file) => file) : null;
  }

  /** A small file's text; null when there is none or it cannot be read. */
  async text(name: string): Promise<string | null> {
    try {
      return (await (await this.file(name))?.text()) ?? null;
    } catch {
      return null;
    }
  }

  /** Writes a small file whole, in this order: emptied, written, flushed, closed. */
  async writeText(name: string, text: string): Promise<void> {
    try {
      await this.#writeBytes(name, new TextEncoder().encode(text));
    } catch (error) {
      throw storageError(error, `${name} could not be written`);
    }
  }

  async #writeBytes(name: string, bytes: Uint8Array<ArrayBuffer>): Promise<void> {
    const handle: Handle = await this.#handle.getFileHandle(name, { create: true });
    if (hasSyncHandles() && handle.createSyncAccessHandle) {
      const file = await handle.createSyncAccessHandle();
      try {
        file.truncate(0);
        writeAll(file, bytes, 0);
        file.flush();
      } finally {
        file.close();
      }
      return;
    }
    if (typeof handle.createWritable !== "function") throw unavailable("this thread of this browser cannot write files");
    const stream = await handle.createWritable();
    await stream.write(bytes);
    await stream.close();
  }

  /** A file for reading and writing, ours alone until it is closed. */
  async openSync(name: string): Promise<SyncFile> {
    try {
      const handle: Handle = await this.#handle.getFileHandle(name, { create: true });
      if (!handle.createSyncAccessHandle) throw unavailable("only a dedicated Worker may write large files");
      return await handle.createSyncAccessHandle();
    } catch (error) {
      throw storageError(error, `${name} could not be opened for writing`);
    }
  }

  /** Removes a file or a folder with all in it; what is not there is no error. */
  async remove(name: string): Promise<void> {
    await this.#found(this.#handle.removeEntry(name, { recursive: true }), () => true);
  }

  async #found<T, R>(promise: Promise<T>, use: (value: T) => R): Promise<R | null> {
    try {
      return use(await promise);
    } catch (error) {
      if (isNamed(error, "NotFoundError") || isNamed(error, "TypeMismatchError")) return null;
      throw storageError(error, "Storage failed");
    }
  }
}

/** Writes all bytes or throws: a short write means that no more room was given. */
export function writeAll(file: SyncFile, bytes: Uint8Array, at: number): void {
  const written = file.write(bytes, { at });
  if (written === bytes.length) return;
  throw new DOMException(`Only ${String(written)} of ${String(bytes.length)} bytes could be written.`, "QuotaExceededError");
}

/** Reads all bytes or throws. */
export function readAll(file: SyncFile, at: number, length: number): Uint8Array {
  const bytes = new Uint8Array(length);
  const got = file.read(bytes, { at });
  if (got === length) return bytes;
  throw new FiresideError("storage.failed", "A stored file is shorter than its record says.", { offset: at, expected: length, got });
}
