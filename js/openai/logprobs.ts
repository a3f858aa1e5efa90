/** Log-probabilities in OpenAI's two shapes, from tokens with their pieces. */
import type { ChatLogprob, CompletionLogprobs } from "../openai-types.js";
import type { Piece, WireScore, WireToken } from "../protocol.js";

const utf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

function hex(bytes: readonly number[]): string {
  return bytes.map((byte) => `\\x${byte.toString(16).padStart(2, "0")}`).join("");
}

/** A token's text; half a character is written as the bytes it is, as OpenAI does, after `prefix`. */
function tokenText(piece: Piece | undefined, prefix: string): string {
  const bytes = piece?.bytes ?? [];
  try {
    return utf8.decode(Uint8Array.from(bytes));
  } catch {
    return prefix + hex(bytes);
  }
}

/** A token as the chat form has it. A control token adds no bytes to the text: `bytes` is null. */
function chatToken(piece: Piece | undefined, logprob: number): Omit<ChatLogprob, "top_logprobs"> {
  return { token: tokenText(piece, ""), logprob, bytes: piece && !piece.control ? piece.bytes : null };
}

export function chatLogprob(token: WireToken): ChatLogprob {
  const top = token.top ?? [];
  return { ...chatToken(token.piece, token.logprob ?? NaN), top_logprobs: top.map((t) => chatToken(t.piece, t.logprob)) };
}

type Top = NonNullable<WireToken["top"]>;

/** The plain form lists in columns; this fills them token by token. */
export class Columns {
  readonly columns: CompletionLogprobs = { text_offset: [], token_logprobs: [], tokens: [], top_logprobs: [] };

  add(piece: Piece | undefined, logprob: number, top: Top, offset: number): void {
    this.columns.tokens.push(tokenText(piece, "bytes:"));
    this.columns.token_logprobs.push(logprob);
    this.columns.text_offset.push(offset);
    this.columns.top_logprobs.push(Object.fromEntries(top.map((t) => [tokenText(t.piece, "bytes:"), t.logprob])));
  }

  /** A generated token of a choice whose text begins at `start`. */
  addToken(token: WireToken, start: number): this {
    this.add(token.piece, token.logprob ?? NaN, token.top ?? [], start + (token.offset ?? 0));
    return this;
  }

  /** A prompt's tokens over the prompt's text. The first has no log-probability: NaN. */
  addPrompt(score: WireScore, text: string): this {
    const pieces = score.pieces ?? [];
    const offsets = promptOffsets(pieces, text);
    pieces.forEach((piece, i) => {
      this.add(piece, score.logprobs[i] ?? NaN, score.top?.[i] ?? [], offsets[i] ?? text.length);
    });
    return this;
  }
}

/** Where each piece begins in the text, in UTF-16 units. Pieces may begin with a space that the text does not have. */
function promptOffsets(pieces: readonly Piece[], text: string): number[] {
  const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
  let at = 0;
  const offsets = pieces.map(({ bytes, control }) => {
    const offset = at;
    // A special token that the text spells out is part of it; one that the tokenizer added is not.
    const spelled = !control || text.startsWith(tokenText({ bytes, control }, ""), at);
    if (spelled) at += decoder.decode(Uint8Array.from(bytes), { stream: true }).length;
    return offset;
  });
  const extra = at - text.length;
  return offsets.map((offset) => Math.max(0, offset - Math.max(0, extra)));
}
