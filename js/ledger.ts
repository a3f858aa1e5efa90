/** What the page keeps of every running request, so that another engine can take it over where the last one stopped. */
import type { TokenEvent } from "./types.js";

/** A token as it came, without its text: that follows from the tokens. */
type KeptToken = Pick<TokenEvent, "token" | "logprob" | "top">;

/** The wire form of what is kept: `Progress` of src/engine/resume.rs. Times are milliseconds since the submission. */
export interface WireProgress {
  seed: number;
  elapsed_ms: number;
  first_run_ms?: number;
  first_token_ms?: number;
  choices: KeptToken[][];
}

/** Seeds are drawn by the page: a request keeps its draws wherever it runs. Below 2^53, as in src/sampling. */
export function randomSeed(): number {
  const [high = 0, low = 0] = crypto.getRandomValues(new Uint32Array(2));
  return (high % 2 ** 21) * 2 ** 32 + low;
}

/** One request, from its submission to its end. */
export class Ledger {
  readonly #seed: number;
  readonly #submitted: number;
  readonly #choices: KeptToken[][] = [];
  #firstToken: number | undefined;
  /** The prompt as the first engine made it into tokens: a template that writes the time gives no other one later. */
  prompt: Uint32Array | null;

  constructor(seed: number, prompt: Uint32Array | null, now: number) {
    this.#seed = seed;
    this.#submitted = now;
    this.prompt = prompt;
  }

  /** Notes a token that was given to the caller. */
  token({ choice, token, logprob, top }: TokenEvent, now: number): void {
    this.#firstToken ??= now - this.#submitted;
    // Choices come in any order; one without a token yet is an empty list.
    while (this.#choices.length <= choice) this.#choices.push([]);
    this.#choices[choice]?.push({ token, ...(logprob === undefined ? {} : { logprob }), ...(top ? { top } : {}) });
  }

  /** What the next engine must know. */
  progress(now: number): WireProgress {
    return {
      seed: this.#seed,
      elapsed_ms: now - this.#submitted,
      ...(this.#firstToken === undefined ? {} : { first_run_ms: 0, first_token_ms: this.#firstToken }),
      choices: this.#choices,
    };
  }
}
