/** A static server on 127.0.0.1: ranges, entity tags, cross-origin isolation. Serves folders and single files by URL prefix. */
import fs from "node:fs";
import http from "node:http";
import path from "node:path";
import { ROOT } from "./paths.mjs";

const TYPES = {
  ".html": "text/html; charset=utf-8",
  ".js": "text/javascript",
  ".mjs": "text/javascript",
  ".css": "text/css",
  ".json": "application/json",
  ".wasm": "application/wasm",
  ".svg": "image/svg+xml",
};

/** URL prefix -> folder or file. The demo page is at the root, the built package at /pkg/. */
export const DEFAULT_MOUNTS = { "/": path.join(ROOT, "www"), "/pkg/": path.join(ROOT, "pkg") };

/** Finds what a path means: the longest mount that matches, or null when it is nothing of ours. */
function resolve(mounts, pathname) {
  const prefix = Object.keys(mounts)
    .filter((p) => (p.endsWith("/") ? pathname.startsWith(p) : pathname === p))
    .sort((a, b) => b.length - a.length)[0];
  if (prefix === undefined) return null;
  const root = path.resolve(mounts[prefix]);
  if (!prefix.endsWith("/")) return root;
  const file = path.resolve(root, pathname.slice(prefix.length) || "index.html");
  return file === root || file.startsWith(root + path.sep) ? file : null;
}

/** The asked range as [start, end], "all", or null when it cannot be satisfied. */
function parseRange(header, size) {
  const match = /^bytes=(\d*)-(\d*)$/.exec(header ?? "");
  if (!match || (match[1] === "" && match[2] === "")) return "all";
  const start = match[1] === "" ? Math.max(0, size - Number(match[2])) : Number(match[1]);
  const end = match[1] === "" || match[2] === "" ? size - 1 : Math.min(size - 1, Number(match[2]));
  return start <= end ? [start, end] : null;
}

/** What lies there; undefined when nothing does, or when no file can have such a name. */
function statOf(file) {
  try {
    return fs.statSync(file, { throwIfNoEntry: false });
  } catch {
    return undefined;
  }
}

function answer(request, response, mounts, { isolate, ranges, headers }) {
  for (const [name, value] of Object.entries(headers)) response.setHeader(name, value);
  if (isolate) {
    response.setHeader("cross-origin-opener-policy", "same-origin");
    response.setHeader("cross-origin-embedder-policy", "require-corp");
  }
  let pathname;
  try {
    pathname = decodeURIComponent(new URL(request.url, "http://localhost").pathname);
    if (pathname.includes("\0")) throw new URIError("no file has such a name");
  } catch {
    response.writeHead(400).end();
    return;
  }
  if (request.method !== "GET" && request.method !== "HEAD") {
    response.writeHead(405).end();
    return;
  }
  const file = resolve(mounts, pathname);
  const stat = file === null ? undefined : statOf(file);
  if (!stat?.isFile()) {
    response.writeHead(404, { "content-type": "text/plain" }).end("not found");
    return;
  }
  const etag = `"${stat.size.toString(16)}-${Math.floor(stat.mtimeMs).toString(16)}"`;
  response.setHeader("content-type", TYPES[path.extname(file)] ?? "application/octet-stream");
  response.setHeader("cross-origin-resource-policy", "same-origin");
  response.setHeader("etag", etag);
  response.setHeader("cache-control", "no-cache");
  if (ranges) response.setHeader("accept-ranges", "bytes");
  if (request.headers["if-none-match"] === etag) {
    response.writeHead(304).end();
    return;
  }
  const ifRange = request.headers["if-range"];
  const asked = ranges && (ifRange === undefined || ifRange === etag) ? parseRange(request.headers.range, stat.size) : "all";
  if (asked === null) {
    response.writeHead(416, { "content-range": `bytes */${stat.size}` }).end();
    return;
  }
  const [start, end] = asked === "all" ? [0, stat.size - 1] : asked;
  if (asked !== "all") response.setHeader("content-range", `bytes ${start}-${end}/${stat.size}`);
  response.setHeader("content-length", end - start + 1);
  response.writeHead(asked === "all" ? 200 : 206);
  if (request.method === "HEAD" || stat.size === 0) {
    response.end();
    return;
  }
  const stream = fs.createReadStream(file, { start, end });
  stream.on("error", () => response.destroy());
  response.on("close", () => stream.destroy());
  stream.pipe(response);
}

/**
 * Starts the server; `log` lists [method, url, status] of what was asked. `headers` go with every answer; `defaults: false` serves the
 * mounts alone; `handle` may answer a request itself, by returning true.
 */
export function serve({ mounts = {}, port = 0, isolate = true, ranges = true, headers = {}, defaults = true, handle = () => false } = {}) {
  const all = defaults ? { ...DEFAULT_MOUNTS, ...mounts } : mounts;
  const log = [];
  const server = http.createServer((request, response) => {
    response.on("finish", () => log.push([request.method, request.url, response.statusCode]));
    if (!handle(request, response)) answer(request, response, all, { isolate, ranges, headers });
  });
  return new Promise((resolvePromise, reject) => {
    server.on("error", reject);
    server.listen(port, "127.0.0.1", () => {
      resolvePromise({
        url: `http://127.0.0.1:${server.address().port}`,
        log,
        close: () => {
          server.closeAllConnections();
          server.close();
        },
      });
    });
  });
}
