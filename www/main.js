/** The demo page: pick a model, type, watch the answer stream, stop it. Uses the package as any page would. */
import { Engine } from "/pkg/index.js";
import { figures } from "./figures.js";

const DEFAULT_MODEL = "/models/default.gguf";
const $ = (selector) => document.querySelector(selector);
const load = $("#load");
const ask = $("#ask");
const answer = $("#answer");
const status = $("#status");
const progress = $("#progress");
const stop = $("#stop");

let engine = null;
let running = null;

function showError(error) {
  $("#error").textContent = error ? `${error.message}${error.code ? ` (${error.code})` : ""}` : "";
}

/** The model, or an error that says what is missing: the browser's own checks do not know which source is chosen. */
function chosenModel(form) {
  const source = form.get("source");
  if (source === "default") return DEFAULT_MODEL;
  const chosen = source === "file" ? form.get("file") : form.get("url").trim();
  if (source === "file" && !chosen.name) throw new Error("No file is chosen: choose a GGUF file first.");
  if (!chosen) throw new Error("The URL is empty: enter the address of a GGUF file first.");
  return chosen;
}

function onProgress({ phase, loaded, total }) {
  progress.value = total > 0 ? loaded / total : 0;
  status.textContent = `${phase} ${Math.round(progress.value * 100)} %`;
}

load.addEventListener("submit", async (event) => {
  event.preventDefault();
  const form = new FormData(load);
  showError(null);
  let model;
  try {
    model = chosenModel(form);
  } catch (error) {
    showError(error);
    return;
  }
  load.querySelector("button").disabled = true;
  ask.querySelector("fieldset").disabled = true;
  progress.hidden = false;
  try {
    await engine?.dispose();
    engine = null;
    engine = await Engine.load(model, { backend: form.get("backend"), onProgress });
    const { modelId, backend, quantization, contextLength } = engine.info;
    status.textContent = `${modelId}, ${quantization}, on ${backend}, context of ${contextLength} tokens`;
    ask.querySelector("fieldset").disabled = false;
  } catch (error) {
    status.textContent = "No model loaded.";
    showError(error);
  } finally {
    progress.hidden = true;
    load.querySelector("button").disabled = false;
  }
});

ask.addEventListener("submit", async (event) => {
  event.preventDefault();
  if (running) return;
  const form = new FormData(ask);
  const prompt = form.get("prompt");
  const request = {
    ...(form.get("chat") ? { messages: [{ role: "user", content: prompt }] } : { prompt }),
    temperature: Number(form.get("temperature")),
    // An empty field is no number of tokens: none is asked for.
    ...(form.get("max_tokens") === "" ? {} : { max_tokens: Number(form.get("max_tokens")) }),
  };
  running = new AbortController();
  stop.disabled = false;
  answer.textContent = "";
  $("#figures").textContent = "";
  showError(null);
  try {
    const onToken = ({ text }) => answer.append(text);
    const result = await engine.generate(request, { signal: running.signal, onToken });
    $("#figures").textContent = figures(engine.info, [result], await engine.stats()).line;
  } catch (error) {
    if (error.name === "AbortError") $("#figures").textContent = "stopped";
    else showError(error);
  } finally {
    running = null;
    stop.disabled = true;
  }
});

stop.addEventListener("click", () => running?.abort());
