/** Type test: what the package exports is assignable to the contract (fireside.d.ts), name by name; nothing is dropped. */
import type OpenAI from "openai";
import type * as Contract from "./fireside";
import type * as Ours from "../../js/index";

type Name = Exclude<keyof typeof Contract, "Engine" | "FiresideError">;
declare const ours: typeof Ours;
export const values: Pick<typeof Contract, Name> = ours;

declare const engine: Ours.Engine;
export const asEngine: Contract.Engine = engine;
export const load: (model: Contract.ModelSource, options?: Contract.LoadOptions) => Promise<Contract.Engine> = ours.Engine.load.bind(ours.Engine);

export const asError: Contract.FiresideError = new ours.FiresideError("room.what", "A sentence.", { field: 1 }, { cause: null });

// Inputs: what the contract accepts, we accept. Outputs: what we give, the contract promises.
export type Inputs = [
  Accepts<Ours.LoadOptions, Contract.LoadOptions>,
  Accepts<Ours.GenerateRequest, Contract.GenerateRequest>,
  Accepts<Ours.RequestOptions, Contract.RequestOptions>,
  Accepts<Ours.ChatBody, Contract.ChatBody>,
  Accepts<Ours.CompletionBody, Contract.CompletionBody>,
  Accepts<Ours.EmbeddingBody, Contract.EmbeddingBody>,
  Accepts<Contract.GenerateResult, Ours.GenerateResult>,
  Accepts<Contract.TokenEvent, Ours.TokenEvent>,
  Accepts<Contract.ScoreResult, Ours.ScoreResult>,
  Accepts<Contract.EngineInfo, Ours.EngineInfo>,
  Accepts<Contract.EngineStats, Ours.EngineStats>,
  Accepts<Contract.LoadProgress, Ours.LoadProgress>,
  Accepts<Contract.ChatCompletion, Ours.ChatCompletion>,
  Accepts<Contract.ChatCompletionChunk, Ours.ChatCompletionChunk>,
  Accepts<Contract.TextCompletion, Ours.TextCompletion>,
  Accepts<Contract.TextCompletionChunk, Ours.TextCompletionChunk>,
  Accepts<Contract.EmbeddingResponse<string>, Ours.EmbeddingResponse<string>>,
  Accepts<Contract.ModelCard, Ours.ModelCard>,
  Accepts<Contract.StepTrace, Ours.StepTrace>,
  Accepts<Contract.Stream<Contract.ChatCompletionChunk>, Ours.Stream<Ours.ChatCompletionChunk>>,
  // And what the SDK's readers are given is what they know.
  Accepts<OpenAI.Chat.Completions.ChatCompletion, Ours.ChatCompletion>,
  Accepts<OpenAI.Chat.Completions.ChatCompletionChunk, Ours.ChatCompletionChunk>,
  Accepts<OpenAI.Completions.Completion, Ours.TextCompletion>,
  Accepts<OpenAI.CreateEmbeddingResponse, Ours.EmbeddingResponse<number[]>>,
];
type Accepts<Wide, Narrow extends Wide> = [Wide, Narrow];
