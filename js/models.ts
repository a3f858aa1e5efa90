/** Stored models. This version keeps none: every call is refused with `load.unsupported`. */
import { loadUnsupported } from "./errors.js";
import type { LoadOptions, ModelSource, StoredModel } from "./types.js";

/** The contract's registry of stored models. */
export interface Models {
  pull(
    source: ModelSource,
    options?: Pick<LoadOptions, "integrity" | "headers" | "onProgress" | "signal"> & { id?: string },
  ): Promise<StoredModel>;
  list(): Promise<StoredModel[]>;
  inspect(
    id: string,
  ): Promise<StoredModel & { metadata: Record<string, unknown>; tensors: { name: string; type: string; shape: number[] }[] }>;
  remove(id: string): Promise<void>;
  running(): Promise<{ id: string; tab: string; since: number }[]>;
}

function refused(name: string): () => Promise<never> {
  return () => Promise.reject(loadUnsupported(`models.${name}`, "this version does not keep models"));
}

export const models: Models = {
  pull: refused("pull"),
  list: refused("list"),
  inspect: refused("inspect"),
  remove: refused("remove"),
  running: refused("running"),
};
