/** `chat.completions.create`: the body checked, the model's template applied by the engine, answers and chunks in OpenAI's shape. */
import * as check from "../check.js";
import type { Client } from "../client.js";
import { requestUnsupported } from "../errors.js";
import type { ChatBody, ChatCompletion, ChatCompletionChunk, ChatCreate, Stream } from "../openai-types.js";
import type { WirePart, WireResult, WireToken } from "../protocol.js";
import { checkRequest, checkRequestOptions } from "../request-options.js";
import type { AssistantDelta, EngineInfo, RequestOptions, Timings } from "../types.js";
import type { Streaming } from "./body.js";
import { checkBody, checkBookkeeping, checkStreaming, fingerprint, newId, pick, SAMPLING_FIELDS, seconds } from "./body.js";
import { chatLogprob } from "./logprobs.js";
import type { Emit, Shaper } from "./run.js";
import { openStream } from "./run.js";

const ENGINE_FIELDS = [
  ...SAMPLING_FIELDS,
  "messages",
  "max_tokens",
  "max_completion_tokens",
  "logprobs",
  "top_logprobs",
  "tools",
  "tool_choice",
] as const;
const FIELDS = [...ENGINE_FIELDS, "model", "parallel_tool_calls", "stream", "stream_options", "user", "metadata", "store"] as const;
const MESSAGE_FIELDS = ["role", "content", "name", "tool_calls", "tool_call_id"] as const;

/** Makes the call of an engine. */
export function chatCreate(client: () => Client, info: () => EngineInfo): ChatCreate {
  const create = async (body: ChatBody, options?: RequestOptions): Promise<Stream<ChatCompletionChunk> | ChatCompletion> => {
    const limits = checkRequestOptions(options);
    const given = checkBody("chat.completions.create", body, FIELDS, info());
    const streaming = check.reading("request", "messages", () => checkChat(given));
    const part: WirePart = {
      kind: "generate",
      ...checkRequest(pick(given, ENGINE_FIELDS), limits),
      tokens: streaming.stream ? "paced" : "none",
      pieces: given["logprobs"] === true,
    };
    const shape = new ChatShape(info(), given, streaming);
    if (streaming.stream) return openStream(client(), [part], limits, shape);
    const [result] = await client().run([part], limits);
    return shape.whole(result as WireResult);
  };
  return create as ChatCreate;
}

/** What is the chat form's own. Everything else is the engine's to judge. */
function checkChat(body: Record<string, unknown>): Streaming {
  checkBookkeeping(body);
  if (!Array.isArray(body["messages"])) throw check.invalid("request", "messages", "an array of messages", body["messages"]);
  body["messages"].forEach(checkMessage);
  if (body["logprobs"] !== undefined) check.boolean("request", "logprobs", body["logprobs"]);
  if (body["tools"] !== undefined) checkTools(body["tools"]);
  const parallel = body["parallel_tool_calls"];
  if (parallel !== undefined && check.boolean("request", "parallel_tool_calls", parallel)) {
    throw requestUnsupported("parallel_tool_calls", "this version makes no tool calls, only false is accepted");
  }
  return checkStreaming(body);
}

/** Roles and contents are the engine's to judge, but a field that no template is known to read must not pass in silence. */
function checkMessage(value: unknown, i: number): void {
  const where = `messages[${String(i)}]`;
  const message = check.record("request", where, value);
  const given = Object.fromEntries(Object.entries(message).filter(([, v]) => !check.absent(v)));
  check.knownFields("request", where, given, MESSAGE_FIELDS);
  for (const field of ["name", "tool_call_id"]) {
    if (given[field] !== undefined) check.string("request", `${where}.${field}`, given[field]);
  }
  const calls = given["tool_calls"];
  if (calls === undefined) return;
  if (!Array.isArray(calls)) throw check.invalid("request", `${where}.tool_calls`, "an array of tool calls", calls);
  calls.forEach((call, k) => {
    checkFunction(`${where}.tool_calls[${String(k)}]`, call);
  });
}

