/** A form that completes a prompt, or chats by it: loads the model beside this page, streams text into it, and can be stopped. */
import { Engine } from "fireside";

const form = document.querySelector("form");
const { prompt, chat, go, stop } = form.elements;
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
    const { signal } = controller;
    stop.onclick = () => controller.abort();
    text.textContent = "";
    [go.disabled, stop.disabled] = [true, false];
    try {
      const started = performance.now();
      let [first, tokens] = [0, 0];
      const body = { max_tokens: 24, temperature: 0, stream: true, stream_options: { include_usage: true } };
      const stream = chat.checked
        ? await engine.chat.completions.create({ ...body, messages: [{ role: "user", content: prompt.value }] }, { signal })
        : await engine.completions.create({ ...body, prompt: prompt.value }, { signal });
      for await (const { choices, usage } of stream) {
        const [choice] = choices;
        text.append(choice?.delta?.content ?? choice?.text ?? "");
        if (text.textContent) first ||= performance.now();
        tokens = usage?.completion_tokens ?? tokens;
      }
      status.textContent = `${tokens} tokens, the first after ${Math.round(first - started)} ms`;
    } catch (error) {
      failed(error);
    } finally {
      [go.disabled, stop.disabled] = [false, true];
    }
  });
}, failed);
