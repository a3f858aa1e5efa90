/** Opening a model, whatever it is given as: which of stored, kept and plain it becomes. All decisions about storage are here. */
import { FiresideError } from "../errors.js";
import { partUrls } from "../source/parts.js";
import type { WireFile } from "../protocol.js";
import type { StoredModel } from "../types.js";
import type { ByteSource } from "../wasm/fireside.js";
import { BlobSource } from "../source/blob.js";
import { importFiles } from "./import.js";
import { Keeping, lostWarning, storageCode, waitForTurn } from "./keep.js";
import { Library, notFound } from "./library.js";
import type { Hooks, Opened, Want } from "./opened.js";
import { joined, openHeader, openPlain } from "./opened.js";
import { hasSyncHandles, unavailable } from "./opfs.js";
import { folderKey } from "./record.js";
import { withMissing } from "./room.js";
import { openStored } from "./stored.js";

/** A URL that names one part of a split model means all of them. */
function allFiles(files: readonly WireFile[]): WireFile[] {
  const [only] = files;
  if (files.length !== 1 || !only || !("url" in only)) return [...files];
  return partUrls(only.url).map((url) => ({ url }));
}

function checkIntegrity(integrity: string[] | null, files: number): void {
  if (integrity === null || integrity.length === files) return;
  const expected = `${String(files)} sha256, one a file`;
  throw new FiresideError("load.invalid", `integrity must be ${expected}, not ${String(integrity.length)}.`, {
    field: "integrity",
    expected,
    got: integrity.length,
  });
}

const urlsOf = (files: readonly WireFile[]): string[] | null => {
  const urls = files.flatMap((file) => ("url" in file ? [file.url] : []));
  return urls.length === files.length ? urls : null;
};

/** Opens a model for the loader. */
export async function openModel(want: Want, hooks: Hooks): Promise<Opened> {
  if ("stored" in want.source) return openById(want.source.stored, want, hooks);
  const { headers } = want.source;
  const files = allFiles(want.source.files);
  checkIntegrity(want.integrity, files.length);
  const urls = urlsOf(files);
  const plain = (): Promise<Opened> => openPlain(files, headers, want, hooks);
  if (want.cache === "none" || !urls) return plain();
  try {
    const library = await Library.open();
    const stored = await openFound(library, urls, want, hooks);
    if (stored) return stored;
    if (!hasSyncHandles()) throw unavailable("only a dedicated Worker may write large files; models.pull() uses one");
    return await openKept(library, urls, headers, want, hooks);
  } catch (error) {
    if (!(error instanceof FiresideError) || !storageCode(error) || error.code === "storage.busy") throw error;
    const opened = await plain();
    hooks.onWarning(lostWarning(await withMissing(error, opened.bytes.len)));
    return opened;
  }
}

async function openById(id: string, want: Want, hooks: Hooks): Promise<Opened> {
  const library = await Library.open();
  const found = await library.byId(id);
  if (found) checkIntegrity(want.integrity, found.files.length);
  const opened = found && (await openStored(library, found, want.integrity, hooks));
  if (!opened) throw notFound(id);
  return opened;
}

/** The stored copy of these URLs. One that is not what `integrity` asks for has been removed, and counts as none. */
async function openFound(library: Library, urls: readonly string[], want: Want, hooks: Hooks, owned = false): Promise<Opened | null> {
  const found = await library.find(urls);
  if (!found) return null;
  try {
    return await openStored(library, found, want.integrity, hooks, owned);
  } catch (error) {
    if (error instanceof FiresideError && error.code === "integrity.mismatch") return null;
    throw error;
  }
}

/** Downloads, unless another tab did so while this one waited for its turn. */
async function openKept(library: Library, urls: readonly string[], headers: Record<string, string>, want: Want, hooks: Hooks): Promise<Opened> {
  const release = await waitForTurn(folderKey(urls), hooks);
  let stored: Opened | null;
  try {
    stored = await openFound(library, urls, want, hooks, true);
  } catch (error) {
    release();
    throw error;
  }
  if (!stored) return Keeping.begin(library, urls, headers, want, hooks, release);
  release();
  return stored;
}

