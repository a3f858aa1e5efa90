/** The stored models: finding, listing, committing and removing them. A model exists only if its record says so, and its
 * files have the sizes that the record names. docs/storage.md has the layout.
 */
import { FiresideError } from "../errors.js";
import type { StoredModel } from "../types.js";
import { readJournal } from "./journal.js";
import type { Resumable } from "./journal.js";
import { Journal } from "./journal.js";
import { hold, holdSoon, readLock, writeLock } from "./locks.js";
import type { SyncFile } from "./opfs.js";
import { Folder, isInUse, readAll } from "./opfs.js";
import type { ModelRecord } from "./record.js";
import { decodeRecord, encodeRecord, folderKey } from "./record.js";

const ROOT = ["fireside", "models"] as const;
const RECORD = "record.json";
const USED = "used";
const dataName = (index: number): string => `${String(index)}.gguf`;
const journalName = (index: number): string => `${String(index)}.journal`;

/** A model that is there, with snapshots of its files. */
export interface Found {
  key: string;
  record: ModelRecord;
  files: File[];
}

/** The open files of one download. */
export interface PartFile {
  data: SyncFile;
  journal: Journal;
  /** What an earlier download left. */
  left: Resumable | null;
}

/** All stored models of this origin. */
export class Library {
  readonly #root: Folder;

  private constructor(root: Folder) {
    this.#root = root;
  }

  /** Throws `storage.unavailable` where there is no storage. */
  static async open(): Promise<Library> {
    return new Library(await Folder.open(...ROOT));
  }

  /** The model whose files come from these places, if it is wholly there. */
  async find(sources: readonly string[]): Promise<Found | null> {
    const found = await this.#read(folderKey(sources));
    // A key is half a hash: what it stands for is compared all the same.
    return found?.record.files.every((file, i) => file.source === sources[i]) ? found : null;
  }

  /** The model of that id, if it is wholly there. */
  async byId(id: string): Promise<Found | null> {
    for (const key of await this.#root.folders()) {
      const found = await this.#read(key);
      if (found?.record.id === id) return found;
    }
    return null;
  }

  /** Everything that is stored, unfinished downloads too. */
  async list(): Promise<StoredModel[]> {
    const models: StoredModel[] = [];
    for (const key of await this.#root.folders()) {
      const found = await this.#read(key);
      const model = found ? await this.describe(found) : await this.#unfinished(key);
      if (model) models.push(model);
    }
    return models.sort((a, b) => a.addedAt - b.addedAt || (a.id < b.id ? -1 : 1));
  }

  /** A stored model as callers see it. */
  async describe({ key, record }: Found): Promise<StoredModel> {
    const folder = await this.#root.folder(key, false);
    const used = Number((await folder?.text(USED)) ?? NaN);
    const [first] = record.files;
    return {
      id: record.id,
      bytes: record.files.reduce((sum, file) => sum + file.bytes, 0),
      complete: true,
      sha256: record.files.length === 1 ? (first?.sha256 ?? null) : null,
      source: first?.source ?? "",
      addedAt: record.addedAt,
      // A note that was cut off is a smaller number.
      lastUsedAt: used > record.addedAt ? used : record.addedAt,
      files: record.files,
    };
  }

  /** Notes that a model is used now. That is for looking at only: failing to note it stops nothing. */
  async touch(key: string): Promise<void> {
    const folder = await this.#root.folder(key, false).catch(() => null);
    await folder?.writeText(USED, String(Date.now())).catch(() => undefined);
  }

  /** Makes way for a download: what is there is no model any more. The caller holds the write lock. */
  async begin(key: string): Promise<void> {
    const folder = await this.#folder(key);
    await folder.remove(RECORD);
  }

  /** Opens one file of a download for writing. */
  async openPart(key: string, index: number): Promise<PartFile> {
    const folder = await this.#folder(key);
    const data = await folder.openSync(dataName(index));
    try {
      const file = await folder.openSync(journalName(index));
      const left = readJournal(readAll(file, 0, file.getSize()));
      return { data, journal: new Journal(file, left?.sequence ?? 0), left };
    } catch (error) {
      data.close();
      throw error;
    }
  }

