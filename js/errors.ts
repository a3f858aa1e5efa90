/** The one error class, and its way across the Worker boundary. What each code means is in docs/errors.md. */

/** Every rejection that is not a signal's own reason. `code` is stable; `details` is structured-cloneable. */
export class FiresideError extends Error {
  /** Stable and documented, e.g. "gguf.truncated". */
  readonly code: string;
  /** The same facts as the message, for programs. */
  readonly details: Record<string, unknown>;

  constructor(code: string, message: string, details: Record<string, unknown> = {}, options?: { cause?: unknown }) {
    super(message, options);
    this.name = "FiresideError";
    this.code = code;
    this.details = details;
  }
}

/** An error as plain data. */
export interface WireError {
  code: string;
  message: string;
  details: Record<string, unknown>;
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null;
}

/** Whatever was thrown, as plain data. Things without a code of ours are `engine.crashed`: a fault of the package. */
export function toWire(error: unknown): WireError {
  if (isRecord(error) && typeof error["code"] === "string" && typeof error["message"] === "string") {
    const details = error["details"];
    return { code: error["code"], message: error["message"], details: isRecord(details) ? { ...details } : {} };
  }
  const message = error instanceof Error ? error.message : String(error);
  const details: Record<string, unknown> = error instanceof Error ? { name: error.name, stack: error.stack ?? "" } : {};
  return { code: "engine.crashed", message: `The engine stopped unexpectedly: ${message}`, details };
}

/** Plain data back to the class. */
export function fromWire(wire: WireError): FiresideError {
  return new FiresideError(wire.code, wire.message, wire.details);
}

/** What this version does not do when loading: an option, or `what` of it. */
export function loadUnsupported(field: string, why: string, what = field): FiresideError {
  return new FiresideError("load.unsupported", `Loading with ${what} is not supported: ${why}.`, { field });
}

/** What this version does not do for a request. */
export function requestUnsupported(field: string, why: string): FiresideError {
  return new FiresideError("request.unsupported", `${field} is not supported: ${why}.`, { field });
}
