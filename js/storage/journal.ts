/** The journal of a download: which bytes of its file arrived, and the hash's state, in two slots that are written in turn.
 *
 * A slot is a fixed size: a checksum, a length, and JSON with a number that counts up. The newest sound slot is the truth; a
 * write that was cut off damages only the older one. docs/storage.md has the format.
 */
import type { Validator } from "../source/request.js";
import type { HashState } from "../source/sha256.js";
import { Sha256, sha256Text } from "../source/sha256.js";
import type { SyncFile } from "./opfs.js";
import { writeAll } from "./opfs.js";
import type { Span } from "./ranges.js";
import { Ranges } from "./ranges.js";

const SLOT_BYTES = 16 * 1024;
const FORMAT = 1;
/** 64 hex digits of the checksum, 8 digits of the length. */
const HEAD_CHARS = 72;

/** What is known of a file that is being downloaded. */
export interface JournalState {
  id: string;
  /** Where the file comes from. */
  source: string;
  /** How many files the model has. */
  files: number;
  validator: Validator;
  ranges: Span[];
  hash: HashState;
}

/** A state that was read back and makes sense. */
export interface Resumable {
  id: string;
  source: string;
  files: number;
  validator: Validator & { total: number };
  ranges: Ranges;
  hash: Sha256;
}

function encode(state: JournalState, sequence: number): Uint8Array {
  const body = JSON.stringify({ format: FORMAT, sequence, ...state });
  const bytes = new TextEncoder().encode(`${sha256Text(body)}${body.length.toString(16).padStart(8, "0")}${body}`);
  if (bytes.length > SLOT_BYTES) throw new RangeError("the journal's state does not fit its slot");
  return bytes;
}

function decode(slot: Uint8Array): (JournalState & { sequence: number }) | null {
  const text = new TextDecoder().decode(slot);
  const length = Number.parseInt(text.slice(64, HEAD_CHARS), 16);
  const body = text.slice(HEAD_CHARS, HEAD_CHARS + length);
  if (!(length > 0) || body.length !== length || sha256Text(body) !== text.slice(0, 64)) return null;
  const state = JSON.parse(body) as JournalState & { format: number; sequence: number };
  return state.format === FORMAT ? state : null;
}

/** The newest sound state in a journal's bytes, or null. */
export function readJournal(bytes: Uint8Array): (Resumable & { sequence: number }) | null {
  const slots = [decode(bytes.subarray(0, SLOT_BYTES)), decode(bytes.subarray(SLOT_BYTES, 2 * SLOT_BYTES))];
  const [newest] = slots.filter((slot) => slot !== null).sort((a, b) => b.sequence - a.sequence);
  const total = newest?.validator.total;
  if (!newest || typeof total !== "number") return null;
  const ranges = Ranges.from(newest.ranges, total);
  const hash = Sha256.resume(newest.hash);
  if (!ranges || !hash || hash.bytes > ranges.prefix) return null;
  const { id, source, files, validator, sequence } = newest;
  return { id, source, files, validator: { ...validator, total }, ranges, hash, sequence };
}

/** A journal that is open for writing. */
export class Journal {
  readonly #file: SyncFile;
  #sequence: number;

  /** `sequence`: the number of the newest slot that is there. */
  constructor(file: SyncFile, sequence = 0) {
    this.#file = file;
    this.#sequence = sequence;
  }

  write(state: JournalState): void {
    const bytes = encode(state, this.#sequence + 1);
    writeAll(this.#file, bytes, ((this.#sequence + 1) % 2) * SLOT_BYTES);
    this.#file.flush();
    this.#sequence++;
  }

  /** Forgets what is written: the next download starts from nothing. */
  clear(): void {
    this.#file.truncate(0);
    this.#file.flush();
  }

  close(): void {
    this.#file.close();
  }
}
