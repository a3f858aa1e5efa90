/** Firefox by Marionette and WebKitGTK by WebDriver: as much of the two protocols as opening a page and reading it takes. Neither needs a package besides the browser's own. */
import { spawn } from "node:child_process";
import fs from "node:fs";
import net from "node:net";
import os from "node:os";
import path from "node:path";
import { UserError } from "./fail.mjs";
import { which } from "./paths.mjs";

const START_MS = 300_000;
/** Ports that are tried: one that was free a moment ago may be another's by now. */
const PORT_TRIES = 5;

/** Firefox without a word to anyone but this machine: whatever it would ask for goes to a proxy that is not there. */
const FIREFOX_PREFS = {
  "marionette.port": 0,
  "network.proxy.type": 1,
  "network.proxy.http": "127.0.0.1",
  "network.proxy.http_port": 9,
  "network.proxy.ssl": "127.0.0.1",
  "network.proxy.ssl_port": 9,
  "network.proxy.no_proxies_on": "localhost, 127.0.0.1",
  "app.normandy.enabled": false,
  "datareporting.policy.dataSubmissionEnabled": false,
  "toolkit.telemetry.enabled": false,
  "browser.shell.checkDefaultBrowser": false,
};

/** Paths of what each browser needs, or null where something is missing. */
export const findFirefox = () => which("firefox-esr", "firefox");

export function findWebKit() {
  const driver = which("WebKitWebDriver");
  const xvfb = which("Xvfb");
  return driver && (xvfb || process.env.DISPLAY) ? { driver, xvfb, browser: findMiniBrowser() } : null;
}

/** Debian keeps it in a folder of the library's, by architecture and version. The driver alone finds its own as well. */
function findMiniBrowser() {
  for (const lib of ["/usr/lib", "/usr/libexec"]) {
    for (const folder of fs.existsSync(lib) ? ["", ...fs.readdirSync(lib).filter((name) => /linux-gnu$/.test(name))] : []) {
      for (const version of ["webkit2gtk-4.1", "webkit2gtk-4.0", "webkitgtk-6.0"]) {
        const file = path.join(lib, folder, version, "MiniBrowser");
        if (fs.existsSync(file)) return file;
      }
    }
  }
  return null;
}