  /** Makes a model exist: its files are flushed and closed; the record is the last thing that is written. */
  async commit(key: string, record: ModelRecord): Promise<Found> {
    const folder = await this.#folder(key);
    await folder.writeText(RECORD, encodeRecord(record));
    for (const index of record.files.keys()) await folder.remove(journalName(index));
    const found = await this.#read(key);
    if (!found) throw new FiresideError("storage.failed", "The model was written but cannot be read back.", { id: record.id });
    await this.#dropOthers(key, record.id);
    return found;
  }

  /** Gives a stored model another id. */
  async rename(key: string, id: string): Promise<StoredModel> {
    const write = await hold(writeLock(key));
    try {
      const found = await this.#read(key);
      if (!found) throw notFound(id);
      return await this.describe(await this.commit(key, { ...found.record, id }));
    } finally {
      write?.();
    }
  }

  /** Removes a folder in which there is nothing to resume. */
  async dropEmpty(key: string): Promise<void> {
    if ((await this.#read(key)) ?? (await this.#unfinished(key))) return;
    await this.#root.remove(key);
  }

  /** Removes whatever a key holds: record first, so that no half of it counts. */
  async drop(key: string): Promise<void> {
    const folder = await this.#root.folder(key, false);
    await folder?.remove(RECORD);
    await this.#root.remove(key);
  }

  /** Removes a model, or an unfinished download, by its id. Throws `storage.not_found` and `storage.busy`. */
  async remove(id: string): Promise<void> {
    let found = false;
    for (const key of await this.#root.folders()) {
      const name = (await this.#read(key))?.record.id ?? (await this.#unfinished(key))?.id;
      if (name !== id) continue;
      found = true;
      await this.dropUnused(key, id);
    }
    if (!found) throw notFound(id);
  }

  /** Removes a model unless it is being downloaded or read: then `storage.busy`. `owned`: the caller holds the write lock. */
  async dropUnused(key: string, id: string, owned = false): Promise<void> {
    const busy = (): FiresideError =>
      new FiresideError("storage.busy", `The model ${id} is being downloaded or read; it can be removed afterwards.`, { id });
    const write = owned ? () => undefined : await holdSoon(writeLock(key));
    if (!write) throw busy();
    const read = await holdSoon(readLock(key));
    try {
      if (!read) throw busy();
      await this.drop(key);
    } catch (error) {
      throw isInUse(error) ? busy() : error;
    } finally {
      read?.();
      write();
    }
  }

  /** One id names one model: what had it before goes, unless somebody is reading it. */
  async #dropOthers(key: string, id: string): Promise<void> {
    for (const other of await this.#root.folders()) {
      if (other === key || (await this.#read(other))?.record.id !== id) continue;
      await this.dropUnused(other, id).catch(() => undefined);
    }
  }

  async #folder(key: string): Promise<Folder> {
    const folder = await this.#root.folder(key, true);
    if (!folder) throw new FiresideError("storage.failed", "The folder of the model could not be made.", { key });
    return folder;
  }

  async #read(key: string): Promise<Found | null> {
    const folder = await this.#root.folder(key, false);
    const record = decodeRecord((await folder?.text(RECORD)) ?? null);
    if (!folder || !record) return null;
    const files: File[] = [];
    for (const [index, { bytes }] of record.files.entries()) {
      const file = await folder.file(dataName(index));
      if (file?.size !== bytes) return null;
      files.push(file);
    }
    return { key, record, files };
  }

  async #unfinished(key: string): Promise<StoredModel | null> {
    const folder = await this.#root.folder(key, false);
    if (!folder) return null;
    let bytes = 0;
    let first: Resumable | null = null;
    let addedAt = 0;
    for (let index = 0; index < (first?.files ?? 1); index++) {
      // Another tab may be writing it: what cannot be read now is not counted.
      const file = await folder.file(journalName(index)).catch(() => null);
      const left = file ? readJournal(new Uint8Array(await file.arrayBuffer().catch(() => new ArrayBuffer(0)))) : null;
      bytes += left?.ranges.bytes ?? 0;
      if (index === 0) [first, addedAt] = [left, file?.lastModified ?? 0];
    }
    if (!first) return null;
    return { id: first.id, bytes, complete: false, sha256: null, source: first.source, addedAt, lastUsedAt: addedAt };
  }
}

/** The error for an id that names nothing. */
export function notFound(id: string): FiresideError {
  return new FiresideError("storage.not_found", `No model ${JSON.stringify(id)} is stored.`, { id });
}
