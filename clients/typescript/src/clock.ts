/** Time that is counted also while the machine sleeps. All spans are milliseconds. */

/** The time of a client: that of the machine, or one that a test moves. */
export interface Clock {
  /** Milliseconds that never go back. */
  now(): number;
  /** Calls `act` after `span`, unless the returned function is called first. */
  after(span: number, act: () => void): () => void;
}

const [monotonicStart, wallStart] = [performance.now(), Date.now()];
let slept = 0;

export const machineClock: Clock = {
  /**
   * The monotonic clock of most platforms stands still during a sleep. So what the wall clock is ahead of it by more than
   * a second is added: that makes a lease shorter, and never longer.
   */
  now() {
    const monotonic = performance.now() - monotonicStart;
    const ahead = Date.now() - wallStart - monotonic;
    if (ahead > slept + 1000) slept = ahead;
    return monotonic + slept;
  },
  after(span, act) {
    const end = machineClock.now() + span;
    const look = (): void => {
      const left = end - machineClock.now();
      if (left <= 0) act();
      else timer = setTimeout(look, Math.min(left, 1000));
    };
    // A timer that was set before a sleep comes too late, so none is set for long.
    let timer = setTimeout(look, Math.max(0, Math.min(span, 1000)));
    return () => clearTimeout(timer);
  },
};

/** Waits until then, or until `signal` aborts. */
export async function until(clock: Clock, then: number, signal?: AbortSignal): Promise<void> {
  const left = then - clock.now();
  if (left <= 0) return;
  const ends: (() => void)[] = [];
  await new Promise<void>((resolve) => ends.push(clock.after(left, resolve), onAbort(signal, resolve)));
  for (const end of ends) end();
}

const listeners = new WeakMap<AbortSignal, Set<() => void>>();

/**
 * Calls `act` when `signal` aborts, unless the returned function is called first. A signal gets one listener, however many
 * wait for it: Node warns of more than ten.
 */
export function onAbort(signal: AbortSignal | undefined, act: () => void): () => void {
  if (!signal) return () => undefined;
  const acts = listeners.get(signal) ?? new Set();
  listeners.set(signal, acts);
  if (acts.size === 0) signal.addEventListener('abort', callAll);
  const call = (): void => act();
  acts.add(call);
  if (signal.aborted) act();
  return () => {
    acts.delete(call);
    if (acts.size === 0) signal.removeEventListener('abort', callAll);
  };
}

function callAll(this: AbortSignal): void {
  for (const act of [...(listeners.get(this) ?? [])]) act();
}
