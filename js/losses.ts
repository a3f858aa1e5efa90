/** How often a device or a Worker may be lost before it is given up. */
import type { WireLoadOptions } from "./protocol.js";

/** So many losses within a minute are too many. */
const MOST = 3;
const WINDOW_MS = 60_000;

/** What follows from a loss: load again as asked, load on the CPU, or end with the code. */
export type Verdict = "reload" | "cpu" | "give up";

/** The losses of one engine. */
export class Losses {
  readonly #times: number[] = [];

  /**
   * Judges one more loss. A GPU that keeps getting lost is replaced by the CPU where the options leave the choice;
   * what keeps getting lost on the CPU (a fault of ours) is given up.
   */
  judge(kind: "device" | "crash", backend: WireLoadOptions["backend"], now: number): Verdict {
    this.#times.push(now);
    while (this.#times[0] !== undefined && now - this.#times[0] > WINDOW_MS) this.#times.shift();
    if (this.#times.length < MOST) return "reload";
    if (kind === "device" && (backend === undefined || backend === "auto")) {
      this.#times.length = 0;
      return "cpu";
    }
    return "give up";
  }
}
