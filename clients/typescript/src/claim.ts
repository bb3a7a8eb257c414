/** What a client asks for, and the token that proves it: how a lock is got, renewed and released. */

import { now, until } from './clock.js';
import { Held, LeaseLost, Problem, type ProblemDocument, Unreachable } from './errors.js';
import { ANSWER_TIMEOUT, type Answer, newToken, plain, type Request, type Transport } from './transport.js';

export const PAUSE = 250;
const REQUEST_WAIT = 50_000;
const MIN_REQUEST_WAIT = 1000;
const LEAD_MAX = 10_000;

/** How to get a lock. All spans are milliseconds. */
export interface LockOptions {
  /** How long to wait in the queue; 0 by default. */
  wait?: number;
  /** How long the lease outlives this process; 30 s by default. */
  ttl?: number;
  /** A label for people that says who holds the lock. */
  owner?: string;
  /** How many may hold the lock together: a number, each with a slot of its own, or any number of readers. */
  limit?: number | 'shared';
  /** The name under which `token` enters a lock that it holds already. */
  entry?: string;
  /** A secret of 20 to 128 letters, digits, `-` and `_`; a new one by default. */
  token?: string;
  /** Gives up waiting when it aborts. */
  signal?: AbortSignal;
}

/** A lock that is held. */
export interface LeasedLock {
  name: string;
  fencingToken: number;
  slot?: number;
}

export interface Grant {
  locks: LeasedLock[];
  /** When the grant stops being exclusive, on the clock of `now`. */
  until: number;
}

export class Claim {
  readonly token: string;
  readonly ttl: number;

  constructor(
    readonly transport: Transport,
    readonly names: readonly string[],
    readonly isSet: boolean,
    readonly options: LockOptions,
  ) {
    this.token = options.token ?? newToken();
    this.ttl = options.ttl ?? 30_000;
  }

  get path(): string {
    return this.isSet ? '/v1/locks' : `/v1/locks/${plain(this.names[0]!)}`;
  }

  creation(wait: number): Record<string, unknown> {
    const { owner, limit, entry } = this.options;
    return {
      ttl_ms: Math.round(this.ttl),
      wait_ms: Math.round(wait),
      ...(this.isSet && { names: this.names }),
      ...(owner !== undefined && { owner }),
      ...(limit !== undefined && { mode: 'shared' }),
      ...(typeof limit === 'number' && { limit }),
      ...(entry !== undefined && { entry }),
    };
  }

  /**
   * Asks until the wait is over, with the same token over lost answers and 503. It releases what it may have got
   * without an answer.
   */
  async acquire(): Promise<Grant> {
    try {
      return await this.#acquire();
    } catch (error) {
      if (mayHold(error)) this.release().catch(() => undefined);
      throw error;
    }
  }

