/** The line of figures under an answer, the same in the page and in the terminal. */

function megabytes(bytes) {
  return `${(bytes / 1e6).toFixed(1)} MB`;
}

function rate(tokens, ms) {
  return ms > 0 && tokens > 0 ? `${((tokens / ms) * 1000).toFixed(1)} tok/s` : "n/a";
}

/**
 * What one run measured, as plain numbers. The first argument is EngineInfo, `results` are GenerateResults; several of them share the engine, so their
 * rates come from the slowest one's clock.
 */
export function figures({ backend, layers }, results, stats) {
  const sum = (pick) => results.reduce((total, result) => total + pick(result), 0);
  const longest = (pick) => results.reduce((most, result) => Math.max(most, pick(result)), 0);
  const prompt = sum((r) => r.usage.prompt_tokens);
  const computed = prompt - sum((r) => r.usage.prompt_tokens_details.cached_tokens);
  const completion = sum((r) => r.usage.completion_tokens);
  // Each choice's first token comes out of the prefill.
  const decoded = completion - sum((r) => r.choices.length);
  const prefillMs = longest((r) => r.timings.prefill);
  const decodeMs = longest((r) => r.timings.decode);
  return {
    backend,
    prompt_tokens: prompt,
    completion_tokens: completion,
    time_to_first_token_ms: results.length ? Math.min(...results.map((r) => r.timings.time_to_first_token)) : 0,
    prefill_tokens_per_second: prefillMs > 0 ? (computed / prefillMs) * 1000 : null,
    decode_tokens_per_second: decodeMs > 0 && decoded > 0 ? (decoded / decodeMs) * 1000 : null,
    peak_wasm_bytes: stats.peakWasmBytes,
    peak_gpu_bytes: stats.executor.peakDeviceBytes,
    dispatches_per_step: stats.rate.dispatchesPerStep,
    dispatches_per_layer: stats.rate.dispatchesPerStep / layers,
    readbacks_per_step: stats.rate.readbacksPerStep,
    weight_bytes_per_step: stats.rate.weightBytesPerStep,
    line: line({ backend, layers, prompt, computed, completion, decoded, prefillMs, decodeMs }, results, stats),
  };
}

function line({ backend, layers, prompt, computed, completion, decoded, prefillMs, decodeMs }, results, stats) {
  const first = results.length ? Math.min(...results.map((r) => r.timings.time_to_first_token)) : 0;
  const parts = [
    backend,
    `${prompt} prompt + ${completion} completion tokens`,
    `first token ${first.toFixed(0)} ms`,
    `prefill ${rate(computed, prefillMs)}`,
    `decode ${rate(decoded, decodeMs)}`,
    `peak wasm ${megabytes(stats.peakWasmBytes)}`,
    `peak GPU ${megabytes(stats.executor.peakDeviceBytes)}`,
    `${megabytes(stats.rate.weightBytesPerStep)} of weights read a step`,
  ];
  if (backend === "webgpu") {
    parts.push(`${(stats.rate.dispatchesPerStep / layers).toFixed(1)} dispatches a layer`, `${stats.rate.readbacksPerStep.toFixed(1)} readbacks a step`);
  }
  return parts.join(" | ");
}
