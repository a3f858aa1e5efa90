/** What this browser can do, asked without loading anything. */
import { loadUnsupported } from "./errors.js";
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

/** Asks the browser. Whether a certain model fits is refused with `load.unsupported` in this version. */
export async function preflight(model?: ModelSource): Promise<Preflight> {
  if (model !== undefined) throw loadUnsupported("preflight of a model", "this version answers for the browser only");
  return {
    webgpu: await webgpu(),
    cpu: {
      simd: WebAssembly.validate(SIMD),
      relaxedSimd: WebAssembly.validate(RELAXED_SIMD),
      threads: globalThis.crossOriginIsolated && typeof SharedArrayBuffer === "function",
    },
    storage: await storage(),
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
