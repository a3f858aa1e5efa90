/** CPU time and memory of a browser's process tree, from /proc. Elsewhere the figures are null. */
import fs from "node:fs";

/** Clock ticks a second of /proc on Linux. */
const TICKS = 100;

function tree(root) {
  const children = new Map();
  for (const name of fs.readdirSync("/proc")) {
    if (!/^\d+$/.test(name)) continue;
    const stat = read(`/proc/${name}/stat`);
    const parent = Number(afterName(stat)[1]);
    if (stat) children.set(parent, [...(children.get(parent) ?? []), Number(name)]);
  }
  const found = [];
  for (const queue = [root]; queue.length > 0; ) {
    const pid = queue.pop();
    found.push(pid);
    queue.push(...(children.get(pid) ?? []));
  }
  return found;
}

function read(file) {
  try {
    return fs.readFileSync(file, "utf8");
  } catch {
    return "";
  }
}

/** Fields of a stat line after the program's name, which may hold spaces and brackets. */
function afterName(stat) {
  return stat.slice(stat.lastIndexOf(")") + 2).split(" ");
}

/** CPU seconds that the tree has used so far, its ended children included. */
export function cpuSeconds(root) {
  if (!fs.existsSync("/proc/self/stat")) return null;
  return tree(root).reduce((sum, pid) => {
    const fields = afterName(read(`/proc/${pid}/stat`));
    const ticks = fields.slice(11, 15).reduce((total, field) => total + (Number(field) || 0), 0);
    return sum + ticks / TICKS;
  }, 0);
}

/** What a process of a browser is: "renderer", "gpu-process", "utility"; null for the browser itself. */
function kindOf(pid) {
  return /--type=([\w-]+)/.exec(read(`/proc/${pid}/cmdline`))?.[1] ?? null;
}

/** Process ids of the tree's GPU processes: one, unless it is being replaced. */
export function gpuProcesses(root) {
  return tree(root).filter((pid) => kindOf(pid) === "gpu-process");
}

/**
 * Anonymous resident bytes of the tree's GPU processes: a software GPU's buffers and what else they have allocated. Mapped files and memory
 * that is shared with renderers (uploads on their way) come and go by themselves, and are left out.
 */
export function gpuAnonymousBytes(root) {
  if (!fs.existsSync("/proc/self/status")) return null;
  const kilobytes = (pid) => Number(/RssAnon:\s+(\d+)/.exec(read(`/proc/${pid}/status`))?.[1] ?? 0);
  return gpuProcesses(root).reduce((sum, pid) => sum + kilobytes(pid) * 1024, 0);
}

/** Highest resident bytes so far of the renderers and of the GPU process. */
export function peakMemory(root) {
  if (!fs.existsSync("/proc/self/status")) return null;
  const peak = { renderer: 0, gpu: 0 };
  for (const pid of tree(root)) {
    const kind = kindOf(pid);
    const key = kind === "renderer" ? "renderer" : kind === "gpu-process" ? "gpu" : null;
    const kilobytes = Number(/VmHWM:\s+(\d+)/.exec(read(`/proc/${pid}/status`))?.[1] ?? 0);
    if (key) peak[key] = Math.max(peak[key], kilobytes * 1024);
  }
  return peak;
}
