/** What the page keeps of every running request, so that another engine can take it over where the last one stopped. */
import type { TakenPart, WirePart } from "./protocol.js";
import type { TokenEvent } from "./types.js";

/** A token as it came, without its text: that follows from the tokens. Log-probabilities are text, which keeps every bit. */
interface KeptToken {
  token: number;
  logprob?: string;
  top?: { token: number; logprob: string }[];
}

/** Seeds are below this: what a JavaScript number holds exactly (src/sampling). */
const SEED_BITS = 53;

/** One running part. Times are milliseconds. */
interface Ledger {
  part: WirePart & { rid: number };
  seed: number;
  submitted: number;
  firstToken: number | null;
  /** As the first engine made it into tokens: a template that writes the time would give others later. */
  prompt: Uint32Array | null;
  choices: KeptToken[][];
  accepted: boolean;
}

/** A part of which nothing is known yet. */
const EMPTY = { seed: 0, firstToken: null, accepted: false };

/** The running parts of one engine, by their ids. */
export class Ledgers {
  readonly #all = new Map<number, Ledger>();

  /**
   * A part is on its way to the engine: the part to send, with a seed in it. The page draws that, so that the request keeps its draws
   * wherever it runs.
   */
  begin(part: WirePart & { rid: number }, now: number): WirePart & { rid: number } {
    if (part.kind !== "generate") {
      this.#all.set(part.rid, { ...EMPTY, part, submitted: now, prompt: null, choices: [] });
      return part;
    }
    const request = JSON.parse(part.request) as { seed?: number | null };
    const seed = request.seed ?? randomSeed();
    const sent = request.seed === seed ? part : { ...part, request: JSON.stringify({ ...request, seed }) };
    this.#all.set(part.rid, { ...EMPTY, part: sent, seed, submitted: now, prompt: part.prompt, choices: [] });
    return sent;
  }

  /** The engine has taken it: after a loss it is taken over, not submitted anew. */
  accept(rid: number): void {
    const ledger = this.#all.get(rid);
    if (ledger) ledger.accepted = true;
  }

  prompt(rid: number, tokens: Uint32Array): void {
    const ledger = this.#all.get(rid);
    if (ledger) ledger.prompt = tokens;
  }

  /** Notes a token that is given to the caller. */
  token(rid: number, { choice, token, logprob, top }: TokenEvent, now: number): void {
    const ledger = this.#all.get(rid);
    if (!ledger) return;
    ledger.firstToken ??= now;
    // Choices come in any order; one without a token yet is an empty list.
    while (ledger.choices.length <= choice) ledger.choices.push([]);
    const kept: KeptToken = { token };
    if (logprob !== undefined) kept.logprob = String(logprob);
    if (top) kept.top = top.map((likely) => ({ token: likely.token, logprob: String(likely.logprob) }));
    ledger.choices[choice]?.push(kept);
  }

  end(rid: number): void {
    this.#all.delete(rid);
  }

  /** What the next engine is to take over, in the order of submission. */
  taken(now: number): TakenPart[] {
    const accepted = [...this.#all.values()].filter((ledger) => ledger.accepted);
    return accepted.map((ledger) => {
      const { part, prompt } = ledger;
      return { ...part, taken: prompt ? { prompt, progress: progress(ledger, now) } : null };
    });
  }
}

/** `Progress` of src/engine/resume.rs, as JSON. */
function progress({ seed, submitted, firstToken, choices }: Ledger, now: number): string {
  const first = firstToken === null ? {} : { first_run_ms: 0, first_token_ms: firstToken - submitted };
  return JSON.stringify({ seed, elapsed_ms: now - submitted, ...first, choices });
}

function randomSeed(): number {
  const [high = 0, low = 0] = crypto.getRandomValues(new Uint32Array(2));
  return (high % 2 ** (SEED_BITS - 32)) * 2 ** 32 + low;
}
