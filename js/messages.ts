/** Checks of what comes over a port or to a Worker, by shape: other scripts may talk to the same Worker, and page and Worker may differ in version. */
import type { Connect, ToClient, ToHost } from "./protocol.js";

type Fields = Record<string, unknown>;
type Checks<T extends { t: string }> = Record<T["t"], (message: Fields) => boolean>;

const hasId = ({ id }: Fields): boolean => Number.isSafeInteger(id);
const hasRid = ({ rid }: Fields): boolean => Number.isSafeInteger(rid);
const isRecord = (value: unknown): value is Fields => typeof value === "object" && value !== null;
const hasError = ({ error }: Fields): boolean =>
  isRecord(error) && typeof error["code"] === "string" && typeof error["message"] === "string" && isRecord(error["details"]);
const hasValue = ({ value }: Fields): boolean => isRecord(value);

const TO_HOST: Checks<ToHost> = {
  call: (message) => hasId(message) && typeof message["op"] === "string" && "args" in message,
  abort: (message) => hasRid(message) && typeof message["why"] === "string",
  read: (message) => hasRid(message) && Number.isSafeInteger(message["count"]),
  cancelLoad: () => true,
};

const TO_CLIENT: Checks<ToClient> = {
  hello: () => true,
  result: hasId,
  error: (message) => hasId(message) && hasError(message),
  token: (message) => hasRid(message) && hasValue(message),
  done: (message) => hasRid(message) && hasValue(message),
  failed: (message) => hasRid(message) && hasError(message),
  progress: hasValue,
  warning: hasValue,
  prompt: (message) => hasRid(message) && message["tokens"] instanceof Uint32Array,
  lost: hasError,
  crashed: hasError,
};

function passes<T extends { t: string }>(checks: Checks<T>, data: unknown): boolean {
  if (!isRecord(data) || typeof data["t"] !== "string") return false;
  return Object.hasOwn(checks, data["t"]) && checks[data["t"] as T["t"]](data);
}

/** True for the message by which a page hands a Worker its port. Whatever else a Worker gets is not ours. */
export function isConnect(data: unknown): data is Connect {
  return isRecord(data) && data["fireside"] === "connect" && data["port"] instanceof MessagePort;
}

export function isToHost(data: unknown): data is ToHost {
  return passes<ToHost>(TO_HOST, data);
}

export function isToClient(data: unknown): data is ToClient {
  return passes<ToClient>(TO_CLIENT, data);
}

/** The id that an answer to an unknown message must bear, or null when it asks for none. */
export function callId(data: unknown): number | null {
  return isRecord(data) && hasId(data) ? (data["id"] as number) : null;
}
