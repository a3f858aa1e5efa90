/** The page behind `npm run generate` and `npm run bench`: does what the script asks, and hands events and results back as plain data. */
import { Engine } from "/pkg/index.js";

const out = document.querySelector("#out");
let engine = null;

/** Tells the script; the page itself shows the text, for `--show`. */
function tell(event) {
  if (event.type === "token" && event.request === 0 && event.choice === 0) out.textContent += event.text;
  return window.firesideEmit?.(event);
}

function plainError(error) {
  const { code = "engine.crashed", message = String(error), details = {} } = error ?? {};
  return { code: typeof code === "string" ? code : "engine.crashed", message, details };
}

function plainResult(result) {
  return { ...result, choices: result.choices.map((choice) => ({ ...choice, tokens: [...choice.tokens] })) };
}

/** { value } or { error }: an error that crosses into the script as an exception would lose its code. */
async function outcome(work) {
  try {
    return { value: await work() };
  } catch (error) {
    return { error: plainError(error) };
  }
}

window.runner = {
  load: (url, options) =>
    outcome(async () => {
      // The browser's profile lasts as long as the script: keeping the model would be for nobody.
      engine = await Engine.load(url, { cache: "none", ...options, onProgress: (progress) => void tell({ type: "progress", progress }) });
      engine.addEventListener("warning", (event) => void tell({ type: "warning", warning: event.detail }));
      return engine.info;
    }),

  /** Submits all at once; each result is told as it comes. */
  generate: (requests, { tokens = true } = {}) =>
    Promise.all(
      requests.map(async (request, index) => {
        const onToken = tokens ? ({ choice, text }) => void tell({ type: "token", request: index, choice, text }) : undefined;
        const answer = await outcome(async () => plainResult(await engine.generate(request, onToken ? { onToken } : {})));
        await tell({ type: "result", request: index, ...answer });
        return answer;
      }),
    ),

  /**
   * Milliseconds between the tokens of a running stream: `alone`, and `mixed` while a long prompt is computed beside it.
   * The stream ends once the prompt is computed.
   */
  gaps: (running, prompt, { alone = 24 } = {}) =>
    outcome(async () => {
      const controller = new AbortController();
      const gaps = { alone: [], mixed: [] };
      let last = 0;
      let filling = null;
      const onToken = () => {
        const now = performance.now();
        if (last > 0) gaps[filling ? "mixed" : "alone"].push(now - last);
        last = now;
        if (!filling && gaps.alone.length === alone) {
          filling = engine.generate({ prompt, max_tokens: 1, temperature: 0 });
          // The gap in which it was submitted belongs to neither.
          last = 0;
          filling.then(() => controller.abort(), (error) => controller.abort(error));
        }
      };
      await engine.generate(running, { onToken, signal: controller.signal }).catch(() => undefined);
      const { usage } = await filling;
      return { ...gaps, promptTokens: usage.prompt_tokens };
    }),

  tokenize: (text, options) => outcome(async () => [...(await engine.tokenize(text, options))]),
  score: (tokens, options) =>
    outcome(async () => {
      const { logprobs, top } = await engine.score(tokens, options);
      return { logprobs: [...logprobs], top };
    }),
  stats: () => outcome(() => engine.stats()),
  dispose: () => outcome(async () => engine?.dispose()),
};
window.runnerReady = true;
