/** The requests of one engine, on the engine's side: by the client's ids, their events as messages, what tokens stand for. */
import { toWire } from "./errors.js";
import type { Calls, Piece, TakenPart, ToClient, WirePart, WireResult, WireScore, WireToken } from "./protocol.js";
import type { WasmEngine } from "./wasm/fireside.js";

/** A request of the client's that runs here. */
interface Running {
  /** Of the wasm engine. */
  id: number;
  /** Nobody listens any more. */
  muted: boolean;
}

type OnEvent = (kind: string, json: string) => void;

export class HostRequests {
  readonly #engine: WasmEngine;
  readonly #post: (message: ToClient) => void;
  /** Told of the error with which the engine ends every request when its device is gone. */
  readonly #onLost: (error: unknown) => void;
  readonly #running = new Map<number, Running>();
  readonly #pieces = new Map<number, Piece>();

  constructor(engine: WasmEngine, post: (message: ToClient) => void, onLost: (error: unknown) => void) {
    this.#engine = engine;
    this.#post = post;
    this.#onLost = onLost;
  }

  /** All parts or none: the loop has no turn in between, so what is taken back was never begun. */
  submit(parts: Calls["submit"]["args"]["parts"]): null {
    try {
      for (const part of parts) this.#start(part, (onEvent) => this.#submit(part, onEvent));
    } catch (error) {
      for (const { rid } of parts) this.abort(rid, "cancelled");
      throw error;
    }
    return null;
  }

  /** Takes over what another engine ran, each part by itself. */
  resume(parts: TakenPart[]): null {
    for (const part of parts) {
      try {
        this.#start(part, (onEvent) => this.#resume(part, onEvent));
      } catch (error) {
        this.#post({ t: "failed", rid: part.rid, error: toWire(error) });
      }
    }
    return null;
  }

  read(rid: number, count: number): void {
    const running = this.#running.get(rid);
    if (running) this.#engine.read(running.id, count);
  }

  abort(rid: number, why: string): void {
    const running = this.#running.get(rid);
    if (!running) return;
    this.#running.delete(rid);
    running.muted = true;
    this.#engine.abort(running.id, why);
  }

  /** The result with the piece of every token in it. */
  #withPieces(part: WirePart, value: unknown): unknown {
    if (part.kind === "score") {
      const score = value as WireScore;
      const top = score.top?.map((list) => list.map((t) => ({ ...t, piece: this.#piece(t.token) })));
      return { ...score, top, pieces: Array.from(part.scored, (token) => this.#piece(token)) };
    }
    const result = value as WireResult;
    for (const choice of result.choices) choice.logprobs = choice.logprobs?.map((t) => this.#withPiece(t)) ?? [];
    return result;
  }

  #withPiece(event: WireToken): WireToken {
    const top = event.top?.map((t) => ({ ...t, piece: this.#piece(t.token) })) ?? [];
    return { ...event, piece: this.#piece(event.token), top };
  }

  #piece(token: number): Piece {
    let piece = this.#pieces.get(token);
    if (!piece) {
      const [found] = JSON.parse(this.#engine.pieces(Uint32Array.of(token))) as (Piece | null)[];
      piece = found ?? { bytes: [], control: false };
      this.#pieces.set(token, piece);
    }
    return piece;
  }

  /** Submits a part and ties its events to the client's id. Events may come before the wasm call returns. */
  #start(part: WirePart & { rid: number }, submit: (onEvent: OnEvent) => number): void {
    const { rid } = part;
    const running: Running = { id: -1, muted: false };
    this.#running.set(rid, running);
    try {
      running.id = submit((kind, json) => {
        if (!running.muted) this.#event(part, kind, json);
      });
    } catch (error) {
      this.#running.delete(rid);
      throw error;
    }
    // What to take the request over by, should this engine be lost.
    const prompt = part.kind === "generate" && part.prompt === null ? this.#engine.prompt(running.id) : undefined;
    if (prompt) this.#post({ t: "prompt", rid, tokens: prompt });
  }

  #submit(part: WirePart, onEvent: OnEvent): number {
    if (part.kind === "score") return this.#engine.score(part.scored, part.topLogprobs, onEvent, part.priority);
    return this.#engine.submit(part.request, part.prompt ?? undefined, onEvent, part.tokens === "paced");
  }

  #resume(part: TakenPart, onEvent: OnEvent): number {
    if (part.kind === "score" || !part.taken) return this.#submit(part, onEvent);
    const { prompt, progress } = part.taken;
    return this.#engine.resume(part.request, prompt, progress, onEvent, part.tokens === "paced");
  }

  #event(part: WirePart & { rid: number }, kind: string, json: string): void {
    const { rid } = part;
    if (kind === "token" && part.kind === "generate" && part.tokens === "none") return;
    const value: unknown = JSON.parse(json);
    if (kind === "token") {
      this.#post({ t: "token", rid, value: part.pieces ? this.#withPiece(value as WireToken) : value });
      return;
    }
    this.#running.delete(rid);
    if (kind === "done") this.#post({ t: "done", rid, value: part.pieces ? this.#withPieces(part, value) : value });
    else if ((value as { code?: unknown }).code === "device.lost") this.#onLost(value);
    else this.#post({ t: "failed", rid, error: toWire(value) });
  }
}