/** Downloads into storage without running. `check` reads the header and throws when it is no model. */
export async function pullModel(want: Want, hooks: Hooks, check: (bytes: ByteSource) => Promise<unknown>): Promise<StoredModel> {
  if ("stored" in want.source) return described(want.source.stored, want, hooks);
  const files = allFiles(want.source.files);
  checkIntegrity(want.integrity, files.length);
  if (!hasSyncHandles()) throw unavailable("only a dedicated Worker may write large files");
  const library = await Library.open();
  const urls = urlsOf(files);
  if (!urls) return pullBlobs(library, files, want, hooks, check);
  const opened = await openToPull(library, urls, want.source.headers, want, hooks);
  try {
    await check(opened.bytes);
  } catch (error) {
    await opened.abandon(error);
    throw error;
  }
  const model = await opened.finish();
  if (!model) throw (opened instanceof Keeping ? opened.lost : null) ?? unavailable("the download could not be kept");
  return want.id !== null && model.id !== want.id ? library.rename(folderKey(urls), want.id) : model;
}

async function openToPull(library: Library, urls: readonly string[], headers: Record<string, string>, want: Want, hooks: Hooks): Promise<Opened> {
  try {
    return (await openFound(library, urls, want, hooks)) ?? (await openKept(library, urls, headers, want, hooks));
  } catch (error) {
    if (!(error instanceof FiresideError) || error.code !== "storage.quota" || "missing" in error.details) throw error;
    const files = urls.map((url) => ({ url }));
    throw await withMissing(error, (await openHeader(files, headers, hooks.signal)).len);
  }
}

async function described(id: string, want: Want, hooks: Hooks): Promise<StoredModel> {
  const model = await (await openById(id, want, hooks)).finish();
  if (!model) throw notFound(id);
  return model;
}

async function pullBlobs(
  library: Library,
  files: readonly WireFile[],
  want: Want,
  hooks: Hooks,
  check: (bytes: ByteSource) => Promise<unknown>,
): Promise<StoredModel> {
  const blobs = files.flatMap((file) => ("blob" in file ? [file.blob] : []));
  if (blobs.length !== files.length) {
    const details = { field: "source", expected: "URLs only, or Blobs only", got: "both" };
    throw new FiresideError("load.invalid", "source must be URLs only, or Blobs only, not both.", details);
  }
  const name = (blobs[0] as { name?: unknown } | undefined)?.name;
  const id = want.id ?? (typeof name === "string" ? name : "");
  if (id === "") {
    const details = { field: "id", expected: "a name", got: "none" };
    throw new FiresideError("load.invalid", "id must be given for a Blob, which has no name of its own.", details);
  }
  await check(joined(blobs.map((blob) => new BlobSource(blob))));
  return importFiles(library, blobs, id, want, hooks);
}

/** The header of a model: of its stored copy when there is one, else of as few bytes as the server gives. */
export async function openForHeader(source: Want["source"], signal: AbortSignal): Promise<{ bytes: ByteSource; stored: StoredModel | null }> {
  if ("stored" in source) {
    const library = await Library.open();
    const found = await library.byId(source.stored);
    if (!found) throw notFound(source.stored);
    return { bytes: joined(found.files.map((file) => new BlobSource(file))), stored: await library.describe(found) };
  }
  const files = allFiles(source.files);
  const urls = urlsOf(files);
  if (urls) {
    const found = await Library.open().then(
      (library) => library.find(urls),
      () => null,
    );
    if (found) return { bytes: joined(found.files.map((file) => new BlobSource(file))), stored: null };
  }
  return { bytes: await openHeader(files, source.headers, signal), stored: null };
}
