/** What the program holds, and what watches over it. */

import type { Claim, Grant, LeasedLock } from './claim.js';
import { onAbort } from './clock.js';
import { LeaseLost, LOSSES, Problem, type ProblemDocument, Unreachable } from './errors.js';
import { Keeper } from './keeper.js';
import type { Event } from './transport.js';

/**
 * A lease, renewed until it is released or lost. Its validity counts from the sending of each request, and it counts as
 * lost a quarter of its TTL (at most 10 s) before its end, so that the program stops before another client can have the
 * lock.
 */
export class Lease extends Keeper {
  readonly #claim: Claim;
  /** Aborts when the program has released. */
  readonly #gone = new AbortController();

  /** Each lock with its fencing token and its slot. */
  readonly locks: readonly LeasedLock[];
  /** The lock; of several, the first. */
  readonly name: string;
  /**
   * Larger than that of every earlier grant that this one cannot be held together with. The resource remembers the
   * largest that it has seen, and refuses a smaller one.
   */
  readonly fencingToken: number;
  /** Which of the places is this lease's, where the lock was asked for with a number of them. */
  readonly slot: number | undefined;

  /** @internal */
  constructor(claim: Claim, { locks, until }: Grant, isRenewed: boolean) {
    super(claim.transport, claim.names, claim.ttl, until);
    [this.#claim, this.locks] = [claim, locks];
    ({ name: this.name, fencingToken: this.fencingToken, slot: this.slot } = locks[0]!);
    if (isRenewed) void this.renew((timeout) => claim.renew(timeout));
  }

  /** The secret that proves the lease, for a program that enters the lock again. It is not printed. */
  get token(): string {
    return this.#claim.token;
  }

  /** Releases; whether the lease was still held. It goes on for 5 s at most, also where `signal` ends the wait for it. */
  async release({ signal }: { signal?: AbortSignal } = {}): Promise<boolean> {
    this.ending.abort();
    // Not before: without its stream the service would release a hold by itself.
    const releasing = this.#claim.release().finally(() => this.#gone.abort());
    return await new Promise((resolve, reject) => {
      const forget = onAbort(signal, () => reject(signal?.reason));
      releasing.then(resolve, reject).finally(() => forget());
    });
  }

  /**
   * Releases at the end of an `await using`, and throws nothing: it would hide what the block has thrown. A block that is
   * to fail where the lease was lost ends with {@link check}.
   */
  async [Symbol.asyncDispose](): Promise<void> {
    if (!this.isEnded) await this.release().catch(() => undefined);
  }

  /** @internal Does something under the lease, and releases. What it throws stays the error; else a loss is one. */
  async during<T>(act: (signal: AbortSignal, lease: Lease) => Promise<T>): Promise<T> {
    const { signal } = this.#claim.options;
    try {
      const value = await act(signal ? AbortSignal.any([this.signal, signal]) : this.signal, this);
      if (this.isEnded) return value;
      this.check();
      // Where no answer comes, the clock has the word.
      if (await this.release().catch(() => true)) return value;
      throw new LeaseLost(this.#claim.names, 'expired', 'it was over before it was released');
    } finally {
      await this[Symbol.asyncDispose]();
    }
  }

  /**
   * @internal Reads the stream that holds the lock to its end. The service frees the lock with the stream, so a lost hold
   * keeps it open until its validity ends.
   */
  async follow(stream: AsyncGenerator<Event>, sent: number, ending: AbortController): Promise<void> {
    void this.outlast(this.#gone.signal).then(() => ending.abort());
    let why = 'the stream has ended';
    try {
      for await (const { type, data } of stream as AsyncGenerator<{ type: string; data: any }>) {
        if (type === 'renewed') this.extend(sent + data.waited_ms + data.valid_for_ms);
        if (type === 'lost') this.lose(LOSSES[data.reason] ?? data.reason, data.detail, data.broken);
      }
    } catch (error) {
      why = String(error);
    }
    this.lose('unreachable', why);
  }
}

/** Holds a lock by a stream: it is free as soon as this process is gone. */
export async function hold(claim: Claim, wait: number, timeout: number): Promise<Lease> {
  const { transport, token } = claim;
  const [sent, ending] = [transport.clock.now(), new AbortController()];
  const leave = (): void => ending.abort();
  const forget = onAbort(claim.options.signal, leave);
  const cancel = transport.clock.after(timeout, leave);
  const request = { path: `${claim.path}/hold`, body: claim.creation(wait), token };
  const stream = transport.events({ method: 'POST', ...request, signal: ending.signal });
  try {
    const lease = new Lease(claim, await granted(claim, stream, sent), false);
    void lease.follow(stream, sent, ending);
    return lease;
  } catch (error) {
    leave();
    throw error;
  } finally {
    cancel();
    forget();
  }
}

async function granted(claim: Claim, stream: AsyncGenerator<Event>, sent: number): Promise<Grant> {
  for (let next = await stream.next(); !next.done; next = await stream.next()) {
    const { type, data } = next.value;
    if (type === 'acquired') return claim.grant(data, sent);
    if (type === 'refused') throw new Problem(Number(data['status']), data as ProblemDocument);
  }
  throw new Unreachable('the stream has ended', true);
}
