/** A form that completes a prompt: loads the model in the extension, streams text into it, and can be stopped. */
import { Engine } from "./fireside/index.js";

const form = document.querySelector("form");
const { prompt, go, stop } = form.elements;
const status = document.querySelector("#status");
const text = document.querySelector("#text");

function failed(error) {
  status.textContent = error.name === "AbortError" ? "stopped" : `${error.code ?? error.name}: ${error.message}`;
}

Engine.load("model.gguf", {
  onProgress: ({ phase, loaded, total }) => (status.textContent = `${phase} ${Math.round((100 * loaded) / total)} %`),
}).then((engine) => {
  status.textContent = `${engine.info.modelId} on ${engine.info.backend}`;
  go.disabled = false;

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const controller = new AbortController();
    stop.onclick = () => controller.abort();
    text.textContent = "";
    [go.disabled, stop.disabled] = [true, false];
    try {
      const request = { prompt: prompt.value, max_tokens: 24, temperature: 0 };
      const { usage, timings } = await engine.generate(request, {
        onToken: (token) => text.append(token.text),
        signal: controller.signal,
      });
      status.textContent = `${usage.completion_tokens} tokens, the first after ${Math.round(timings.time_to_first_token)} ms`;
    } catch (error) {
      failed(error);
    } finally {
      [go.disabled, stop.disabled] = [false, true];
    }
  });
}, failed);