/** Tools as the template gets them. */
export function checkTools(value: unknown): void {
  if (!Array.isArray(value)) throw check.invalid("request", "tools", "an array of tools", value);
  value.forEach((tool, i) => {
    checkFunction(`tools[${String(i)}]`, tool);
  });
}

function checkFunction(where: string, value: unknown): void {
  const given = check.record("request", where, value);
  check.oneOf("request", `${where}.type`, given["type"], ["function"]);
  const named = check.record("request", `${where}.function`, given["function"]);
  check.string("request", `${where}.function.name`, named["name"]);
}

/** One answer's names, and what of it was told. */
class ChatShape implements Shaper<ChatCompletionChunk> {
  readonly #common: { id: string; created: number; model: string; system_fingerprint: string };
  readonly #logprobs: boolean;
  readonly #includeUsage: boolean;
  readonly #choices: number;
  readonly #begun = new Set<number>();
  readonly #ended = new Set<number>();
  #result: WireResult | null = null;

  constructor(info: EngineInfo, body: Record<string, unknown>, { includeUsage }: Streaming) {
    this.#common = { id: newId("chatcmpl-"), created: seconds(), model: info.modelId, system_fingerprint: fingerprint(info) };
    this.#logprobs = body["logprobs"] === true;
    this.#includeUsage = includeUsage;
    this.#choices = (body["n"] as number | undefined) ?? 1;
  }

  whole(result: WireResult): ChatCompletion {
    return {
      id: this.#common.id,
      object: "chat.completion",
      created: this.#common.created,
      model: this.#common.model,
      system_fingerprint: this.#common.system_fingerprint,
      choices: result.choices.map((choice, index) => ({
        index,
        message: { role: "assistant", content: choice.text, refusal: null },
        finish_reason: choice.finish_reason,
        logprobs: this.#logprobs ? { content: (choice.logprobs ?? []).map(chatLogprob), refusal: null } : null,
      })),
      usage: result.usage,
      timings: result.timings,
    };
  }

  token(part: number, token: WireToken, emit: Emit<ChatCompletionChunk>): void {
    this.#begin(token.choice, emit);
    const logprobs = this.#logprobs ? { content: [chatLogprob(token)], refusal: null } : null;
    emit(this.#chunk([{ index: token.choice, delta: { content: token.text }, finish_reason: null, logprobs }]), part);
    // The last choice's end waits for the timings that go with it.
    if (token.finish_reason && this.#ended.size + 1 < this.#choices) this.#finish(token.choice, token.finish_reason, emit);
  }

  done(_part: number, value: unknown, emit: Emit<ChatCompletionChunk>): void {
    this.#result = value as WireResult;
    const { choices, timings } = this.#result;
    choices.forEach((choice, index) => {
      if (this.#ended.has(index)) return;
      const last = !this.#includeUsage && this.#ended.size + 1 === choices.length;
      this.#begin(index, emit);
      this.#finish(index, choice.finish_reason, emit, last ? timings : undefined);
    });
  }

  end(emit: Emit<ChatCompletionChunk>): void {
    if (!this.#includeUsage || !this.#result) return;
    emit({ ...this.#chunk([], this.#result.timings), usage: this.#result.usage });
  }

  #begin(index: number, emit: Emit<ChatCompletionChunk>): void {
    if (this.#begun.has(index)) return;
    this.#begun.add(index);
    const delta: AssistantDelta = { role: "assistant", content: "" };
    emit(this.#chunk([{ index, delta, finish_reason: null, logprobs: null }]));
  }

  #finish(index: number, reason: "stop" | "length" | "tool_calls", emit: Emit<ChatCompletionChunk>, timings?: Timings): void {
    this.#ended.add(index);
    emit(this.#chunk([{ index, delta: {}, finish_reason: reason, logprobs: null }], timings));
  }

  #chunk(choices: ChatCompletionChunk["choices"], timings?: Timings): ChatCompletionChunk {
    const { id, created, model, system_fingerprint } = this.#common;
    const chunk: ChatCompletionChunk = { id, object: "chat.completion.chunk", created, model, system_fingerprint, choices };
    if (this.#includeUsage) chunk.usage = null;
    if (timings) chunk.timings = timings;
    return chunk;
  }
}