/** Calls `look` until it gives something; an error when the time is up. */
async function until(what, look) {
  const end = Date.now() + START_MS;
  for (;;) {
    const found = await look();
    if (found !== null) return found;
    if (Date.now() > end) throw new UserError("browser.start", `${what} did not start`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

/** A program that is ended with the session. */
function program(file, args, options = {}) {
  const child = spawn(file, args, { stdio: "ignore", ...options });
  const onExit = () => child.kill();
  process.on("exit", onExit);
  const closed = new Promise((resolve) => {
    child.on("close", resolve);
    child.on("error", resolve);
  });
  return {
    child,
    async end() {
      if (child.exitCode === null && child.signalCode === null) child.kill();
      const timer = setTimeout(() => child.kill("SIGKILL"), 5_000);
      await closed;
      clearTimeout(timer);
      process.off("exit", onExit);
    },
  };
}

/** One headless Firefox. */
export async function openFirefox() {
  const profile = fs.mkdtempSync(path.join(os.tmpdir(), "fireside-firefox-"));
  const prefs = Object.entries(FIREFOX_PREFS).map(([name, value]) => `user_pref(${JSON.stringify(name)}, ${JSON.stringify(value)});\n`);
  fs.writeFileSync(path.join(profile, "user.js"), prefs.join(""));
  const firefox = program(findFirefox(), ["--headless", "--marionette", "--no-remote", "--profile", profile]);
  const close = async () => {
    await firefox.end();
    fs.rmSync(profile, { recursive: true, force: true, maxRetries: 5, retryDelay: 200 });
  };
  try {
    const portFile = path.join(profile, "MarionetteActivePort");
    const port = await until("Firefox", () => (fs.existsSync(portFile) && Number(fs.readFileSync(portFile, "utf8"))) || null);
    const command = await marionette(port);
    const { capabilities } = await command("WebDriver:NewSession", { capabilities: { alwaysMatch: {} } });
    return {
      name: "Firefox",
      version: capabilities.browserVersion,
      goto: (url) => command("WebDriver:Navigate", { url }),
      text: async (selector) => {
        const script = `return document.querySelector(${JSON.stringify(selector)})?.textContent ?? null`;
        return (await command("WebDriver:ExecuteScript", { script, args: [] })).value;
      },
      close,
    };
  } catch (error) {
    await close();
    throw error;
  }
}

/** Connects to Marionette: messages are `length:json`, a command [0, id, name, parameters], its answer [1, id, error, result]. */
async function marionette(port) {
  const socket = net.connect(port, "127.0.0.1");
  const waiting = new Map();
  let data = Buffer.alloc(0);
  let greeted;
  const greeting = new Promise((resolve) => (greeted = resolve));
  const fail = (error) => {
    for (const { reject } of waiting.values()) reject(error);
    waiting.clear();
  };
  socket.on("error", fail);
  socket.on("close", () => fail(new UserError("browser.crashed", "Firefox closed the connection")));
  socket.on("data", (chunk) => {
    data = Buffer.concat([data, chunk]);
    for (;;) {
      const colon = data.indexOf(":");
      const length = Number(data.subarray(0, Math.max(colon, 0)));
      if (colon < 0 || data.length < colon + 1 + length) return;
      const message = JSON.parse(data.subarray(colon + 1, colon + 1 + length).toString());
      data = data.subarray(colon + 1 + length);
      if (!Array.isArray(message)) greeted();
      else settle(waiting, message);
    }
  });
  await greeting;
  let id = 0;
  return (name, parameters) =>
    new Promise((resolve, reject) => {
      waiting.set(++id, { resolve, reject });
      const json = JSON.stringify([0, id, name, parameters]);
      socket.write(`${Buffer.byteLength(json)}:${json}`);
    });
}

function settle(waiting, [, id, error, result]) {
  const call = waiting.get(id);
  waiting.delete(id);
  if (error) call?.reject(new UserError("browser.command", `Firefox: ${error.message}`));
  else call?.resolve(result);
}

/** One WebKitGTK MiniBrowser, on a display of its own where there is Xvfb. */
export async function openWebKit() {
  const { driver, xvfb, browser } = findWebKit();
  const programs = [];
  const close = async () => {
    for (const one of programs.reverse()) await one.end();
  };
  try {
    const env = { ...process.env, ...(xvfb ? { DISPLAY: await ownDisplay(xvfb, programs) } : {}) };
    const port = await startDriver(driver, env, programs);
    const ask = asker(port);
    const options = browser ? { "webkitgtk:browserOptions": { binary: browser, args: ["--automation"] } } : {};
    const { sessionId, capabilities } = await ask("POST", "/session", { capabilities: { alwaysMatch: options } });
    const session = `/session/${sessionId}`;
    return {
      name: "WebKitGTK",
      version: capabilities.browserVersion,
      goto: (url) => ask("POST", `${session}/url`, { url }),
      text: (selector) => ask("POST", `${session}/execute/sync`, { script: "return document.querySelector(arguments[0])?.textContent ?? null", args: [selector] }),
      async close() {
        await ask("DELETE", session).catch(() => undefined);
        await close();
      },
    };
  } catch (error) {
    await close();
    throw error;
  }
}

/** Sends one command of WebDriver's. */
const asker = (port) => async (method, address, body) => {
  const answer = await fetch(`http://127.0.0.1:${port}${address}`, { method, ...(body ? { body: JSON.stringify(body) } : {}) });
  const { value } = await answer.json();
  if (!answer.ok) throw new UserError("browser.command", `WebKit: ${value?.message ?? answer.status}`);
  return value;
};

/** Starts the driver; the port that it listens at, which has to be named beforehand. */
async function startDriver(driver, env, programs) {
  for (let tries = 1; ; tries++) {
    const port = await freePort();
    const { child, ...rest } = program(driver, [`--port=${port}`], { env });
    programs.push({ child, ...rest });
    const ended = () => child.exitCode !== null || child.signalCode !== null;
    const answers = () => asker(port)("GET", "/status").then(() => true, () => (ended() ? false : null));
    if (await until("WebKitWebDriver", answers)) return port;
    if (tries === PORT_TRIES) throw new UserError("browser.start", "WebKitWebDriver ended as soon as it was started");
  }
}

async function ownDisplay(xvfb, programs) {
  const server = program(xvfb, ["-displayfd", "3", "-screen", "0", "1024x768x24", "-nolisten", "tcp"], { stdio: ["ignore", "ignore", "ignore", "pipe"] });
  programs.push(server);
  let number = "";
  server.child.stdio[3].setEncoding("utf8").on("data", (text) => (number += text));
  return `:${(await until("Xvfb", () => (number.includes("\n") ? number : null))).trim()}`;
}

function freePort() {
  return new Promise((resolve, reject) => {
    const server = net.createServer();
    server.on("error", reject);
    server.listen(0, "127.0.0.1", () => {
      const { port } = server.address();
      server.close(() => resolve(port));
    });
  });
}
