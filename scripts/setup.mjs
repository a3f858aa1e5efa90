/** `npm run setup`: sets up everything that building, running and testing need. */
import { main } from "./lib/fail.mjs";
import { setup, setupVulkan } from "./lib/setup.mjs";

await main(async () => {
  await setup({ driver: true });
  await setupVulkan();
});
