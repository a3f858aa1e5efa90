/** What this browser can do, and whether a model would fit, asked without loading anything. */
import { fromWire } from "./errors.js";
import { checkSource } from "./load-options.js";
import { inWorker } from "./models.js";
import type { Survey } from "./protocol.js";
import type { ModelSource, Preflight } from "./types.js";

/** The parts of WebGPU that are asked here; the DOM library of TypeScript has no WebGPU types. */
interface Gpu {
  requestAdapter(): Promise<{
    info?: { vendor: string; architecture: string; isFallbackAdapter?: boolean };
    features: Iterable<string>;
    limits: object;
  } | null>;
}

/** A module with one function that returns a v128, using the given instructions: valid only where they are known. */
function simdModule(...instructions: number[]): Uint8Array<ArrayBuffer> {
  const body = [0x00, ...instructions, 0x0b];
  const code = [0x01, body.length, ...body];
  const types = [0x01, 0x05, 0x01, 0x60, 0x00, 0x01, 0x7b];
  return Uint8Array.of(0, 0x61, 0x73, 0x6d, 1, 0, 0, 0, ...types, 0x03, 0x02, 0x01, 0x00, 0x0a, code.length, ...code);
}
const SPLAT_ZERO = [0x41, 0x00, 0xfd, 0x0f];
/** i8x16.popcnt, and i8x16.relaxed_swizzle. */
const SIMD = simdModule(...SPLAT_ZERO, 0xfd, 0x62);
const RELAXED_SIMD = simdModule(...SPLAT_ZERO, ...SPLAT_ZERO, 0xfd, 0x80, 0x02);

/** Tokens of cache without which a model is of no use. */
const LEAST_TOKENS = 16;

/** Asks the browser, and of the model its header only. A file that is no model, or one that is not run, is an error. */
export async function preflight(model?: ModelSource): Promise<Preflight> {
  const source = model === undefined || model === null ? null : checkSource(model, undefined);
  const gpu = await webgpu();
  const report: Preflight = {
    webgpu: gpu,
    cpu: {
      simd: WebAssembly.validate(SIMD),
      relaxedSimd: WebAssembly.validate(RELAXED_SIMD),
      threads: globalThis.crossOriginIsolated && typeof SharedArrayBuffer === "function",
    },
    storage: await storage(),
  };
  if (!source) return report;
  const { survey } = await inWorker(
    () => undefined,
    (client) => client.cancellable("survey", { source }, undefined),
  );
  if (survey.refused) throw fromWire(survey.refused);
  return { ...report, fits: fits(survey, gpu) };
}

/** What the header says against what the browser says. */
function fits({ needs, weightBytes }: Survey, gpu: Preflight["webgpu"]): NonNullable<Preflight["fits"]> {
  const { kvBytesPerToken = 0, rowBytes = 0, wasmTokens = 0, contextLength = 0 } = needs ?? {};
  const reasons: string[] = [];
  const cpu = wasmTokens >= Math.min(LEAST_TOKENS, contextLength) ? "yes" : "no";
  if (cpu === "no") reasons.push(`the CPU backend has 4 GiB of memory, the weights alone take ${String(weightBytes)} bytes`);
  else if (wasmTokens < contextLength) reasons.push(`on the CPU backend ${String(wasmTokens)} tokens of context fit`);
  const binding = gpu.limits?.["maxStorageBufferBindingSize"] ?? 0;
  // Matrices are parted by rows and the cache by layers and blocks: what cannot be parted must be bindable.
  const bindable = rowBytes <= binding && LEAST_TOKENS * kvBytesPerToken <= binding;
  if (!gpu.available) reasons.push(`WebGPU: ${gpu.reason ?? "not available"}`);
  else if (!bindable) reasons.push(`WebGPU binds ${String(binding)} bytes at most, a row takes ${String(rowBytes)}`);
  return {
    webgpu: gpu.available && bindable ? "unknown" : "no",
    cpu,
    weightBytes,
    kvBytesPerToken,
    ...(reasons.length > 0 ? { reason: reasons.join("; ") } : {}),
  };
}

async function webgpu(): Promise<Preflight["webgpu"]> {
  const gpu = (navigator as { gpu?: Gpu }).gpu;
  if (!gpu) return { available: false, reason: "this browser has no WebGPU, or the page is not a secure context" };
  const adapter = await gpu.requestAdapter().catch(() => null);
  if (!adapter) return { available: false, reason: "there is no usable adapter" };
  // Limits are getters on a prototype: `for in` sees them, Object.keys does not.
  const limits: Record<string, number> = {};
  for (const name in adapter.limits) {
    const limit = (adapter.limits as Record<string, unknown>)[name];
    if (typeof limit === "number") limits[name] = limit;
  }
  return {
    available: true,
    adapter: {
      vendor: adapter.info?.vendor ?? "",
      architecture: adapter.info?.architecture ?? "",
      features: [...adapter.features],
      fallback: adapter.info?.isFallbackAdapter ?? false,
    },
    limits,
  };
}

async function storage(): Promise<Preflight["storage"]> {
  const manager = (navigator as { storage?: StorageManager }).storage;
  if (!manager) return null;
  const { usage = 0, quota = 0 } = await manager.estimate();
  return { usage, quota, persisted: await manager.persisted() };
}
