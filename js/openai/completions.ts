/** `completions.create`: one or several prompts completed, echoed if wanted, answers and chunks in OpenAI's shape. */
import * as check from "../check.js";
import type { Client } from "../client.js";
import type { CompletionBody, CompletionCreate, CompletionLogprobs, Stream, TextCompletion, TextCompletionChunk } from "../openai-types.js";
import type { WirePart, WireResult, WireScore, WireToken } from "../protocol.js";
import type { CheckedOptions } from "../request-options.js";
import { within } from "../request.js";
import { checkRequest, checkRequestOptions } from "../request-options.js";
import type { EngineInfo, RequestOptions, Usage } from "../types.js";
import type { Streaming } from "./body.js";
import { checkBody, checkBookkeeping, checkStreaming, newId, pick, SAMPLING_FIELDS, seconds } from "./body.js";
import { Columns } from "./logprobs.js";
import type { Emit, Shaper } from "./run.js";
import { openStream } from "./run.js";

const ENGINE_FIELDS = [...SAMPLING_FIELDS, "max_tokens", "logprobs"] as const;
const FIELDS = [...ENGINE_FIELDS, "prompt", "model", "echo", "stream", "stream_options", "user", "metadata", "store"] as const;
/** Most alternatives to a token that are listed. */
const MAX_LOGPROBS = 20;

type Reason = "stop" | "length";
type Prompt = string | Uint32Array;
/** A prompt's text, and with logprobs its tokens, to stand before each of its choices. */
interface Echo {
  text: string;
  tokens: Uint32Array | null;
}

/** Makes the call of an engine. */
export function completionCreate(client: () => Client, info: () => EngineInfo): CompletionCreate {
  const create = async (body: CompletionBody, options?: RequestOptions): Promise<Stream<TextCompletionChunk> | TextCompletion> => {
    const limits = checkRequestOptions(options);
    const given = checkBody("completions.create", body, FIELDS, info());
    checkBookkeeping(given);
    const streaming = checkStreaming(given);
    const prompts = checkPrompts("prompt", given["prompt"]);
    const { logprobs, echo } = given;
    if (logprobs !== undefined) check.integer("request", "logprobs", logprobs, 0, MAX_LOGPROBS);
    const echoed = echo !== undefined && check.boolean("request", "echo", echo);
    const parts = generations(given, prompts, streaming, limits);
    limits.signal?.throwIfAborted();
    const echoesOf = (): Promise<Echo[]> => Promise.all(prompts.map((prompt) => echoOf(client(), prompt, logprobs !== undefined)));
    const echoes = echoed ? await within(limits, echoesOf()) : [];
    limits.signal?.throwIfAborted();
    for (const { tokens } of echoes) {
      if (tokens) parts.push({ kind: "score", scored: tokens, topLogprobs: logprobs as number, priority: limits.priority, pieces: true });
    }
    const shape = new TextShape(info(), given, prompts.length, echoes, streaming);
    if (streaming.stream) return openStream(client(), parts, limits, shape);
    return shape.whole(await client().run(parts, limits));
  };
  return create as CompletionCreate;
}

/** One prompt or several, as text or as token ids. */
export function checkPrompts(field: string, value: unknown): Prompt[] {
  const expected = "a string, an array of strings, an array of token ids, or an array of such arrays";
  if (typeof value === "string") return [check.wellFormed(value)];
  return check.reading("request", field, () => readPrompts(field, value, expected));
}

function readPrompts(field: string, value: unknown, expected: string): Prompt[] {
  if (!Array.isArray(value) || value.length === 0) throw check.invalid("request", field, expected, value);
  const list = value as unknown[];
  if (typeof list[0] === "number") return [check.tokenIds("request", field, list)];
  const at = (i: number): string => `${field}[${String(i)}]`;
  if (typeof list[0] === "string") return list.map((prompt, i) => check.wellFormed(check.string("request", at(i), prompt)));
  return list.map((prompt, i) => {
    if (!Array.isArray(prompt)) throw check.invalid("request", at(i), "an array of token ids", prompt);
    return check.tokenIds("request", at(i), prompt);
  });
}

function generations(body: Record<string, unknown>, prompts: Prompt[], { stream }: Streaming, limits: CheckedOptions): WirePart[] {
  const fields = pick(body, ENGINE_FIELDS);
  return prompts.map((prompt) => ({
    kind: "generate",
    ...checkRequest({ prompt, ...fields }, limits),
    tokens: stream ? "paced" : "none",
    pieces: body["logprobs"] !== undefined,
  }));
}

/** The engine reads a prompt's text with its special tokens; so does the echo's list of tokens. */
async function echoOf(client: Client, prompt: Prompt, withTokens: boolean): Promise<Echo> {
  if (typeof prompt !== "string") {
    return { text: await client.call("detokenize", { tokens: prompt, special: false }), tokens: withTokens ? prompt : null };
  }
  const tokens = withTokens ? await client.call("tokenize", { text: prompt, addSpecial: true, parseSpecial: true }) : null;
  return { text: prompt, tokens };
}

