/** The wasm module: compiled from what the caller names, checked to be ours, started once a thread. Every way it can be wrong is `load.wasm`. */
import { FiresideError } from "./errors.js";
import init, { __wbg_reset_state as resetState } from "./wasm/fireside.js";

/** What the glue cannot do without; a module that lacks one was built for something else. */
const OUR_EXPORTS = ["memory", "wasmengine_load"];

/** Fetches and compiles the module at a URL. */
export async function compileUrl(url: string, signal: AbortSignal): Promise<WebAssembly.Module> {
  let response: Response;
  try {
    response = await fetch(url, { signal });
  } catch (cause) {
    signal.throwIfAborted();
    throw wrong(`The wasm at ${url} could not be fetched: ${reason(cause)}`, { url }, cause);
  }
  return compileResponse(response);
}

/** Compiles a Response, while it arrives where the server names its type. */
export async function compileResponse(response: Response): Promise<WebAssembly.Module> {
  const { status, url } = response;
  const from = url === "" ? "The given wasm Response" : `The wasm at ${url}`;
  if (!response.ok) throw wrong(`${from} has HTTP status ${String(status)}.`, { url, status });
  if (response.bodyUsed) throw wrong(`${from} has been read already: give one whose body is unread.`, { url });
  const type = (response.headers.get("content-type") ?? "").split(";")[0]?.trim().toLowerCase() ?? "";
  try {
    // compileStreaming insists on the type, and not every server knows it.
    if (type === "application/wasm") return await WebAssembly.compileStreaming(response);
    return await WebAssembly.compile(await response.arrayBuffer());
  } catch (cause) {
    throw wrong(`${from} (content type ${JSON.stringify(type)}) could not be compiled: ${reason(cause)}`, { url, type }, cause);
  }
}

/** Instantiates the module in this thread; with null the one beside the glue, or where a bundler put that. Later calls do nothing. */
export async function startWasm(wasm: string | WebAssembly.Module | null, signal: AbortSignal): Promise<void> {
  const module = typeof wasm === "string" ? await compileUrl(wasm, signal) : wasm;
  if (module) checkModule(module);
  try {
    await init({ module_or_path: module ?? undefined });
  } catch (cause) {
    if (!isWrongModule(cause)) throw cause;
    const hint = module || isPolicy(cause) ? "" : " If a bundler moves the package's files, say where its wasm is by the `wasm` option.";
    throw wrong(`The wasm module could not be started: ${reason(cause)}${hint}`, {}, cause);
  }
}

/** After a trap or the loss of the device: a fresh instance of the same module, with memory of its own. */
export async function renewWasm(): Promise<void> {
  try {
    await resetState();
  } catch (cause) {
    const message = `The engine crashed earlier in this thread, and a new one could not be started in it: ${reason(cause)}`;
    throw new FiresideError("engine.crashed", message, {}, { cause });
  }
}

/** Before init: the glue keeps whatever instance it got first, so a wrong one must not reach it. */
function checkModule(module: WebAssembly.Module): void {
  const names = new Set(WebAssembly.Module.exports(module).map(({ name }) => name));
  const missing = OUR_EXPORTS.filter((name) => !names.has(name));
  if (missing.length === 0) return;
  throw wrong(`The given wasm is not fireside's: it does not export ${missing.join(", ")}.`, { missing });
}

/** Running out of memory and traps are not the module's fault. */
function isWrongModule(cause: unknown): boolean {
  return cause instanceof TypeError || cause instanceof WebAssembly.CompileError || cause instanceof WebAssembly.LinkError || isPolicy(cause);
}

/** Browsers differ in the class of this error and name the old, wider keyword for what is missing. */
function isPolicy(cause: unknown): boolean {
  return cause instanceof Error && /content security policy|\bCSP\b|unsafe-eval/i.test(cause.message);
}

/** What was thrown, as a sentence. */
function reason(cause: unknown): string {
  const said = cause instanceof Error ? cause.message : String(cause);
  const sentence = said.endsWith(".") ? said : `${said}.`;
  return isPolicy(cause) ? `${sentence} The content security policy must allow 'wasm-unsafe-eval' for scripts.` : sentence;
}

function wrong(message: string, details: Record<string, unknown>, cause?: unknown): FiresideError {
  return new FiresideError("load.wasm", message, details, cause === undefined ? undefined : { cause });
}
