/** `npm run build`: sets up what building needs and brings pkg/ up to date. */
import { build } from "./lib/build.mjs";
import { main } from "./lib/fail.mjs";
import { setup } from "./lib/setup.mjs";

await main(async () => {
  await setup({ browser: false });
  await build();
});
