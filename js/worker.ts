/** The Worker entry, also published as `fireside/worker` for Workers that the page makes itself. Several engines may share one, and the owner's own messages pass by. */
import { serve } from "./host.js";
import { isConnect } from "./messages.js";
import { watchForTraps } from "./traps.js";

addEventListener("message", (event: MessageEvent<unknown>) => {
  if (isConnect(event.data)) serve(event.data.port);
});
watchForTraps();
