/** Time that is counted also while the machine sleeps. All spans are milliseconds. */

const [monotonicStart, wallStart] = [performance.now(), Date.now()];
let slept = 0;

/**
 * Milliseconds that never go back. The monotonic clock of most platforms stands still during a sleep, so what the wall
 * clock is ahead of it by more than a second is added: that makes a lease shorter, and never longer.
 */
export function now(): number {
  const monotonic = performance.now() - monotonicStart;
  const ahead = Date.now() - wallStart - monotonic;
  if (ahead > slept + 1000) slept = ahead;
  return monotonic + slept;
}

/** Waits until then, or until `signal` aborts. */
export async function until(then: number, signal?: AbortSignal): Promise<void> {
  for (let left = then - now(); left > 0 && !signal?.aborted; left = then - now()) {
    await new Promise<void>((resolve) => {
      const done = (): void => {
        clearTimeout(timer);
        signal?.removeEventListener('abort', done);
        resolve();
      };
      // A timer that was set before a sleep comes too late, so none is set for long.
      const timer: ReturnType<typeof setTimeout> = setTimeout(done, Math.min(left, 1000));
      signal?.addEventListener('abort', done);
    });
  }
}
