/** Running other programs: output passed through, or captured. */
import { spawn, spawnSync } from "node:child_process";
import fs from "node:fs";
import { ROOT, buildEnv } from "./paths.mjs";
import { UserError } from "./fail.mjs";

/** Runs to the end with output on stderr (stdout belongs to the script's own result), or into the file `log`; throws when it fails. */
export function run(command, args, { env = {}, cwd = ROOT, stdout = 2, log } = {}) {
  return new Promise((resolve, reject) => {
    const file = log === undefined ? null : fs.openSync(log, "w");
    const child = spawn(command, args, { cwd, env: buildEnv(env), stdio: ["inherit", file ?? stdout, file ?? "inherit"] });
    if (file !== null) fs.closeSync(file);
    child.on("error", (cause) => {
      reject(new UserError("setup.missing", `${command} could not be started: ${cause.message}`));
    });
    child.on("close", (status, signal) => {
      if (status === 0) resolve();
      else reject(new UserError("command.failed", `${command} ${args.join(" ")} ended with ${signal ?? `status ${status}`}`));
    });
  });
}

/** Stdout of a short command, or null when it is missing, fails, or takes longer than `timeout` milliseconds. */
export function output(command, args, { env = {}, timeout } = {}) {
  const stdio = ["ignore", "pipe", "ignore"];
  const done = spawnSync(command, args, { cwd: ROOT, env: buildEnv(env), encoding: "utf8", stdio, timeout });
  return done.status === 0 ? done.stdout.trim() : null;
}
