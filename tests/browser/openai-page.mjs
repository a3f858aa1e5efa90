/** A page with the package, the tiny model loaded as `engine`, and short names for calls, for tests of the OpenAI-shaped API. */
/* global engine, MESSAGES */
import { openPage } from "./support.mjs";

export async function openApiPage() {
  const page = await openPage({});
  await page.run(async () => {
    const fireside = await import("/pkg/index.js");
    window.engine = await fireside.Engine.load("/tiny.gguf", { backend: "cpu", modelId: "tiny" });
    window.caught = async (promise) => {
      try {
        return { value: await promise };
      } catch (error) {
        return { name: error.name, code: error.code, details: error.details, ours: error instanceof fireside.FiresideError };
      }
    };
    window.all = async (iterable) => {
      const out = [];
      for await (const item of iterable) out.push(item);
      return out;
    };
    window.MESSAGES = [{ role: "user", content: "the people" }];
    window.chat = (body, options) => engine.chat.completions.create({ messages: MESSAGES, temperature: 0, max_tokens: 8, ...body }, options);
    window.complete = (body, options) => engine.completions.create({ prompt: "the people", temperature: 0, max_tokens: 8, ...body }, options);
  });
  return page;
}
