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
  /** Aborts when the program begins to release. */
  readonly #released = new AbortController();
  /** Aborts when it has released. */
  readonly #gone = new AbortController();
  #until: number;

  /** @internal */
  constructor(claim: Claim, grant: Grant, watch: (lease: Lease) => Promise<void>) {
    [this.#claim, this.#grant, this.#until] = [claim, grant, grant.until];
    void watch(this);
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
    try {
      return await this.#claim.release();
    } finally {
      // Not before: without its stream the service would release a hold by itself.
      this.#gone.abort();
    }
  }

  /** Releases at the end of an `await using`; throws {@link LeaseLost} if the lease was lost before. */
  async [Symbol.asyncDispose](): Promise<void> {
    const wasHeld = await this.release();
    this.check();
    if (!wasHeld) throw new LeaseLost('expired', 'the lease was over before it was released');
  }

  #lose(lost: LeaseLost): void {
    if (!this.#released.signal.aborted) this.#lost.abort(lost);
  }

  /** @internal Keeps the lease until it is lost. */
  async renew(): Promise<void> {
    this.#lose(await this.#renewUntilLost());
  }

  /** Renews at each third of the TTL. */
  async #renewUntilLost(): Promise<LeaseLost> {
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

  /**
   * @internal Reads the stream that holds the lock to its end. The service frees the lock with the stream, so a lost hold
   * keeps it open until its validity ends.
   */
  async follow(stream: AsyncGenerator<Event>, sent: number, ending: AbortController): Promise<void> {
    void this.#outlast(ending);
    let why = 'the stream has ended';
    try {
      for await (const { type, data } of stream) {
        if (type === 'renewed' && !this.signal.aborted) this.#until = sent + data.waited_ms + data.valid_for_ms;
        if (type === 'lost') this.#lose(new LeaseLost(data.reason, data.detail));
      }
    } catch (error) {
      why = String(error);
    }
    this.#lose(new LeaseLost('unreachable', why));
  }

  /** Sees that events renew a hold in time, and ends the stream when the validity is over. */
  async #outlast(ending: AbortController): Promise<void> {
    const gone = this.#gone.signal;
    const giveUp = (): number => this.#until - lead(this.#claim.ttl);
    while (giveUp() > now() && !this.signal.aborted && !gone.aborted) await until(giveUp(), gone);
    this.#lose(new LeaseLost('unrenewed', 'no renewal came in time'));
    await until(this.#until, gone);
    ending.abort();
  }
}

/** Holds a lock by a stream: it is free as soon as this process is gone. */
export async function hold(claim: Claim): Promise<Lease> {
  const { wait = 0, signal } = claim.options;
  signal?.throwIfAborted();
  const [sent, ending, opened] = [now(), new AbortController(), new AbortController()];
  const leave = (): void => ending.abort();
  signal?.addEventListener('abort', leave);
  void until(sent + wait + ANSWER_TIMEOUT, opened.signal).then(() => opened.signal.aborted || leave());
  const request = { path: `${claim.path}/hold`, body: claim.creation(wait), token: claim.token };
  const stream = events(claim.transport, { method: 'POST', ...request, signal: ending.signal });
  try {
    const grant = await granted(claim, stream, sent);
    return new Lease(claim, grant, (lease) => lease.follow(stream, sent, ending));
  } catch (error) {
    leave();
    signal?.throwIfAborted();
    throw error instanceof Problem && error.code === 'lock-held' ? claim.held(error.document) : error;
  } finally {
    opened.abort();
    signal?.removeEventListener('abort', leave);
  }
}

/** Waits for the event that says that the lock is held. */
async function granted(claim: Claim, stream: AsyncGenerator<Event>, sent: number): Promise<Grant> {
  for (let next = await stream.next(); !next.done; next = await stream.next()) {
    const { type, data } = next.value;
    if (type === 'acquired') return claim.grant({ document: data }, sent);
    if (type === 'refused') throw new Problem(data.status, data);
  }
  throw new Unreachable('the stream has ended', true);
}
