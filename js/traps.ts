/** Traps in wasm tasks surface as errors of the thread and nowhere else: whoever starts hosts in a thread watches for them. */
import { crashAll } from "./host.js";

/** What the glue throws when something of a replaced instance is called once more: timers and promises that were still out. */
const STALE = /from previous wasm instance/i;

let watching = false;

/** From now on traps of this thread end its engines. Other scripts' errors are not ours. */
export function watchForTraps(): void {
  if (watching || typeof addEventListener !== "function") return;
  watching = true;
  addEventListener("error", (event) => {
    watch(event, event.error);
  });
  addEventListener("unhandledrejection", (event) => {
    watch(event, event.reason);
  });
}

/** Marked as handled: a Worker's unhandled errors are told to its page, which hears of these over the port. */
function watch(event: Event, error: unknown): void {
  if (error instanceof WebAssembly.RuntimeError) {
    event.preventDefault();
    crashAll(error);
  } else if (error instanceof Error && STALE.test(error.message)) {
    event.preventDefault();
  }
}
