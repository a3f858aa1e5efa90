/** The Worker entry, also published as `fireside/worker` for Workers that the page makes itself. Several engines may share one, and the owner's own messages pass by. */
import { crashAll, serve } from "./host.js";
import { isConnect } from "./messages.js";

addEventListener("message", (event: MessageEvent<unknown>) => {
  if (isConnect(event.data)) serve(event.data.port);
});
// A trap inside a wasm task surfaces here and nowhere else; other scripts' errors in a shared Worker are not ours.
addEventListener("error", (event) => {
  if (event.error instanceof WebAssembly.RuntimeError) crashAll(event.error);
});
addEventListener("unhandledrejection", (event) => {
  if (event.reason instanceof WebAssembly.RuntimeError) crashAll(event.reason);
});
