/** A form that completes a prompt. It is rendered on the server too, where importing fireside does nothing; the engine is made in an effect. */
"use client";

import { Engine } from "fireside";
import { useEffect, useRef, useState } from "react";

const describe = (error) => (error.name === "AbortError" ? "stopped" : `${error.code ?? error.name}: ${error.message}`);

export default function Completion({ model }) {
  const [engine, setEngine] = useState(null);
  const [status, setStatus] = useState("");
  const [text, setText] = useState("");
  const running = useRef(null);
  const [busy, setBusy] = useState(false);

  useEffect(() => {
    // React runs effects twice in development: the first load is given up by its signal.
    const controller = new AbortController();
    const { signal } = controller;
    const onProgress = ({ phase, loaded, total }) => setStatus(`${phase} ${Math.round((100 * loaded) / total)} %`);
    const loading = Engine.load(model, { onProgress, signal });
    loading.then(
      (loaded) => {
        setEngine(loaded);
        setStatus(`${loaded.info.modelId} on ${loaded.info.backend}`);
      },
      (error) => signal.aborted || setStatus(describe(error)),
    );
    return () => {
      controller.abort();
      loading.then((loaded) => loaded.dispose()).catch(() => undefined);
    };
  }, [model]);

  async function submit(event) {
    event.preventDefault();
    const prompt = new FormData(event.currentTarget).get("prompt");
    running.current = new AbortController();
    setText("");
    setBusy(true);
    try {
      const { usage, timings } = await engine.generate(
        { prompt, max_tokens: 24, temperature: 0 },
        { onToken: (token) => setText((before) => before + token.text), signal: running.current.signal },
      );
      setStatus(`${usage.completion_tokens} tokens, the first after ${Math.round(timings.time_to_first_token)} ms`);
    } catch (error) {
      setStatus(describe(error));
    } finally {
      setBusy(false);
    }
  }

  return (
    <form onSubmit={submit}>
      <input name="prompt" defaultValue="The capital of France is" size={60} />
      <button name="go" disabled={!engine || busy}>
        Go
      </button>
      <button name="stop" type="button" disabled={!busy} onClick={() => running.current.abort()}>
        Stop
      </button>
      <p id="status">{status}</p>
      <pre id="text">{text}</pre>
    </form>
  );
}
