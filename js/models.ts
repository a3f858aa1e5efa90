/** Stored models: the page's side of the registry. Downloads and headers are read in a Worker; lists and removals here. */
import * as check from "./check.js";
import type { EngineMessage } from "./client.js";
import { Client } from "./client.js";
import { FiresideError } from "./errors.js";
import { checkIntegrity, checkSource } from "./load-options.js";
import type { Calls } from "./protocol.js";
import { Library, notFound } from "./storage/library.js";
import { running } from "./storage/locks.js";
import type { LoadOptions, LoadProgress, ModelSource, StoredModel } from "./types.js";

export type PullOptions = Pick<LoadOptions, "integrity" | "headers" | "onProgress" | "signal"> & { id?: string };
export type InspectedModel = StoredModel & {
  metadata: Record<string, unknown>;
  tensors: { name: string; type: string; shape: number[] }[];
};

/** The contract's registry of stored models. */
export interface Models {
  /** Downloads into storage without running; resumes a part file. */
  pull(source: ModelSource, options?: PullOptions): Promise<StoredModel>;
  /** Everything stored, unfinished downloads too. */
  list(): Promise<StoredModel[]>;
  /** Metadata and tensors of a stored model. Of arrays with more than 16 elements: type, length, first and last ones. */
  inspect(id: string): Promise<InspectedModel>;
  /** Removes a model, or an unfinished download. */
  remove(id: string): Promise<void>;
  /** Which engines hold a model now, across tabs. */
  running(): Promise<{ id: string; tab: string; since: number }[]>;
}

/** The longest name that may be given to a model: it stands in the names of locks. */
const MAX_ID = 1024;
const PULL_FIELDS = ["integrity", "headers", "onProgress", "signal", "id"] as const;

/** Does one thing in a Worker of its own (in this thread where none can be made), and ends it. */
export async function inWorker<T>(onMessage: (message: EngineMessage) => void, work: (client: Client) => Promise<T>): Promise<T> {
  const client = Client.connect(typeof Worker === "function", onMessage);
  try {
    return await work(client);
  } finally {
    void client.dispose(new FiresideError("engine.disposed", "The work is done or was given up."));
  }
}

async function pull(source: ModelSource, options: PullOptions = {}): Promise<StoredModel> {
  const { args, onProgress, signal } = check.reading("load", "options", () => readPull(source, options));
  signal?.throwIfAborted();
  const told = new Told(onProgress, signal);
  return inWorker(
    (message) => {
      if (message.t === "progress") told.tell(message.value);
    },
    (client) => client.cancellable("pull", args, signal),
  );
}

interface CheckedPull {
  args: Calls["pull"]["args"];
  onProgress: LoadOptions["onProgress"];
  signal: AbortSignal | undefined;
}

function readPull(source: ModelSource, options: unknown): CheckedPull {
  const given = check.record("load", "options", options ?? {}) as PullOptions;
  check.knownFields("load", "models.pull", given, PULL_FIELDS);
  const { onProgress } = given;
  if (!check.absent(onProgress)) check.callback("load", "onProgress", onProgress);
  const signal = check.absent(given.signal) ? undefined : check.signal("load", "signal", given.signal);
  const args = {
    source: checkSource(source, given.headers),
    integrity: checkIntegrity(given.integrity),
    id: check.absent(given.id) ? null : checkNewId(given.id),
  };
  return { args, onProgress: onProgress ?? undefined, signal };
}

async function inspect(id: string): Promise<InspectedModel> {
  const source = { stored: checkId(id) };
  const { survey, stored } = await inWorker(
    () => undefined,
    (client) => client.call("survey", { source }),
  ).catch(async (error: unknown) => {
    // Files that could not be read may have been removed meanwhile.
    if (await isGone(id)) throw notFound(id);
    throw error;
  });
  if (!stored) throw new FiresideError("storage.failed", `The model ${id} could not be read.`, { id });
  return { ...stored, metadata: survey.metadata, tensors: survey.tensors };
}

/** True when there is storage, and no such model in it any more. */
async function isGone(id: string): Promise<boolean> {
  try {
    return (await (await Library.open()).byId(id)) === null;
  } catch {
    return false;
  }
}

function checkId(id: unknown): string {
  const text = check.string("load", "id", id);
  if (text === "") throw check.invalid("load", "id", "a name", text);
  return text;
}

function checkNewId(id: unknown): string {
  const text = checkId(id);
  if (text.length > MAX_ID) throw check.invalid("load", "id", `a name of at most ${String(MAX_ID)} characters`, text);
  return text;
}

/** Progress that never goes back, told to a callback whose faults are its own. */
class Told {
  readonly #onProgress: ((progress: LoadProgress) => void) | undefined;
  readonly #signal: AbortSignal | undefined;
  readonly #loaded = new Map<string, number>();

  constructor(onProgress: ((progress: LoadProgress) => void) | undefined, signal: AbortSignal | undefined) {
    this.#onProgress = onProgress;
    this.#signal = signal;
  }

  tell(progress: LoadProgress): void {
    if (this.#signal?.aborted || progress.loaded < (this.#loaded.get(progress.phase) ?? 0)) return;
    this.#loaded.set(progress.phase, progress.loaded);
    try {
      this.#onProgress?.(progress);
    } catch (error) {
      queueMicrotask(() => {
        throw error;
      });
    }
  }
}

export const models: Models = {
  pull,
  inspect,
  list: async () => (await Library.open()).list(),
  remove: async (id) => (await Library.open()).remove(checkId(id)),
  running,
};
