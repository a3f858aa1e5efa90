/** Making the thread that an engine runs in, and handing it its end of the channel. What is said over the channel is the client's. */
import { FiresideError } from "./errors.js";
import { serveHere } from "./local.js";
import type { Connect } from "./protocol.js";

/** The client's end, and the Worker that is ours to end. */
export interface Connection {
  port: MessagePort;
  ownWorker: Worker | null;
}

/** Connects to a new Worker (true), to a given one, or to a host in this thread (false). `onError` is told of each error of a Worker, of a given one until it answers. */
export function connectTo(worker: boolean | Worker, onError: (error: FiresideError) => void): Connection {
  const { port1, port2 } = new MessageChannel();
  if (worker === false) {
    serveHere(port2);
    return { port: port1, ownWorker: null };
  }
  const target = worker === true ? makeWorker() : worker;
  const listener = (event: ErrorEvent): void => {
    onError(workerError(event, worker === true));
  };
  target.addEventListener("error", listener);
  if (worker !== true) {
    // Once it has answered, the errors of a Worker that is not ours are its owner's.
    port1.addEventListener(
      "message",
      () => {
        target.removeEventListener("error", listener);
      },
      { once: true },
    );
  }
  const connect: Connect = { fireside: "connect", port: port2 };
  target.postMessage(connect, [port2]);
  return { port: port1, ownWorker: worker === true ? target : null };
}

/** The literal form is what bundlers look for. */
function makeWorker(): Worker {
  try {
    return new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
  } catch (cause) {
    const why = cause instanceof Error ? cause.message : String(cause);
    if (cause instanceof DOMException && cause.name === "SecurityError") throw crossOrigin(why, cause);
    throw new FiresideError("worker.failed", `The Worker could not be made: ${why}. ${WAYS_OUT}`, {}, { cause });
  }
}

const WAYS_OUT =
  "Give the `worker` option a Worker of your own that runs fireside/worker, or `worker: false` to run in this thread.";

/** Browsers start Workers from the page's own origin only, whatever CORS says. */
function crossOrigin(why: string, cause?: unknown): FiresideError {
  const origin = globalThis.location?.origin ?? "";
  const message = `The Worker's script may not be started from ${origin}: ${why} Serve the package from the page's own origin. ${WAYS_OUT}`;
  return new FiresideError("worker.cross_origin", message, { origin }, cause === undefined ? undefined : { cause });
}

/** Whether this very script came from another origin. In a bundle it may have an address of the build's, or none, which says nothing. */
function isElsewhere(): boolean {
  try {
    const { protocol, origin } = new URL(import.meta.url);
    return protocol.startsWith("http") && globalThis.location !== undefined && origin !== globalThis.location.origin;
  } catch {
    return false;
  }
}

/** A Worker that cannot start (no such file, not JavaScript, blocked by policy; in Firefox another origin too) says so by an event without a message. */
function workerError(event: ErrorEvent, ours: boolean): FiresideError {
  if (ours && !event.message && isElsewhere()) return crossOrigin("it lies on another origin.");
  const why = event.message
    ? `failed: ${event.message}.`
    : "could not be started: its script was not found, is not JavaScript, or a policy forbids it (Vite 7's dev server needs `optimizeDeps.exclude: [\"fireside\"]`).";
  const details = { file: event.filename ?? "", line: event.lineno ?? 0 };
  return new FiresideError("worker.failed", `The Worker ${why} ${WAYS_OUT}`, details);
}
