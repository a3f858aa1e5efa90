/** `embeddings.create`, which the models that run today cannot answer, and `models`: the one model of an engine. */
import * as check from "../check.js";
import { requestUnsupported } from "../errors.js";
import type { EmbeddingBody, EmbeddingCreate, ModelCard } from "../openai-types.js";
import { checkRequestOptions } from "../request-options.js";
import type { EngineInfo, RequestOptions } from "../types.js";
import { checkBody, seconds, unknownModel } from "./body.js";
import { checkPrompts } from "./completions.js";

const FIELDS = ["input", "model", "dimensions", "encoding_format", "user"] as const;

/** Refuses with `request.unsupported` what is well formed, and what is not as any call does. */
export function embeddingCreate(info: () => EngineInfo): EmbeddingCreate {
  const create = async (body: EmbeddingBody, options?: RequestOptions): Promise<never> => {
    const limits = checkRequestOptions(options);
    const given = checkBody("embeddings.create", body, FIELDS, info());
    checkPrompts("input", given["input"]);
    const { dimensions, encoding_format: format } = given;
    if (dimensions !== undefined) check.integer("request", "dimensions", dimensions, 1);
    if (format !== undefined) check.oneOf("request", "encoding_format", format, ["float", "base64"]);
    await Promise.resolve();
    limits.signal?.throwIfAborted();
    throw requestUnsupported("embeddings", `${info().modelId} is a model of text, not of embeddings`);
  };
  return create;
}

/** The contract's `models` of an engine. */
export interface EngineModels {
  list(): Promise<{ object: "list"; data: ModelCard[] }>;
  retrieve(id: string): Promise<ModelCard>;
}

export function engineModels(info: () => EngineInfo): EngineModels {
  const created = seconds();
  const card = (): ModelCard => {
    const { modelId, contextLength, memory } = info();
    return { id: modelId, object: "model", created, owned_by: "fireside", context_window: contextLength, bytes: memory.weightBytes };
  };
  return {
    list: () => Promise.resolve({ object: "list", data: [card()] }),
    retrieve: async (id) => {
      await Promise.resolve();
      if (check.string("request", "id", id) !== info().modelId) throw unknownModel("id", id, info());
      return card();
    },
  };
}
