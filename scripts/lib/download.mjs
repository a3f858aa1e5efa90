/** Downloads a model from a URL into the cache: resumed when cut, checked against the server's entity tag the next time. */
import crypto from "node:crypto";
import fs from "node:fs";
import path from "node:path";
import { once } from "node:events";
import { UserError } from "./fail.mjs";
import { MODELS } from "./paths.mjs";
import { progressBar } from "./progress.mjs";

const ATTEMPTS = 5;

/** Path of the local copy. A copy is used again when the server says that it is still the same, or does not answer. */
export async function downloadModel(url) {
  const name = path.basename(new URL(url).pathname) || "model.gguf";
  const folder = path.join(MODELS, "url", crypto.createHash("sha256").update(url).digest("hex").slice(0, 16));
  const file = path.join(folder, name);
  fs.mkdirSync(folder, { recursive: true });
  const known = readJson(`${file}.json`);
  if (known && fs.existsSync(file) && (await unchanged(url, known))) return file;
  const bar = progressBar("model");
  try {
    for (let attempt = 0; ; attempt++) {
      try {
        if (await pull(url, file, bar)) return file;
      } catch (error) {
        if (error instanceof UserError) throw error;
        if (attempt >= ATTEMPTS) throw new UserError("model.download", `${url} could not be downloaded: ${reason(error)}`, { url });
      }
      if (attempt >= ATTEMPTS) throw new UserError("model.download", `${url} kept breaking off`, { url });
      await new Promise((resolve) => setTimeout(resolve, 500 * 2 ** attempt));
    }
  } finally {
    bar.end();
  }
}

function reason(error) {
  return error.cause?.message ?? error.message;
}

function readJson(file) {
  try {
    return JSON.parse(fs.readFileSync(file, "utf8"));
  } catch {
    return null;
  }
}

async function unchanged(url, known) {
  try {
    const response = await fetch(url, { method: "HEAD" });
    if (!response.ok) return false;
    return known.etag !== null && response.headers.get("etag") === known.etag;
  } catch {
    console.error(`model: ${url} does not answer, using the copy from ${known.fetched}`);
    return true;
  }
}

/** One request; true when the file is whole. */
async function pull(url, file, bar) {
  const part = `${file}.part`;
  const about = readJson(`${part}.json`);
  const have = about?.etag && fs.existsSync(part) ? fs.statSync(part).size : 0;
  const headers = { "accept-encoding": "identity", ...(have ? { range: `bytes=${have}-`, "if-range": about.etag } : {}) };
  const response = await fetch(url, { headers });
  if (response.status === 416) {
    fs.rmSync(part, { force: true });
    return false;
  }
  if (!response.ok) throw new UserError("http.status", `${url} answered with HTTP status ${response.status}`, { url, status: response.status });
  const etag = response.headers.get("etag");
  fs.writeFileSync(`${part}.json`, JSON.stringify({ url, etag, fetched: new Date().toISOString() }));
  const start = response.status === 206 ? have : 0;
  const total = start + Number(response.headers.get("content-length") ?? 0);
  const out = fs.createWriteStream(part, { flags: start ? "a" : "w" });
  let loaded = start;
  try {
    for await (const chunk of response.body) {
      if (!out.write(chunk)) await once(out, "drain");
      loaded += chunk.length;
      bar(loaded, Math.max(total, loaded));
    }
  } finally {
    out.end();
    await once(out, "close");
  }
  if (loaded < total) return false;
  fs.renameSync(part, file);
  fs.renameSync(`${part}.json`, `${file}.json`);
  return true;
}
