/** What building and running need, checked and set up where it is missing. A second run finds everything and does nothing. */
import crypto from "node:crypto";
import fs from "node:fs";
import path from "node:path";
import { findChromium } from "./chromium.mjs";
import { output, run } from "./exec.mjs";
import { UserError } from "./fail.mjs";
import { ROOT, TOOLS, bindgenVersion, which } from "./paths.mjs";
import { findFirefox, findWebKit } from "./webdriver.mjs";

const note = (text) => console.error(`setup: ${text}`);

function missing(what, how) {
  return new UserError("setup.missing", `${what} is missing: ${how}`, { what, how });
}

/** rustup and cargo are the caller's to install: they own the machine's toolchains. */
async function rust() {
  if (!which("cargo") || !which("rustc")) throw missing("Rust", "install it with rustup (https://rustup.rs), then run this again");
  const sysroot = output("rustc", ["--print", "sysroot"]);
  if (sysroot && fs.existsSync(path.join(sysroot, "lib/rustlib/wasm32-unknown-unknown/lib"))) return;
  if (!which("rustup")) throw missing("Rust's wasm32-unknown-unknown target", "install it the way this Rust was installed, or use rustup");
  note("adding Rust's wasm32-unknown-unknown target");
  await run("rustup", ["target", "add", "wasm32-unknown-unknown"]);
}

/** The command-line tool writes glue for exactly the crate's version. An installed one of that version is used. */
async function bindgen() {
  const version = bindgenVersion();
  const installed = () => output("wasm-bindgen", ["--version"])?.split(" ")[1] === version && which("wasm-bindgen-test-runner");
  if (installed()) return;
  note(`installing wasm-bindgen ${version} (a few minutes, once)`);
  const build = path.join(TOOLS, "build");
  // Not --locked: the lock file in that package names a dependency that was withdrawn.
  await run("cargo", ["install", "wasm-bindgen-cli", "--version", version, "--root", TOOLS, "--force"], { env: { CARGO_TARGET_DIR: build } });
  fs.rmSync(build, { recursive: true, force: true });
  if (!installed()) throw missing(`wasm-bindgen ${version}`, `remove the older one from PATH (${which("wasm-bindgen")})`);
}

/** The version whose reading of deny.toml the stage was written for. */
const DENY_VERSION = "0.20.2";

/** Whether the checker of dependencies is there. */
export function hasDeny() {
  return output("cargo-deny", ["--version"]) === `cargo-deny ${DENY_VERSION}`;
}

/** Installs it where it is missing; only the stage that runs it needs it. */
export async function setupDeny() {
  if (hasDeny()) return;
  note(`installing cargo-deny ${DENY_VERSION} (some minutes, once)`);
  const build = path.join(TOOLS, "build");
  // It runs for a second: optimizing it would take longer than it could ever save.
  await run("cargo", ["install", "cargo-deny", "--version", `=${DENY_VERSION}`, "--locked", "--debug", "--root", TOOLS, "--force"], { env: { CARGO_TARGET_DIR: build } });
  fs.rmSync(build, { recursive: true, force: true });
  if (!hasDeny()) throw missing(`cargo-deny ${DENY_VERSION}`, `remove the older one from PATH (${which("cargo-deny")})`);
}

async function npmPackages() {
  const lock = crypto.createHash("sha256").update(fs.readFileSync(path.join(ROOT, "package-lock.json"))).digest("hex");
  const stamp = path.join(ROOT, "node_modules/.fireside-lock");
  if (fs.existsSync(stamp) && fs.readFileSync(stamp, "utf8") === lock) return;
  note("installing npm packages");
  await run(process.platform === "win32" ? "npm.cmd" : "npm", ["ci", "--no-audit", "--no-fund"]);
  fs.writeFileSync(stamp, lock);
}

