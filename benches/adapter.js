/** fireside behind the interface of a peer-comparison harness: load, complete, chat, memory, unload. Greedy, raw text unless chat. */

const MODELS = {
  smollm2: "/models/SmolLM2-135M-Instruct.Q4_1.gguf",
  gemma: "/models/gemma-3-270m-q4_k_m.gguf",
};
/** Bias that no logit outweighs: an end-of-generation token so biased is never the best. */
const NEVER = -100;

/** The package lies beside this file's folder when the checkout itself is mounted. */
const { Engine } = await import(new URL("../pkg/index.js", import.meta.url).href);

/** Ids that end generation, found by what they stand for: the biases below stop a run from ending early. */
async function endTokens(engine) {
  const names = ["<|im_end|>", "<|endoftext|>", "<file_sep>", "<|eot_id|>", "<eos>", "<end_of_turn>", "</s>"];
  const ids = await Promise.all(names.map((name) => engine.tokenize(name, { addSpecial: false, parseSpecial: true })));
  return ids.filter((tokens) => tokens.length === 1).map(([id]) => id);
}

async function load({ model, mode = "cpu", nCtx = 2048, nParallel, modelUrl, onProgress }) {
  const url = new URL(modelUrl ?? MODELS[model], location.href);
  const backend = mode.startsWith("webgpu") ? "webgpu" : mode.startsWith("cpu") ? "cpu" : "auto";
  const options = { backend, contextLength: nCtx, ...(nParallel ? { maxRunning: nParallel } : {}), ...(onProgress ? { onProgress } : {}) };
  const engine = await Engine.load(url, options);
  const never = Object.fromEntries((await endTokens(engine)).map((id) => [id, NEVER]));

  async function run(request, { maxTokens, ignoreEos, signal, onToken }) {
    const result = await engine.generate(
      { ...request, temperature: 0, max_tokens: maxTokens, ...(ignoreEos ? { logit_bias: never } : {}) },
      { ...(signal ? { signal } : {}), onToken: ({ text }) => onToken?.(text) },
    );
    const { usage, timings, choices } = result;
    return {
      text: choices[0].text,
      promptTokens: usage.prompt_tokens,
      tokens: usage.completion_tokens,
      native: {
        prefill_tps: (usage.prompt_tokens / timings.prefill) * 1000,
        decode_tps: ((usage.completion_tokens - 1) / timings.decode) * 1000,
        cached: usage.prompt_tokens_details.cached_tokens,
      },
    };
  }

  return {
    info: () => ({ ...engine.info }),
    complete: (text, options) => run({ prompt: text }, options),
    chat: (messages, options) => run({ messages }, options),
    memory: () => engine.stats(),
    unload: () => engine.dispose(),
  };
}

export default { name: "fireside", load };
