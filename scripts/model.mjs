/** `node scripts/model.mjs`: fetches the default model and prints its path. */
import { main } from "./lib/fail.mjs";
import { defaultModel } from "./lib/model.mjs";

await main(async () => {
  console.log(await defaultModel());
});
