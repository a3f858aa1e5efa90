/** A stored model's record: the one small file whose presence makes the model exist. Written last, read first; text in, text out. */
import { sha256Text } from "../source/sha256.js";

const FORMAT = 1;

/** One file of a stored model. */
export interface StoredFile {
  /** The URL, or `file:` and a name for what was not fetched. */
  source: string;
  bytes: number;
  sha256: string;
}

/** What is known of a stored model. */
export interface ModelRecord {
  id: string;
  files: StoredFile[];
  addedAt: number;
}

/** The record as text, with a checksum over itself: half a record is none. */
export function encodeRecord(record: ModelRecord): string {
  const body = JSON.stringify({ format: FORMAT, ...record });
  return `${sha256Text(body)}\n${body}`;
}

/** Null for text that is no sound record. */
export function decodeRecord(text: string | null): ModelRecord | null {
  const split = text?.indexOf("\n") ?? -1;
  if (text === null || split < 0) return null;
  const body = text.slice(split + 1);
  if (sha256Text(body) !== text.slice(0, split)) return null;
  const { format, id, files, addedAt } = JSON.parse(body) as ModelRecord & { format: number };
  return format === FORMAT ? { id, files, addedAt } : null;
}

/** The folder of a model: by where its files come from, so that one model is stored once whatever it is called. */
export function folderKey(sources: readonly string[]): string {
  return sha256Text(sources.join("\n")).slice(0, 32);
}
