/** Files on a server that misbehaves as told: cuts, stalls, lies about lengths and ranges, changes the file, fails each Nth request. */
import zlib from "node:zlib";

const PIECE = 16 * 1024;
const TRICKLE_MS = 100;
/** After how long without a byte a connection is stalled: where a test wants none, and where it wants one soon. */
export const PATIENT_MS = 120_000;
export const STALL_MS = 400;

/** A small generator of numbers below one, the same for the same seed (mulberry32). */
export function random(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let x = Math.imul(state ^ (state >>> 15), state | 1);
    x ^= x + Math.imul(x ^ (x >>> 7), x | 61);
    return ((x ^ (x >>> 14)) >>> 0) / 2 ** 32;
  };
}

/**
 * Files by path, for `serve({ handle })`. `put(path, { data, etag, fault, cors })`: `fault(n, request)` says what goes wrong with
 * the nth request of that file:
 *   status, headers   an answer without the file
 *   redirect          a 302 to there
 *   html              a page with status 200
 *   data, etag        another version of the file
 *   cutAfter          the connection breaks after so many bytes
 *   stallAfter        nothing more comes after so many bytes
 *   gate              [bytes, promise]: after so many bytes only a trickle, which is no stall; the rest once the promise resolves
 *   pace              [bytes, ms]: so many bytes, then a rest
 *   whole             ranges are ignored;  gzip: compressed, whole
 *   lieTotal          added to the size that is announced;  lieStart: to the start of the range
 *   plain             no entity tag and no date;  unsized: no length
 */
export function faultyFiles() {
  const files = new Map();
  const handle = (request, response) => {
    const entry = files.get(new URL(request.url, "http://localhost").pathname);
    if (!entry) return false;
    if (entry.cors) {
      response.setHeader("access-control-allow-origin", "*");
      response.setHeader("access-control-allow-headers", "*");
      if (entry.expose) response.setHeader("access-control-expose-headers", entry.expose);
    }
    response.setHeader("cross-origin-resource-policy", "cross-origin");
    if (request.method === "OPTIONS") {
      response.writeHead(204).end();
      return true;
    }
    const seen = { range: request.headers.range ?? null, ifRange: request.headers["if-range"] ?? null, sent: 0, headers: request.headers };
    entry.requests.push(seen);
    answer(request, response, { ...entry, ...entry.fault?.(entry.requests.length, request) }, seen);
    return true;
  };
  return {
    handle,
    put(path, entry) {
      files.set(path, { etag: '"one"', requests: [], ...entry });
      return files.get(path);
    },
    get: (path) => files.get(path),
    remove: (path) => files.delete(path),
  };
}

function answer(request, response, plan, seen) {
  if (plan.status) return void response.writeHead(plan.status, plan.headers ?? {}).end("no");
  if (plan.redirect) return void response.writeHead(302, { location: plan.redirect }).end();
  if (plan.html) return void response.writeHead(200, { "content-type": "text/html" }).end("<!doctype html><title>Sign in</title>");
  if (!plan.plain) {
    response.setHeader("etag", plan.etag);
    response.setHeader("last-modified", "Mon, 02 Nov 2026 10:00:00 GMT");
  }
  response.setHeader("content-type", "application/octet-stream");
  if (plan.gzip) {
    const body = zlib.gzipSync(plan.data, { level: 1 });
    response.writeHead(200, { "content-encoding": "gzip", "content-length": body.length });
    return void send(response, body, plan, seen);
  }
  const match = /^bytes=(\d+)-(\d*)$/.exec(request.headers.range ?? "");
  const sameVersion = seen.ifRange === null || seen.ifRange === plan.etag;
  const ranged = match && !plan.whole && sameVersion;
  const start = ranged ? Number(match[1]) : 0;
  const end = ranged && match[2] ? Math.min(plan.data.length, Number(match[2]) + 1) : plan.data.length;
  if (ranged && start >= plan.data.length) {
    return void response.writeHead(416, { "content-range": `bytes */${plan.data.length}` }).end();
  }
  const lie = plan.lieTotal ?? 0;
  if (ranged) {
    const from = start + (plan.lieStart ?? 0);
    response.setHeader("content-range", `bytes ${from}-${end - 1}/${plan.data.length + lie}`);
  }
  if (!plan.unsized) response.setHeader("content-length", end - start + (match?.[2] ? 0 : lie));
  response.writeHead(ranged ? 206 : 200);
  send(response, plan.data.subarray(start, end), plan, seen);
}

