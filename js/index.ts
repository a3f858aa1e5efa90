/** The package's front door: what `import ... from "fireside"` gives. */
export { Engine } from "./engine.js";
export { FiresideError } from "./errors.js";
export { models } from "./models.js";
export { preflight } from "./preflight.js";
export type * from "./openai-types.js";
export type * from "./types.js";
