/** What the program holds, and what watches over it. */

import { type Claim, type Grant, lead, type LeasedLock, loss, PAUSE } from './claim.js';
import { now, until } from './clock.js';
import { LeaseLost, Problem, Unreachable } from './errors.js';
import { type Event, events } from './events.js';
import { ANSWER_TIMEOUT } from './transport.js';

/**
 * A lease, renewed until it is released or lost. Its validity counts from the sending of each request, and it counts as
 * lost a quarter of its TTL (at most 10 s) before its end, so that the program stops before another client can have the
 * lock.
 */
export class Lease {
  readonly #claim: Claim;
  readonly #grant: Grant;
  readonly #lost = new AbortController();
  readonly #released = new AbortController();
  #until: number;

  /** @internal */
  constructor(claim: Claim, grant: Grant, watch: (lease: Lease) => Promise<LeaseLost>) {
    [this.#claim, this.#grant, this.#until] = [claim, grant, grant.until];
    watch(this).then((lost) => {
      if (!this.#released.signal.aborted) this.#lost.abort(lost);
    });
  }

  /** The lock; of several, the first. */
  get name(): string {
    return this.locks[0]!.name;
  }

  /** Each lock with its fencing token and its slot. */
  get locks(): readonly LeasedLock[] {
    return this.#grant.locks;
  }

  /**
   * Larger than that of every earlier grant that this one cannot be held together with. The resource remembers the
   * largest that it has seen, and refuses a smaller one.
   */
  get fencingToken(): number {
    return this.locks[0]!.fencingToken;
  }

  /** Which of the places is this lease's, where the lock was asked for with a number of them. */
  get slot(): number | undefined {
    return this.locks[0]!.slot;
  }

  /** The secret that proves the lease, for a program that enters the lock again. */
  get token(): string {
    return this.#claim.token;
  }

  /** Aborts when the lease is lost; its reason is a {@link LeaseLost}. Hand it to what you call. */
  get signal(): AbortSignal {
    return this.#lost.signal;
  }

  /** For how many milliseconds the lease is exclusive from now on unless it is renewed. */
  get validFor(): number {
    return Math.max(0, this.#until - now());
  }

  /** Throws {@link LeaseLost} once the lease is lost. Call it before each step of the work. */
  check(): void {
    this.signal.throwIfAborted();
  }

  /** Releases; whether the lease was still held. */
  async release(): Promise<boolean> {
    this.#released.abort();
    return await this.#claim.release();
  }

  /** Releases at the end of an `await using`; throws {@link LeaseLost} if the lease was lost before. */
  async [Symbol.asyncDispose](): Promise<void> {
    const wasHeld = await this.release();
    this.check();
    if (!wasHeld) throw new LeaseLost('expired', 'the lease was over before it was released');
  }

  /** @internal Renews at each third of the TTL until the lease is lost. */
  async renew(): Promise<LeaseLost> {
    const claim = this.#claim;
    for (let [due, why] = [now() + claim.ttl / 3, '']; ; ) {
      const giveUp = this.#until - lead(claim.ttl);
      await until(Math.min(due, giveUp), this.#released.signal);
      const sent = now();
      if (this.#released.signal.aborted) return new LeaseLost('expired', 'it is released');
      if (sent >= this.#until) return new LeaseLost('paused', why || 'the lease ended while this process was paused');
      if (sent >= giveUp) return new LeaseLost('unrenewed', `the lease could not be renewed in time: ${why}`);
      try {
        this.#until = (await claim.renew(Math.min(ANSWER_TIMEOUT, Math.max((giveUp - sent) / 2, 50)))).until;
        [due, why] = [sent + claim.ttl / 3, ''];
      } catch (error) {
        const lost = error instanceof Problem ? loss(error) : undefined;
        if (lost) return lost;
        const pause = error instanceof Problem ? (error.retryAfter ?? 0) : 0;
        [due, why] = [now() + Math.max(pause, PAUSE), String(error)];
      }
    }
  }

  /** @internal Reads the stream that holds the lock until the lease is lost. */
  async follow(stream: AsyncGenerator<Event>, sent: number): Promise<LeaseLost> {
    return await Promise.race([this.#read(stream, sent), this.#expire()]);
  }

  async #read(stream: AsyncGenerator<Event>, sent: number): Promise<LeaseLost> {
    try {
      for (let next = await stream.next(); !next.done; next = await stream.next()) {
        const { type, data } = next.value;
        if (type === 'renewed') this.#until = sent + data.waited_ms + data.valid_for_ms;
        if (type === 'lost') return new LeaseLost(data.reason, data.detail);
      }
      return new LeaseLost('unreachable', 'the stream has ended');
    } catch (error) {
      return new LeaseLost('unreachable', String(error));
    }
  }

  async #expire(): Promise<LeaseLost> {
    for (;;) {
      const giveUp = this.#until - lead(this.#claim.ttl);
      if (giveUp <= now() || this.#released.signal.aborted) return new LeaseLost('unrenewed', 'no renewal came in time');
      await until(giveUp, this.#released.signal);
    }
  }
}

/** Holds a lock by a stream: it is free as soon as this process is gone. */
export async function hold(claim: Claim): Promise<Lease> {
  const sent = now();
  const body = claim.creation(claim.options.wait ?? 0);
  const stream = events(claim.transport, { method: 'POST', path: `${claim.path}/hold`, body, token: claim.token });
  try {
    for (let next = await stream.next(); !next.done; next = await stream.next()) {
      const { type, data } = next.value;
      if (type === 'acquired') {
        return new Lease(claim, claim.grant({ document: data }, sent), (lease) => lease.follow(stream, sent));
      }
      if (type === 'refused') throw new Problem(data.status, data);
    }
  } catch (error) {
    throw error instanceof Problem && error.code === 'lock-held' ? claim.held(error.document) : error;
  }
  throw new Unreachable('the stream has ended', true);
}

