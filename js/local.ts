/** The engine in the page's own thread (`worker: false`): the same host on the same kind of port, and no Worker. */
import { serve } from "./host.js";
import { watchForTraps } from "./traps.js";

/** Starts a host in this thread. */
export function serveHere(port: MessagePort): void {
  watchForTraps();
  serve(port);
}
