/** Asking the browser to keep this origin's storage. Only a page may ask, so it is never done in a Worker. */
import type { Warning } from "./types.js";

/** A warning when storage may be evicted all the same, null when it is kept. */
export async function askPersistence(): Promise<Warning | null> {
  const storage = (globalThis.navigator as { storage?: Partial<StorageManager> } | undefined)?.storage;
  if (!storage?.persist) return notPersisted("only a page in a secure context can ask");
  try {
    return (await storage.persist()) ? null : notPersisted("the browser, or the person using it, said no");
  } catch (error) {
    return notPersisted(error instanceof Error ? error.message : String(error));
  }
}

function notPersisted(reason: string): Warning {
  const message = `Stored models may be evicted when space runs short: persistent storage was not granted (${reason}).`;
  return { code: "storage.not_persisted", message, details: { reason } };
}
