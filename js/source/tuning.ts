/** How patient the network code is. One mutable object, so that tests of trouble need not wait as long as people would. */
export const tuning = {
  /** Without a byte (or an answer) for this long a connection counts as stalled. */
  stallMs: 10_000,
  /** Attempts after the first one while nothing has ever arrived: what is wrong from the start is told promptly. */
  firstRetries: 2,
  /** Attempts after a failure once bytes have arrived: networks change, lifts have doors. */
  retries: 5,
  /** Wait before the first retry; each one after doubles it. */
  retryDelayMs: 250,
  maxDelayMs: 8_000,
  /** While the browser says that it is offline, how long a retry waits for it to be online again. */
  offlineMs: 30_000,
  /** Files of a split model that download at the same time. */
  connections: 3,
  /** The journal of a download is written after this many bytes, or this much time with any. */
  journalBytes: 8 * 1024 * 1024,
  journalMs: 2_000,
};
