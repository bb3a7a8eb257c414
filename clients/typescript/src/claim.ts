/** What a client asks for, and the token that proves it: how a lock is got, renewed and released. */

import { Held, isBusy, LOSSES, Problem, type ProblemDocument } from './errors.js';
import { type Attempt, foreign, given, newToken, plain, type Transport } from './transport.js';

/** How to get a lock. All spans are milliseconds. */
export interface LockOptions {
  /** How long to wait in the queue; 0 by default, `Infinity` for ever. */
  wait?: number;
  /** To wait only where at most so many wait already: with 0 one holds the lock, and one waits. */
  maxAhead?: number;
  /** How long the lease outlives this process; 30 s by default. */
  ttl?: number;
  /** A label for people that says who holds the lock; that of the client by default. */
  owner?: string;
  /** How many may hold the lock together: a number, each with a slot of its own, or any number of readers. */
  limit?: number | 'shared';
  /** The name under which `token` enters a lock that it holds already. */
  entry?: string;
  /** Of a hold: how long the connection may hold the lock at most; a day by default. */
  maxHold?: number;
  /** A secret of 20 to 128 letters, digits, `-` and `_`; a new one by default. */
  token?: string;
  /** Gives up waiting when it aborts. */
  signal?: AbortSignal | undefined;
}

export interface LeasedLock {
  name: string;
  fencingToken: number;
  slot: number | undefined;
}

/** What is granted, and until when on the clock of the transport. */
export type Grant = { locks: LeasedLock[]; until: number };

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
    const { owner = this.transport.owner, maxAhead, limit, entry, maxHold } = this.options;
    return {
      ttl_ms: given(this.ttl),
      wait_ms: given(wait),
      max_ahead: given(maxAhead),
      names: this.isSet ? this.names : undefined,
      owner,
      mode: limit === undefined ? undefined : 'shared',
      limit: limit === 'shared' ? undefined : given(limit),
      entry,
      max_hold_ms: given(maxHold),
    };
  }

  /**
   * Asks until the wait is over, with the same token over lost answers and 503. It releases what it may have got
   * without an answer; under a token of the caller's own that may be another lease.
   */
  async acquire(): Promise<Grant> {
    const { token, entry } = this.options;
    const undo = token === undefined || entry !== undefined ? () => this.release() : undefined;
    return await this.persist((wait, timeout) => this.#create(wait, timeout), undo);
  }

  /** What comes of an attempt in the end; throws {@link Held} where others had the lock until the wait was over. */
  async persist<T>(attempt: Attempt<T>, undo?: () => Promise<unknown>): Promise<T> {
    try {
      return await this.transport.persist(attempt, this.options, undo);
    } catch (error) {
      throw isBusy(error) ? this.#held(error.document) : error;
    }
  }

  async #create(wait: number, timeout: number): Promise<Grant> {
    const sent = this.transport.clock.now();
    const request = { path: this.path, token: this.token, body: this.creation(wait), timeout, signal: this.options.signal };
    const grant = this.grant(await this.transport.send({ method: 'POST', ...request }), sent);
    return { ...grant, until: await this.transport.fresh(grant.until, this.ttl, () => this.renew()) };
  }

  /** Starts the TTL again; until when the grant is exclusive, counted from the sending of the request. */
  async renew(timeout = this.transport.timeout): Promise<number> {
    const sent = this.transport.clock.now();
    const body = { ttl_ms: given(this.ttl), names: this.isSet ? this.names : undefined };
    const request = { path: this.path, body, token: this.token, timeout };
    return this.grant(await this.transport.send({ method: 'PUT', ...request }), sent).until;
  }

  /** Releases; whether the token still held the locks. */
  async release(): Promise<boolean> {
    const { entry } = this.options;
    const query = this.isSet ? this.names.map((name) => `name=${plain(name)}`).join('&') : entry && `entry=${plain(entry)}`;
    const path = query ? `${this.path}?${query}` : this.path;
    return await this.transport.persist(async (_, timeout, mayBeDone) => {
      try {
        await this.transport.send({ method: 'DELETE', path, token: this.token, timeout });
        return true;
      } catch (error) {
        // The try whose answer was lost has released what is gone now.
        if (error instanceof Problem && LOSSES[error.code]) return mayBeDone;
        throw error;
      }
    });
  }

  /** What an answer or an event grants, to a request that was sent then. */
  grant(document: any, sent: number): Grant {
    const leases: any[] | undefined = this.isSet ? document.locks : [document];
    const valid = document.waited_ms + document.valid_for_ms;
    const isOurs = leases?.length === this.names.length && document.token === this.token && !Number.isNaN(valid);
    const isGrant = ({ name, fencing_token }: any, at: number) => name === this.names[at] && typeof fencing_token === 'number';
    if (!isOurs || !leases.every(isGrant)) throw foreign();
    const locks = leases.map(({ name, fencing_token: fencingToken, slot }) => ({ name, fencingToken, slot }));
    return { locks, until: sent + valid };
  }

  #held({ name, holder, holders = [] }: ProblemDocument): Held {
    const [first] = [...holders].sort((one, other) => one.expires_in_ms - other.expires_in_ms);
    return new Held(name ?? this.names[0]!, holder ?? first);
  }
}
