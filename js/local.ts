/** The engine in the page's own thread (`worker: false`): the same host on the same kind of port, and no Worker. */
import { crashAll, serve } from "./host.js";

let watching = false;

/** Starts a host in this thread. */
export function serveHere(port: MessagePort): void {
  if (!watching && typeof addEventListener === "function") {
    watching = true;
    addEventListener("error", (event) => {
      if (event.error instanceof WebAssembly.RuntimeError) crashAll(event.error);
    });
    addEventListener("unhandledrejection", (event) => {
      if (event.reason instanceof WebAssembly.RuntimeError) crashAll(event.reason);
    });
  }
  serve(port);
}
