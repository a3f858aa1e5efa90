/** How scripts fail: one line with a code, exit status 2 for what the caller can mend. */

/** An error meant for the person at the terminal. */
export class UserError extends Error {
  constructor(code, message, details = {}) {
    super(message);
    this.code = code;
    this.details = details;
  }
}

/** One line, whatever the message holds. */
export function errorLine({ code, message }) {
  return `error: ${String(message).replace(/\s*\n\s*/g, " ")} (${code})`;
}

/** Runs a script's main function; its number is the exit status. */
export async function main(run) {
  try {
    process.exitCode = (await run()) ?? 0;
  } catch (error) {
    if (!(error instanceof UserError)) throw error;
    console.error(errorLine(error));
    process.exitCode = 2;
  }
}
