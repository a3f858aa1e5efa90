/** Finding and launching Chromium: software WebGPU where there is no GPU, and no name but this machine's resolves. */
import fs from "node:fs";
import { UserError } from "./fail.mjs";
import { which } from "./paths.mjs";

const NAMES = [
  "chromium",
  "chromium-browser",
  "google-chrome",
  "google-chrome-stable",
  "chrome",
  "/Applications/Chromium.app/Contents/MacOS/Chromium",
  "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
];

/** How long a step in a page may take before it counts as one that never will: for a slow machine that is busy as well. */
export const PATIENCE_MS = 300_000;

/** Path of the browser, or null. CHROMIUM names one that is somewhere else. */
export function findChromium() {
  return process.env.CHROMIUM ? which(process.env.CHROMIUM) : which(...NAMES);
}

/** True when this machine shows a GPU that Chromium may use. */
function hasGpu() {
  if (process.platform !== "linux") return true;
  return fs.existsSync("/dev/nvidia0") || (fs.existsSync("/dev/dri") && fs.readdirSync("/dev/dri").some((n) => n.startsWith("render")));
}

/** Flags of every browser that the scripts and tests start. FIRESIDE_GPU=1 or 0 overrides what the machine shows. */
export function chromiumFlags({ webgpu = true } = {}) {
  const gpu = process.env.FIRESIDE_GPU ? process.env.FIRESIDE_GPU === "1" : hasGpu();
  return [
    ...(process.getuid?.() === 0 ? ["--no-sandbox"] : []),
    "--disable-dev-shm-usage",
    ...(webgpu ? ["--enable-unsafe-webgpu"] : []),
    ...(!webgpu ? [] : gpu ? (process.platform === "linux" ? ["--enable-features=Vulkan", "--use-angle=vulkan"] : []) : ["--use-webgpu-adapter=swiftshader"]),
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-background-timer-throttling",
    "--disable-renderer-backgrounding",
    // Kernels on the CPU, on a machine that is busy, are slow and not hung.
    "--disable-gpu-watchdog",
    "--js-flags=--expose-gc",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE localhost , EXCLUDE 127.0.0.1",
  ];
}

/** Playwright's own flags that keep pages out of the back- and forward-cache, where people's browsers put them. */
const NO_BACK_CACHE = ["--disable-back-forward-cache"];

/** A browser with its process id (for CPU time and memory) and `close`. `backCache`: pages that are left are kept, as in people's browsers. */
export async function launch({ show = false, webgpu = true, backCache = false } = {}) {
  const executablePath = findChromium();
  if (!executablePath) throw new UserError("setup.missing", "Chromium was not found: run `npm run setup`, or set CHROMIUM to its path");
  const { chromium } = await import("playwright-core");
  let server;
  try {
    const ignoreDefaultArgs = backCache ? NO_BACK_CACHE : [];
    server = await chromium.launchServer({ executablePath, headless: !show, args: chromiumFlags({ webgpu }), ignoreDefaultArgs, timeout: PATIENCE_MS });
  } catch (error) {
    throw new UserError("browser.start", `Chromium did not start: ${firstLines(error.message)}`, { executablePath });
  }
  const browser = await chromium.connect(server.wsEndpoint());
  browser.on("context", (context) => context.setDefaultTimeout(PATIENCE_MS));
  return {
    browser,
    pid: server.process().pid,
    async close() {
      await browser.close().catch(() => undefined);
      await server.close().catch(() => undefined);
    },
  };
}

function firstLines(text) {
  return text.split("\n").slice(0, 3).join(" ");
}
