/** A progress bar on stderr: redrawn in place on a terminal, a line every tenth elsewhere. */

const WIDTH = 28;

/** Megabytes with one decimal. */
export function megabytes(bytes) {
  return (bytes / 1e6).toFixed(1);
}

/** A bar named `label`: call it with (loaded, total), then `end()`. */
export function progressBar(label, stream = process.stderr) {
  const started = Date.now();
  let first = null;
  let shown = -1;
  let drawn = false;
  const draw = (loaded, total) => {
    first ??= loaded;
    const share = total > 0 ? Math.min(1, loaded / total) : 0;
    const step = stream.isTTY ? Math.floor(share * 200) : Math.floor(share * 10);
    if (step === shown && loaded < total) return;
    if (step === shown && !stream.isTTY) return;
    shown = step;
    const speed = (loaded - first) / Math.max(0.001, (Date.now() - started) / 1000);
    const text = `${label} ${String(Math.floor(share * 100)).padStart(3)} % ${megabytes(loaded)} of ${megabytes(total)} MB, ${megabytes(speed)} MB/s`;
    const filled = Math.round(share * WIDTH);
    if (stream.isTTY) stream.write(`\r\x1b[K[${"#".repeat(filled)}${"-".repeat(WIDTH - filled)}] ${text}`);
    else stream.write(`${text}\n`);
    drawn = true;
  };
  draw.end = () => {
    if (drawn && stream.isTTY) stream.write("\n");
    drawn = false;
  };
  return draw;
}
