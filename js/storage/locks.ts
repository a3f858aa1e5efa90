/** Web Locks: who downloads a model, who reads its files, which engines run. Where there are none, every lock is free. */
import { afterAwake } from "../awake.js";

/** Lets a lock go. */
export type Release = () => void;

interface Ask {
  mode?: "exclusive" | "shared";
  /** Do not wait. */
  ifAvailable?: boolean;
  signal?: AbortSignal;
}

/** Held while a model is downloaded or replaced. */
export const writeLock = (key: string): string => `fireside:write:${key}`;
/** Shared by those who read a stored model's files; exclusive for removing them. */
export const readLock = (key: string): string => `fireside:read:${key}`;
const RUNNING = "fireside:running:";

/** The lock manager; null where there is none. */
function manager(): LockManager | null {
  return (typeof navigator === "object" ? (navigator as { locks?: LockManager }).locks : undefined) ?? null;
}

/**
 * A page that goes into the back- and forward-cache keeps its locks, those that others wait for already too (Chromium): for a minute, or
 * for good. Asked what is held, the browser drops such a page.
 */
const NUDGE_MS = 1000;

/** Takes a lock and resolves once it is held; null when `ifAvailable` was asked for and it was not. */
export function hold(name: string, { mode = "exclusive", ifAvailable = false, signal }: Ask = {}): Promise<Release | null> {
  const locks = manager();
  if (!locks) return Promise.resolve(() => undefined);
  let nudging: ReturnType<typeof setInterval> | undefined;
  const held = new Promise<Release | null>((resolve, reject) => {
    // A signal and ifAvailable exclude each other.
    const options: LockOptions = ifAvailable || !signal ? { mode, ifAvailable } : { mode, signal };
    const asked = locks.request(name, options, (lock): Promise<void> | undefined => {
      if (!lock) {
        resolve(null);
        return undefined;
      }
      return new Promise<void>((release) => {
        resolve(release);
      });
    });
    asked.catch(reject);
    if (ifAvailable) return;
    nudging = setInterval(() => {
      locks.query().catch(() => undefined);
    }, NUDGE_MS);
  });
  return held.finally(() => {
    clearInterval(nudging);
  });
}

/** How long a lock is waited for that is about to be let go: releases take a moment to reach every tab. */
const SOON_MS = 1000;

/** Takes a lock that is free, or will be in a moment; else null. */
export async function holdSoon(name: string): Promise<Release | null> {
  const patience = new AbortController();
  const stop = afterAwake(SOON_MS, () => {
    patience.abort();
  });
  try {
    return await hold(name, { signal: patience.signal });
  } catch (error) {
    if (patience.signal.aborted) return null;
    throw error;
  } finally {
    stop();
  }
}

/** An engine that holds a model. */
export interface Running {
  id: string;
  tab: string;
  since: number;
}

/** Makes an engine known to every tab for as long as its thread lives and the lock is not let go. */
export async function announce(running: Running): Promise<Release> {
  // Two engines of one tab may start in the same millisecond: the name is made unique.
  const unique = Math.random().toString(36).slice(2);
  const name = RUNNING + encodeURIComponent(JSON.stringify({ ...running, unique }));
  return (await hold(name, { mode: "shared" })) ?? (() => undefined);
}

/** The engines of all tabs, oldest first. */
export async function running(): Promise<Running[]> {
  const { held = [] } = (await manager()?.query()) ?? {};
  const found: Running[] = [];
  for (const { name } of held) {
    if (!name?.startsWith(RUNNING)) continue;
    const engine = parseRunning(name.slice(RUNNING.length));
    if (engine) found.push(engine);
  }
  return found.sort((a, b) => a.since - b.since || (a.tab < b.tab ? -1 : 1));
}

/** What a lock's name says; null for one that another script of this origin, or another version, made. */
function parseRunning(text: string): Running | null {
  try {
    const { id, tab, since } = JSON.parse(decodeURIComponent(text)) as Partial<Running>;
    return typeof id === "string" && typeof tab === "string" && typeof since === "number" ? { id, tab, since } : null;
  } catch {
    return null;
  }
}
