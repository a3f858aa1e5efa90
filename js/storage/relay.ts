/** Progress of a download for the tabs that wait for it, over a BroadcastChannel. Where there is none, they wait in silence. */
import type { OnProgress } from "../source/progress.js";
import type { LoadProgress } from "../types.js";

const TELL_MS = 200;
const ASK = "how far?";

function channel(key: string): BroadcastChannel | null {
  return typeof BroadcastChannel === "function" ? new BroadcastChannel(`fireside:${key}`) : null;
}

function isProgress(value: unknown): value is LoadProgress {
  const { phase, loaded, total } = (value ?? {}) as Partial<LoadProgress>;
  return phase === "download" && typeof loaded === "number" && typeof total === "number";
}

export const relay = {
  /** Calls back with what the downloading tab tells; the result stops it. */
  listen(key: string, onProgress: OnProgress): () => void {
    const from = channel(key);
    if (from) {
      from.onmessage = (event: MessageEvent<unknown>) => {
        if (isProgress(event.data)) onProgress(event.data);
      };
      // Whoever downloads may wait for the network right now: it is asked how far it is.
      from.postMessage(ASK);
    }
    return () => from?.close();
  },

  /** Tells the tabs that listen, at a steady pace. */
  speak(key: string): { tell: OnProgress; close: () => void } {
    const to = channel(key);
    let told = 0;
    let latest: LoadProgress | null = null;
    if (to) {
      to.onmessage = (event: MessageEvent<unknown>) => {
        if (event.data === ASK && latest) to.postMessage(latest);
      };
    }
    return {
      tell(progress) {
        latest = progress;
        const now = Date.now();
        if (progress.loaded < progress.total && now - told < TELL_MS) return;
        told = now;
        to?.postMessage(progress);
      },
      close: () => to?.close(),
    };
  },
};
