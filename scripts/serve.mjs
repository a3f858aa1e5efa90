/** `npm start`: sets up, builds and serves the demo page until it is stopped. */
import { build } from "./lib/build.mjs";
import { main, UserError } from "./lib/fail.mjs";
import { defaultModel } from "./lib/model.mjs";
import { serve } from "./lib/server.mjs";
import { setup } from "./lib/setup.mjs";

await main(async () => {
  const port = Number(process.env.PORT ?? 8080);
  if (!Number.isInteger(port) || port < 0 || port > 65535) throw new UserError("arguments.invalid", `PORT must be a port number, not ${process.env.PORT}`);
  await setup({ browser: false });
  const model = await defaultModel();
  await build();
  const mounts = { "/models/default.gguf": model };
  const server = await serve({ mounts, port }).catch((error) => {
    if (error.code !== "EADDRINUSE") throw error;
    return serve({ mounts });
  });
  console.log(`fireside: ${server.url}/ (Ctrl-C stops it)`);
});
