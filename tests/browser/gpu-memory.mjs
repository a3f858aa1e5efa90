/**
 * Memory of the browser's GPU process while engines come and go on WebGPU: what it holds after each, and while some are kept. Shared by
 * the browser tests and `npm run soak`. Linux only: the figures come from /proc.
 */
import { gpuAnonymousBytes } from "../../scripts/lib/proc.mjs";

/** Readings this near to each other are the same: allocators give pages back a few at a time. */
const STILL_BYTES = 512 * 1024;
const READINGS = 40;

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** What the GPU process holds once it is quiet: what was freed is given back a moment later. The smallest of some readings if it never is. */
async function settled(pid) {
  let least = Infinity;
  let same = 0;
  for (let n = 0, last = NaN; n < READINGS && same < 3; n++) {
    const now = gpuAnonymousBytes(pid);
    same = Math.abs(now - last) <= STILL_BYTES ? same + 1 : 0;
    least = Math.min(least, now);
    last = now;
    await pause(50);
  }
  return least;
}

/** In the page: loads an engine, uses it, and leaves it in `window.engines`. */
async function loadOne([source, worker, contextLength]) {
  const { Engine } = await import("/pkg/index.js");
  if (worker === "given") window.given ??= new Worker("/pkg/worker.js", { type: "module" });
  const engine = await Engine.load(source, { backend: "webgpu", contextLength, worker: worker === "given" ? window.given : worker });
  (window.engines ??= []).push(engine);
  await engine.generate({ prompt: [5, 6, 7, 8], temperature: 0, max_tokens: 2 });
  return { weights: engine.info.memory.weightBytes, kv: engine.info.memory.kvBytes };
}

const disposeAll = () => Promise.all(window.engines.splice(0).map((engine) => engine.dispose())).then(() => undefined);

/**
 * `cycles` times an engine is loaded, used and disposed of; then `kept` are loaded and kept, and disposed of together. `worker`: the
 * load option, or "given" for one Worker that all of them share, with an engine of `beside` that stays throughout. Bytes of the GPU
 * process before, after each cycle, with the kept ones, without them, and when there is nothing left.
 */
export async function gpuCycles(page, { source, worker, cycles, kept, beside = null, contextLength = 128 }) {
  const before = await settled(page.pid);
  if (beside) await page.run(loadOne, [beside, worker, contextLength]);
  await page.run(() => void (window.stays = window.engines?.splice(0) ?? []));
  const after = [];
  let engine;
  for (let n = 0; n < cycles; n++) {
    engine = await page.run(loadOne, [source, worker, contextLength]);
    await page.run(disposeAll);
    after.push(await settled(page.pid));
  }
  for (let n = 0; n < kept; n++) await page.run(loadOne, [source, worker, contextLength]);
  const holding = await settled(page.pid);
  await page.run(disposeAll);
  await page.run(() => Promise.all(window.stays.map((engine) => engine.dispose())).then(() => undefined));
  return { engine, before, after, holding, freed: await settled(page.pid) };
}

/** How much more there is after the last cycles than after the first, once those that fill caches are over. */
export function growth(after) {
  const warm = Math.floor(after.length / 4);
  const half = warm + Math.floor((after.length - warm) / 2);
  return Math.max(...after.slice(-3)) - Math.max(...after.slice(warm, half));
}