  async #acquire(): Promise<Grant> {
    const end = now() + (this.options.wait ?? 0);
    let longest = REQUEST_WAIT;
    for (;;) {
      this.options.signal?.throwIfAborted();
      const [wait, sent] = [Math.max(0, Math.min(end - now(), longest)), now()];
      let [failure, pause]: [unknown, number] = [undefined, PAUSE];
      try {
        return await this.#fresh(this.grant(await this.#create(wait), sent));
      } catch (error) {
        failure = error;
      }
      if (failure instanceof Problem) {
        if (failure.document.field === 'wait_ms' && wait > 0) {
          longest = longest / 4 >= MIN_REQUEST_WAIT ? longest / 4 : 0;
          continue;
        }
        const isFinal = wait > 0 && failure.document.waited_ms === undefined;
        if (failure.code === 'lock-held') {
          failure = this.held(failure.document);
          pause = wait > 0 && sent + wait <= now() ? 0 : PAUSE;
          if (isFinal) throw failure;
        } else if (!failure.isPassing) throw failure;
        else pause = Math.max(failure.retryAfter ?? 0, PAUSE);
      } else if (!(failure instanceof Unreachable)) throw failure;
      if (now() >= end) throw failure;
      await until(Math.min(end, now() + pause), this.options.signal);
    }
  }

  async #create(wait: number): Promise<Answer> {
    const { signal } = this.options;
    const request: Request = { method: 'POST', path: this.path, body: this.creation(wait), token: this.token };
    const sent = this.transport.send({ ...request, timeout: wait + ANSWER_TIMEOUT, ...(signal && { signal }) });
    return await sent;
  }

  /** The grant, renewed before it is used where an answer was so late that little of it is left. */
  async #fresh(grant: Grant): Promise<Grant> {
    if (grant.until - now() >= this.ttl / 2) return grant;
    return { ...grant, until: (await this.renew(ANSWER_TIMEOUT)).until };
  }

  /** Starts the TTL again; counts from the sending of the request. */
  async renew(timeout: number): Promise<Grant> {
    const sent = now();
    const body = { ttl_ms: Math.round(this.ttl), ...(this.isSet && { names: this.names }) };
    return this.grant(await this.transport.send({ method: 'PUT', path: this.path, body, token: this.token, timeout }), sent);
  }

  /** Releases; whether the token still held the locks. Repeats for 5 s until there is an answer. */
  async release(): Promise<boolean> {
    const end = now() + ANSWER_TIMEOUT;
    for (let mayBeDone = false; ; ) {
      try {
        await this.transport.send({ method: 'DELETE', path: this.#releasePath(), token: this.token });
        return true;
      } catch (error) {
        // The try whose answer was lost has released what is gone now.
        if (error instanceof Problem && loss(error)) return mayBeDone;
        if (error instanceof Problem && !error.isPassing) throw error;
        mayBeDone ||= error instanceof Problem ? error.outcome === 'unknown' : (error as Unreachable).sent;
        if (now() + PAUSE >= end) throw error;
      }
      await until(now() + PAUSE);
    }
  }

  #releasePath(): string {
    const { entry } = this.options;
    if (this.isSet) return `${this.path}?${this.names.map((name) => `name=${plain(name)}`).join('&')}`;
    return entry === undefined ? this.path : `${this.path}?entry=${plain(entry)}`;
  }

  /** What an answer or an event grants, to a request that was sent then. */
  grant({ document }: Pick<Answer, 'document'>, sent: number): Grant {
    const leases: any[] | undefined = this.isSet ? document.locks : [document];
    const valid = document.waited_ms + document.valid_for_ms;
    if (!leases?.every((lease) => typeof lease.fencing_token === 'number') || Number.isNaN(valid)) {
      throw new Unreachable('the answer is not one of keylatch', true);
    }
    const lock = (lease: any): LeasedLock => ({
      name: lease.name,
      fencingToken: lease.fencing_token,
      ...(lease.slot !== undefined && { slot: lease.slot }),
    });
    return { locks: leases.map(lock), until: sent + valid };
  }

  held({ name, holder, holders = [] }: ProblemDocument): Held {
    const [first] = [...holders].sort((one, other) => one.expires_in_ms - other.expires_in_ms);
    return new Held(name ?? this.names[0]!, holder ?? first);
  }
}

/** How long before its end a lease that is not renewed counts as lost. */
export function lead(ttl: number): number {
  return Math.min(ttl / 4, LEAD_MAX);
}

/** Why the lease is over, if the problem says that it is. */
export function loss(problem: Problem): LeaseLost | undefined {
  const reasons: Record<string, string> = {
    'lock-not-held': 'expired',
    'token-mismatch': 'taken',
    'lock-broken': 'broken',
  };
  const reason = reasons[problem.code];
  return reason ? new LeaseLost(reason, problem.document.broken?.reason ?? problem.message) : undefined;
}

/** Whether the service may have granted what the caller does not get. */
function mayHold(error: unknown): boolean {
  if (error instanceof Problem) return error.isPassing;
  return !(error instanceof Held) && !(error instanceof Unreachable && !error.sent);
}
