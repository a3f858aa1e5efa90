/** Waits that count only while this thread has its turns: a machine that slept or stood still has given nobody the time to answer. */

/** A standstill costs one slice of a wait, however long it was. */
const SLICES = 5;

/** Calls back after so many milliseconds, those of a standstill not counted; the result stops the wait. */
export function afterAwake(ms: number, callback: () => void): () => void {
  let left = SLICES;
  let timer: ReturnType<typeof setTimeout> | undefined;
  const slice = (): void => {
    if (left-- > 0) timer = setTimeout(slice, ms / SLICES);
    else callback();
  };
  slice();
  return () => {
    clearTimeout(timer);
  };
}
