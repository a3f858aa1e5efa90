/** What opening a model gives, and models that need no keeping: files of the page, and URLs that are not to be kept. */
import { FiresideError } from "../errors.js";
import { BlobSource } from "../source/blob.js";
import type { HashedSource } from "../source/http.js";
import { openUrl } from "../source/http.js";
import { PartsSource } from "../source/parts.js";
import type { OnProgress } from "../source/progress.js";
import { Progress } from "../source/progress.js";
import { linked } from "../source/retry.js";
import { Sha256 } from "../source/sha256.js";
import { hashOf } from "../source/whole.js";
import { tuning } from "../source/tuning.js";
import type { WireFile, WireSource } from "../protocol.js";
import type { StoredModel, Warning } from "../types.js";
import type { ByteSource } from "../wasm/fireside.js";
import { Permits } from "./permits.js";

/** What is wanted. */
export interface Want {
  source: WireSource;
  cache: "opfs" | "none";
  /** sha256 of each file. */
  integrity: string[] | null;
  /** Name of the stored copy; null: its URL. */
  id: string | null;
}

/** How to tell and to be told while opening and reading. */
export interface Hooks {
  signal: AbortSignal;
  onProgress: OnProgress;
  onWarning: (warning: Warning) => void;
}

/** A model's bytes. Exactly one of `finish` and `abandon` is to be called. */
export interface Opened {
  bytes: ByteSource;
  /** What the model is called where stored and running models are listed. */
  id: string;
  fromCache: boolean;
  /** The reader has all it wants: checks what is to be checked, keeps what is to be kept. */
  finish(): Promise<StoredModel | null>;
  /** The reader gave up because of this error. */
  abandon(error: unknown): Promise<void>;
}

/** One source of one or several. */
export function joined(sources: readonly ByteSource[]): ByteSource {
  const [only] = sources;
  return sources.length === 1 && only ? only : new PartsSource(sources);
}

/** Where a file comes from, in words that name it. */
export function sourceName(file: WireFile): string {
  if ("url" in file) return file.url;
  const { name } = file.blob as { name?: unknown };
  return `file:${typeof name === "string" ? name : ""}`;
}

/** Throws when a file is not the one that was asked for. */
export function checkDigest(file: string, expected: string | undefined, got: string): void {
  if (expected === undefined || expected === got) return;
  const message = `${file} is not the file that was asked for: its sha256 is ${got}, not ${expected}. Nothing of it is kept.`;
  throw new FiresideError("integrity.mismatch", message, { file, expected, got });
}

/** The first bytes of a model, for its header; nothing is kept and no more is fetched than asked. */
export async function openHeader(files: readonly WireFile[], headers: Record<string, string>, signal: AbortSignal): Promise<ByteSource> {
  const sources: ByteSource[] = [];
  const options = { signal, onBytes: () => undefined, headerOnly: true };
  for (const file of files) {
    sources.push("blob" in file ? new BlobSource(file.blob) : await openUrl({ url: file.url, headers }, options));
  }
  return joined(sources);
}

/** Opens files of the page, or URLs of which nothing is to be kept. */
export async function openPlain(files: readonly WireFile[], headers: Record<string, string>, want: Want, hooks: Hooks): Promise<Opened> {
  const names = files.map(sourceName);
  const progress = new Progress("download", files.length, false, hooks.onProgress);
  // The reader may not want the last bytes of a body: the connection is not left open for them.
  const reading = linked(hooks.signal);
  const [connections, oneByOne] = [new Permits(tuning.connections), new Permits(1)];
  const open = async (file: WireFile, index: number): Promise<HashedSource> => {
    const release = await ("blob" in file ? oneByOne : connections).next(reading.signal);
    try {
      if ("blob" in file) return await checkedBlob(file.blob, names[index] ?? "", want.integrity?.[index], hooks);
      const hash = want.integrity ? { hash: new Sha256() } : {};
      const options = { signal: reading.signal, onBytes: progress.of(index, file.url), peek: files.length > 1, ...hash };
      return await openUrl({ url: file.url, headers }, options);
    } finally {
      release();
    }
  };
  // All together, so that a wrong or missing part is told while another one's bytes are waited for.
  const sources = await Promise.all(files.map(open)).catch((error: unknown) => {
    reading.abort();
    throw error;
  });
  const [first = ""] = names;
  return {
    bytes: joined(sources),
    id: want.id ?? first,
    fromCache: false,
    async finish() {
      try {
        for (const [index, source] of sources.entries()) {
          const expected = want.integrity?.[index];
          // Blobs have been checked before anything was read of them.
          if (expected !== undefined && !(source instanceof PlainBlob)) checkDigest(names[index] ?? "", expected, await source.digest());
        }
        return null;
      } finally {
        reading.abort();
      }
    },
    abandon() {
      reading.abort();
      return Promise.resolve();
    },
  };
}

class PlainBlob extends BlobSource implements HashedSource {
  digest(): Promise<string> {
    return hashOf(this);
  }
}

/** A file of the page is all there, so it is checked before it is read. */
async function checkedBlob(blob: Blob, name: string, expected: string | undefined, hooks: Hooks): Promise<HashedSource> {
  const source = new PlainBlob(blob, name);
  if (expected !== undefined) {
    const progress = new Progress("verify", 1, false, hooks.onProgress);
    checkDigest(name, expected, await hashOf(source, hooks.signal, progress.of(0, name)));
    source.release();
  }
  return source;
}
