/** How much room storage has left, as far as the browser tells, and the error that says how much is missing. */
import { FiresideError } from "../errors.js";

/** Bytes that may still be stored by this origin. */
async function available(): Promise<number> {
  const storage = (navigator as { storage?: StorageManager }).storage;
  const { usage = 0, quota = Infinity } = (await storage?.estimate?.().catch(() => null)) ?? {};
  return Math.max(0, quota - usage);
}

/** `left` is null where the browser's estimate cannot be true: some tell a fixed figure, whatever the quota is. */
function full(needed: number, left: number | null, cause?: unknown): FiresideError {
  const missing = needed - (left ?? 0);
  const has = left === null ? "no room" : `room for ${String(left)} bytes`;
  const message = `Storage has ${has} for the ${String(needed)} that are needed: ${String(missing)} are missing.`;
  return new FiresideError("storage.quota", message, { needed, available: left, missing }, { cause });
}

/** Throws `storage.quota` when so many more bytes have no room. */
export async function room(bytes: number): Promise<void> {
  const left = await available();
  if (bytes > left) throw full(bytes, left);
}

/** A full storage's error, with how much is missing for so many bytes where it did not say so itself. */
export async function withMissing(error: FiresideError, bytes: number): Promise<FiresideError> {
  if (error.code !== "storage.quota" || "missing" in error.details) return error;
  const left = await available();
  return full(bytes, left < bytes ? left : null, error);
}