/** One answer's names, and what of it was told. Parts are the prompts, then the scores of those that are echoed with logprobs. */
class TextShape implements Shaper<TextCompletionChunk> {
  readonly #common: { id: string; created: number; model: string };
  readonly #prompts: number;
  readonly #n: number;
  readonly #echoes: Echo[];
  readonly #logprobs: boolean;
  readonly #includeUsage: boolean;
  readonly #scores = new Map<number, WireScore>();
  readonly #results = new Map<number, WireResult>();
  readonly #begun = new Set<number>();
  readonly #ended = new Set<number>();
  /** Tokens that came before the log-probabilities of their prompt. */
  readonly #held = new Map<number, WireToken[]>();

  constructor(info: EngineInfo, body: Record<string, unknown>, prompts: number, echoes: Echo[], { includeUsage }: Streaming) {
    this.#common = { id: newId("cmpl-"), created: seconds(), model: info.modelId };
    this.#prompts = prompts;
    this.#n = (body["n"] as number | undefined) ?? 1;
    this.#echoes = echoes;
    this.#logprobs = body["logprobs"] !== undefined;
    this.#includeUsage = includeUsage;
  }

  whole(values: unknown[]): TextCompletion {
    const results = values.slice(0, this.#prompts) as WireResult[];
    const choices = results.flatMap((result, p) => {
      const score = values[this.#prompts + p] as WireScore | undefined;
      return result.choices.map((choice, i) => ({
        index: p * this.#n + i,
        text: this.#echoText(p) + choice.text,
        finish_reason: choice.finish_reason as Reason,
        logprobs: this.#logprobs ? this.#columns(p, score, choice.logprobs ?? []) : null,
      }));
    });
    return { id: this.#common.id, object: "text_completion", created: this.#common.created, model: this.#common.model, choices, usage: sum(results) };
  }

  token(part: number, token: WireToken, emit: Emit<TextCompletionChunk>): void {
    if (this.#waitsForScore(part)) {
      this.#held.set(part, [...(this.#held.get(part) ?? []), token]);
      return;
    }
    const index = part * this.#n + token.choice;
    this.#begin(part, index, emit);
    const logprobs = this.#logprobs ? new Columns().addToken(token, this.#echoText(part).length).columns : null;
    emit(this.#chunk([{ index, text: token.text, finish_reason: null, logprobs }]), part);
    if (token.finish_reason) this.#finish(index, token.finish_reason, emit);
  }

  done(part: number, value: unknown, emit: Emit<TextCompletionChunk>): void {
    if (part < this.#prompts) {
      this.#results.set(part, value as WireResult);
      this.#settle(part, emit);
      return;
    }
    const prompt = part - this.#prompts;
    this.#scores.set(prompt, value as WireScore);
    const held = this.#held.get(prompt) ?? [];
    this.#held.delete(prompt);
    for (const token of held) this.token(prompt, token, emit);
    this.#settle(prompt, emit);
  }

  end(emit: Emit<TextCompletionChunk>): void {
    if (this.#includeUsage) emit({ ...this.#chunk([]), usage: sum([...this.#results.values()]) });
  }

  /** Choices that have no last token to end with. */
  #settle(part: number, emit: Emit<TextCompletionChunk>): void {
    const result = this.#results.get(part);
    if (!result || this.#waitsForScore(part)) return;
    result.choices.forEach((choice, i) => {
      const index = part * this.#n + i;
      this.#begin(part, index, emit);
      if (!this.#ended.has(index)) this.#finish(index, choice.finish_reason, emit);
    });
  }

  #waitsForScore(part: number): boolean {
    return Boolean(this.#echoes[part]?.tokens) && !this.#scores.has(part);
  }

  #begin(part: number, index: number, emit: Emit<TextCompletionChunk>): void {
    if (this.#begun.has(index)) return;
    this.#begun.add(index);
    if (this.#echoes.length === 0) return;
    const logprobs = this.#logprobs ? this.#columns(part, this.#scores.get(part), []) : null;
    emit(this.#chunk([{ index, text: this.#echoText(part), finish_reason: null, logprobs }]));
  }

  #finish(index: number, reason: string, emit: Emit<TextCompletionChunk>): void {
    this.#ended.add(index);
    emit(this.#chunk([{ index, text: "", finish_reason: reason as Reason, logprobs: null }]));
  }

  #columns(part: number, score: WireScore | undefined, tokens: WireToken[]): CompletionLogprobs {
    const columns = new Columns();
    const text = this.#echoText(part);
    if (score) columns.addPrompt(score, text);
    for (const token of tokens) columns.addToken(token, text.length);
    return columns.columns;
  }

  #echoText(part: number): string {
    return this.#echoes[part]?.text ?? "";
  }

  #chunk(choices: TextCompletionChunk["choices"]): TextCompletionChunk {
    const { id, created, model } = this.#common;
    const chunk: TextCompletionChunk = { id, object: "text_completion", created, model, choices };
    if (this.#includeUsage) chunk.usage = null;
    return chunk;
  }
}

function sum(results: readonly WireResult[]): Usage {
  const total = (pick: (usage: Usage) => number): number => results.reduce((all, { usage }) => all + pick(usage), 0);
  return {
    prompt_tokens: total((u) => u.prompt_tokens),
    completion_tokens: total((u) => u.completion_tokens),
    total_tokens: total((u) => u.total_tokens),
    prompt_tokens_details: { cached_tokens: total((u) => u.prompt_tokens_details.cached_tokens) },
  };
}