function send(response, body, plan, seen) {
  const stop = Math.min(plan.cutAfter ?? Infinity, plan.stallAfter ?? Infinity, body.length);
  const [piece, rest] = plan.pace ?? [PIECE, 0];
  let [gateAt, gate] = plan.gate ?? [Infinity, null];
  const next = () => {
    if (response.destroyed) return;
    if (seen.sent >= gateAt) {
      const trickle = setInterval(() => {
        if (seen.sent < stop - 1) response.write(body.subarray(seen.sent, ++seen.sent));
      }, TRICKLE_MS);
      response.on("close", () => clearInterval(trickle));
      gateAt = Infinity;
      void gate.then(() => {
        clearInterval(trickle);
        next();
      });
      return;
    }
    if (seen.sent >= stop) {
      if (plan.cutAfter <= stop || (plan.lieTotal ?? 0) > 0) response.destroy();
      else if (plan.stallAfter <= stop) return;
      else response.end();
      return;
    }
    const bytes = body.subarray(seen.sent, Math.min(stop, seen.sent + piece));
    seen.sent += bytes.length;
    response.write(bytes, () => (rest > 0 ? setTimeout(next, rest) : next()));
  };
  next();
}

/**
 * A Worker for tests: the package's own, which does not wait long before it tries again. A message `{ stallMs }` says after how long a
 * connection counts as stalled: only tests of stalls want less than people have, the others' servers may be as slow as they like.
 */
export const IMPATIENT = `
  import { tuning } from "/pkg/source/tuning.js";
  Object.assign(tuning, { stallMs: ${PATIENT_MS}, retryDelayMs: 10, maxDelayMs: 40 });
  addEventListener("message", ({ data }) => {
    if (data?.stallMs) tuning.stallMs = data.stallMs;
  });
  import "/pkg/worker.js";
`;

/** What goes wrong in one run, by its seed. */
export function plannedFault(seed, { data, other, elsewhere }) {
  const rnd = random(seed);
  const upTo = (n) => Math.floor(rnd() * n);
  const pick = (list) => list[upTo(list.length)];
  const at = upTo(data.length);
  const once = pick([1, 1, 1, 2, 3]);
  const kinds = {
    none: () => () => null,
    cuts: () => (n) => (n <= once + 1 ? { cutAfter: upTo(data.length) } : null),
    "cuts always": () => () => ({ cutAfter: at % 3000 }),
    stalls: () => (n) => (n === once ? { stallAfter: at } : null),
    "stalls always": () => () => ({ stallAfter: 0 }),
    "each nth fails": () => {
      const every = pick([2, 3]);
      const how = pick([{ status: 500 }, { status: 503 }, { cutAfter: 0 }, { cutAfter: 70_000 }]);
      return (n) => (n % every === 0 || n === 1 ? how : { cutAfter: 100_000 });
    },
    "status for ever": () => () => ({ status: pick([403, 404, 410, 500]) }),
    changes: () => (n) => (n === 1 ? { cutAfter: at } : { data: other, etag: '"two"' }),
    "changes in a lift": () => (n) => (n % 2 === 1 ? { cutAfter: at } : { data: other, etag: '"two"', cutAfter: at }),
    "changes without a tag": () => (n) => (n === 1 ? { pace: [20_000, 5], cutAfter: at, plain: true } : { data: other, plain: true }),
    "shrinks without a tag": () => (n) => (n === 1 ? { cutAfter: at, plain: true } : { data: other.subarray(0, other.length - 32), plain: true }),
    "no tag": () => (n) => ({ plain: true, ...(n <= once ? { pace: [20_000, 5], cutAfter: 60_000 + upTo(60_000) } : {}) }),
    "no ranges": () => (n) => ({ whole: true, ...(n < once ? { cutAfter: at } : {}) }),
    gzip: () => (n) => ({ gzip: true, ...(n < once ? { cutAfter: at % 4000 } : {}) }),
    redirects: () => () => ({ redirect: elsewhere }),
    "a sign-in page": () => (n) => (n >= once ? { html: true } : { cutAfter: at }),
    "lies about its size": () => (n) => (n <= once ? { lieTotal: 1000 + at } : null),
    "always lies about its size": () => () => ({ lieTotal: pick([1, 32, 100_000]) }),
    "lies about ranges": () => (n) => (n === 1 ? { cutAfter: at } : { lieStart: pick([-1, 64]) }),
    "shorter than its header says": () => () => ({ data: data.subarray(0, Math.max(64, at)) }),
  };
  const kind = pick(Object.keys(kinds));
  return {
    kind,
    stalls: kind.startsWith("stalls"),
    fault: kinds[kind](),
    integrity: rnd() < 0.3,
    cache: rnd() < 0.8 ? "opfs" : "none",
    abortAfterMs: rnd() < 0.2 ? upTo(120) : null,
  };
}
