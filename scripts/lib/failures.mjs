/** A reporter for Node's test runner that writes the failed tests alone: name, place, error and where it was thrown. */
import path from "node:path";
import { ROOT } from "./paths.mjs";

/** Characters of one error that are kept. */
const MOST = 4000;

function told({ name, file, line, details }) {
  const { error } = details;
  // The runner wraps what a test threw.
  const cause = error?.cause instanceof Error || typeof error?.cause === "string" ? error.cause : error;
  const place = file ? ` (${path.relative(ROOT, file)}:${line})` : "";
  const text = cause?.stack ?? String(cause);
  return `FAILED: ${name}${place}\n${text.length > MOST ? `${text.slice(0, MOST)} [...]` : text}\n\n`;
}

export default async function* failures(events) {
  for await (const { type, data } of events) {
    // A suite fails with its tests, which are told on their own.
    if (type === "test:fail" && data.details.error?.failureType !== "subtestsFailed") yield told(data);
  }
}
