/** The OpenAI-shaped types of the contract; js/openai/ makes them. */
import type {
  AssistantDelta,
  AssistantMessage,
  ChatMessage,
  FinishReason,
  RequestOptions,
  SamplingFields,
  Timings,
  Tool,
  Usage,
} from "./types.js";

export interface ChatBody extends SamplingFields {
  model?: string | null;
  messages: readonly ChatMessage[];
  max_tokens?: number | null;
  max_completion_tokens?: number | null;
  logprobs?: boolean | null;
  /** 0 to 20. */
  top_logprobs?: number | null;
  tools?: readonly Tool[];
  tool_choice?: "none" | "auto" | "required" | { type: "function"; function: { name: string } };
  parallel_tool_calls?: boolean;
  stream?: boolean | null;
  stream_options?: { include_usage?: boolean } | null;
  user?: string;
  metadata?: object | null;
  store?: false | null;
}
export interface CompletionBody extends SamplingFields {
  model?: string | null;
  prompt: string | string[] | number[] | number[][];
  max_tokens?: number | null;
  logprobs?: number | null;
  echo?: boolean | null;
  stream?: boolean | null;
  stream_options?: { include_usage?: boolean } | null;
}

/**
 * Async iterable, once. Leaving the loop early, return(), cancel() and controller.abort() end the request quietly; an external
 * signal makes the iterator throw the signal's reason. Past 64 unread chunks the request pauses until some are read.
 */
export interface Stream<T> extends AsyncIterable<T> {
  /** Aborting it ends the request quietly. */
  readonly controller: AbortController;
  /** The chunks as objects. */
  readonly readable: ReadableStream<T>;
  cancel(): Promise<void>;
  /** Two streams of the same chunks, paced by the faster one. */
  tee(): [Stream<T>, Stream<T>];
  /** The chunks as lines of JSON, in bytes. */
  toReadableStream(): ReadableStream;
}

export interface ChatCreate {
  (body: ChatBody & { stream: true }, options?: RequestOptions): Promise<Stream<ChatCompletionChunk>>;
  (body: ChatBody & { stream?: false | null }, options?: RequestOptions): Promise<ChatCompletion>;
  (body: ChatBody, options?: RequestOptions): Promise<Stream<ChatCompletionChunk> | ChatCompletion>;
}
/** With P prompts and n choices, choice i of prompt p has index p * n + i. */
export interface CompletionCreate {
  (body: CompletionBody & { stream: true }, options?: RequestOptions): Promise<Stream<TextCompletionChunk>>;
  (body: CompletionBody & { stream?: false | null }, options?: RequestOptions): Promise<TextCompletion>;
  (body: CompletionBody, options?: RequestOptions): Promise<Stream<TextCompletionChunk> | TextCompletion>;
}
/** Assignable to `openai`'s ChatCompletion. */
export interface ChatCompletion {
  id: string;
  object: "chat.completion";
  created: number;
  model: string;
  system_fingerprint: string;
  choices: {
    index: number;
    message: AssistantMessage;
    finish_reason: FinishReason;
    logprobs: { content: ChatLogprob[]; refusal: null } | null;
  }[];
  usage: Usage;
  timings: Timings;
}
/** Assignable to `openai`'s ChatCompletionChunk. */
export interface ChatCompletionChunk {
  id: string;
  object: "chat.completion.chunk";
  created: number;
  model: string;
  system_fingerprint: string;
  choices: {
    index: number;
    delta: AssistantDelta;
    finish_reason: FinishReason | null;
    logprobs?: { content: ChatLogprob[]; refusal: null } | null;
  }[];
  usage?: Usage | null;
  timings?: Timings;
}
export interface ChatLogprob {
  token: string;
  logprob: number;
  bytes: number[] | null;
  top_logprobs: { token: string; logprob: number; bytes: number[] | null }[];
}
export interface CompletionLogprobs {
  text_offset: number[];
  token_logprobs: number[];
  tokens: string[];
  top_logprobs: Record<string, number>[];
}
/** Assignable to `openai`'s Completion. */
export interface TextCompletion {
  id: string;
  object: "text_completion";
  created: number;
  model: string;
  choices: { index: number; text: string; finish_reason: "stop" | "length"; logprobs: CompletionLogprobs | null }[];
  usage: Usage;
}
export interface TextCompletionChunk {
  id: string;
  object: "text_completion";
  created: number;
  model: string;
  choices: {
    index: number;
    text: string;
    finish_reason: "stop" | "length" | null;
    logprobs: CompletionLogprobs | null;
  }[];
  usage?: Usage | null;
}
export interface EmbeddingBody {
  model?: string | null;
  input: string | string[] | number[] | number[][];
  dimensions?: number;
  user?: string;
}
export interface EmbeddingCreate {
  (body: EmbeddingBody & { encoding_format: "base64" }, options?: RequestOptions): Promise<EmbeddingResponse<string>>;
  (body: EmbeddingBody & { encoding_format?: "float" }, options?: RequestOptions): Promise<EmbeddingResponse<number[]>>;
}
export interface EmbeddingResponse<E> {
  object: "list";
  model: string;
  data: { object: "embedding"; index: number; embedding: E }[];
  usage: { prompt_tokens: number; total_tokens: number };
}
export interface ModelCard {
  id: string;
  object: "model";
  created: number;
  owned_by: string;
  context_window: number;
  bytes: number;
}