/** How to become root here: [], ["sudo"], or null when there is no way. */
function asRoot() {
  if (process.getuid?.() === 0) return [];
  return which("sudo") ? [which("sudo")] : null;
}

function isDebian() {
  if (!fs.existsSync("/etc/os-release") || !which("apt-get")) return false;
  return /^ID=["']?debian["']?$/m.test(fs.readFileSync("/etc/os-release", "utf8"));
}

async function debianPackages(packages, why) {
  const sudo = asRoot();
  const words = `apt-get install ${packages.join(" ")}`;
  if (!isDebian() || !sudo) throw missing(why, debianHint(words, packages));
  note(`installing ${packages.join(", ")}`);
  const env = { DEBIAN_FRONTEND: "noninteractive" };
  const apt = [...sudo, "apt-get"];
  await run(apt[0], [...apt.slice(1), "update", "-qq"], { env });
  await run(apt[0], [...apt.slice(1), "install", "-y", "-qq", "--no-install-recommends", ...packages], { env });
}

function debianHint(words, packages) {
  if (isDebian()) return `run \`${words}\` as root`;
  if (!packages.some((name) => name.startsWith("chromium"))) return `on Debian as root: \`${words}\``;
  return `install Chromium or Google Chrome and put it on PATH, or set CHROMIUM to its path (on Debian as root: \`${words}\`)`;
}

async function chromium({ driver }) {
  const wanted = [];
  if (!findChromium()) wanted.push("chromium");
  if (driver && !which("chromedriver")) wanted.push("chromium-driver");
  if (wanted.length > 0) await debianPackages(wanted, wanted.includes("chromium") ? "Chromium" : "chromedriver");
}

/** Sets up what `generate`, `start` and `build` need. */
export async function setup({ browser = true, driver = false } = {}) {
  await npmPackages();
  if (browser) await chromium({ driver });
  await rust();
  await bindgen();
}

/** What the tests need besides: a software Vulkan for the native kernel tests. Optional, said aloud where it cannot be had. */
export async function setupVulkan() {
  if (vulkanEnv()) return;
  try {
    await debianPackages(["mesa-vulkan-drivers", "libvulkan1"], "a software Vulkan driver");
  } catch (error) {
    if (!(error instanceof UserError)) throw error;
    note(error.message);
  }
}

/** Firefox and WebKitGTK for the tests that compare browsers. Optional; the names of those that cannot be had here. */
export async function setupBrowsers() {
  const wanted = [...(findFirefox() ? [] : ["firefox-esr"]), ...(findWebKit() ? [] : ["webkit2gtk-driver", "xvfb"])];
  try {
    if (wanted.length > 0) await debianPackages(wanted, "Firefox or WebKitGTK's driver");
  } catch (error) {
    if (!(error instanceof UserError)) throw error;
    note(error.message);
  }
  return [...(findFirefox() ? [] : ["Firefox"]), ...(findWebKit() ? [] : ["WebKitGTK"])];
}

/** Environment that makes native WebGPU tests run on a software driver, or null where there is none. */
export function vulkanEnv() {
  const icds = "/usr/share/vulkan/icd.d";
  const lavapipe = fs.existsSync(icds) ? fs.readdirSync(icds).find((name) => name.startsWith("lvp_icd")) : undefined;
  const loader = ["/usr/lib/x86_64-linux-gnu/libvulkan.so.1", "/usr/lib/aarch64-linux-gnu/libvulkan.so.1"].some((file) => fs.existsSync(file));
  if (lavapipe && loader) return { VK_ICD_FILENAMES: path.join(icds, lavapipe) };
  const bundled = "/usr/lib/chromium/vk_swiftshader_icd.json";
  if (fs.existsSync(bundled)) {
    const libraries = ["/usr/lib/chromium", process.env.LD_LIBRARY_PATH].filter(Boolean).join(":");
    return { VK_ICD_FILENAMES: bundled, LD_LIBRARY_PATH: libraries };
  }
  return null;
}
