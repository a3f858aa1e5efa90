/** One headless browser on one local page with one engine: what `generate`, `bench` and the soak run through. */
import { launch } from "./chromium.mjs";
import { UserError } from "./fail.mjs";
import { serve } from "./server.mjs";

/** Opens www/runner.html. `onEvent` gets progress, warnings, tokens and results as they happen. */
export async function openSession({ model, show = false, onEvent = () => undefined }) {
  const server = await serve({ mounts: { "/model.gguf": model } });
  let browser;
  try {
    browser = await launch({ show });
    const page = await browser.browser.newPage();
    const crashed = watchForCrash(page, browser.browser);
    page.on("console", (message) => {
      if (message.type() === "error" || process.env.FIRESIDE_VERBOSE) console.error(`browser: ${message.text()}`);
    });
    await page.exposeFunction("firesideEmit", onEvent);
    await page.goto(`${server.url}/runner.html`);
    await page.waitForFunction("window.runnerReady");
    /** Calls the page's runner; an error of the engine comes back as a UserError with its code. */
    const call = async (name, ...args) => {
      const evaluated = page.evaluate(([fn, list]) => window.runner[fn](...list), [name, args]);
      return Promise.race([evaluated, crashed]);
    };
    const value = async (name, ...args) => unwrap(await call(name, ...args));
    return {
      page,
      pid: browser.pid,
      url: server.url,
      load: (options) => value("load", "/model.gguf", options),
      generate: (requests, options) => call("generate", requests, options),
      gaps: (running, prompt) => value("gaps", running, prompt),
      tokenize: (text, options) => value("tokenize", text, options),
      score: (tokens, options) => value("score", tokens, options),
      stats: () => value("stats"),
      async close() {
        await browser.close();
        server.close();
      },
    };
  } catch (error) {
    await browser?.close();
    server.close();
    throw error;
  }
}

/** An outcome's value; its error as a UserError. */
export function unwrap({ value, error }) {
  if (error) throw new UserError(error.code, error.message, error.details);
  return value;
}

/** Rejects when the page or the browser dies: waiting for an answer would be for ever. */
function watchForCrash(page, browser) {
  const crashed = new Promise((_, reject) => {
    page.on("crash", () => reject(new UserError("browser.crashed", "the browser's page crashed, most likely out of memory")));
    browser.on("disconnected", () => reject(new UserError("browser.crashed", "the browser ended unexpectedly")));
  });
  crashed.catch(() => undefined);
  return crashed;
}
