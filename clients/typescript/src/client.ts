/** The client: what it makes of a name or a key. */

import { Claim, type LockOptions } from './claim.js';
import { type HeldLock, isPassing, KeylatchError, LeaseLost, Problem, Unreachable } from './errors.js';
import { hold, Lease } from './lease.js';
import { type OnceOptions, Run } from './once.js';
import { type ClientOptions, type Event, foreign, given, plain, Transport } from './transport.js';

/** What is done under a lock, until `signal` aborts. */
export type UnderLock<T> = (signal: AbortSignal, lease: Lease) => Promise<T>;

export class Client {
  #made: Transport | undefined;

  /** Without options, what the environment says is read at the first use. */
  constructor(options?: ClientOptions) {
    if (options) this.#made = new Transport(options);
  }

  get #transport(): Transport {
    return (this.#made ??= new Transport({}));
  }

  /**
   * Gets a lock, or several at once. Throws {@link Held}, {@link Problem} or {@link Unreachable}.
   *
   * ```js
   * await using lease = await keylatch.lock('deploy', { wait: 30_000 });
   * await deploy(lease.fencingToken, { signal: lease.signal });
   * ```
   */
  async lock(names: string | readonly string[], options: LockOptions = {}): Promise<Lease> {
    const isSet = typeof names !== 'string';
    const claim = new Claim(this.#transport, isSet ? [...names] : [names], isSet, options);
    return new Lease(claim, await claim.acquire(), true);
  }

  /**
   * Calls `action` under a lock, or several, and releases. The signal that it gets aborts when the lease is lost, and with
   * that of `options`. What it throws stays the error; throws {@link LeaseLost} where the lease was lost meanwhile.
   */
  async using<T>(names: string | readonly string[], options: LockOptions, action: UnderLock<T>): Promise<T> {
    return await (await this.lock(names, options)).during(action);
  }

  /**
   * Leads while it has the lock, again and again, until the signal of `options` aborts. The signal that `lead` gets aborts
   * ahead of the loss, and with that of `options`. What `lead` throws while it leads ends the election.
   */
  async elect(name: string, options: LockOptions, lead: UnderLock<unknown>): Promise<void> {
    const { signal } = options;
    while (!signal?.aborted) {
      let isLost = false;
      const action: UnderLock<void> = async (given, lease) => {
        try {
          await lead(given, lease);
          isLost = true;
        } finally {
          isLost ||= lease.signal.aborted;
        }
      };
      try {
        await this.using(name, { ...options, wait: Infinity }, action);
      } catch (error) {
        const isAbort = error === signal?.reason || (error as Error | null)?.name === 'AbortError';
        if (!isLost && !(signal?.aborted && isAbort)) throw error;
      }
      await this.#transport.rest(signal);
    }
  }

  /** Holds a lock by a connection: the service renews it, and frees it when this process is gone. */
  async hold(name: string, options: LockOptions = {}): Promise<Lease> {
    const asked = () => new Claim(this.#transport, [name], false, options);
    let claim = asked();
    return await claim.persist((wait, timeout, mayBeDone) => {
      // When the service ends a stream that is lost, it releases what the token holds, also by another stream.
      if (mayBeDone && options.token !== undefined) {
        throw new Unreachable('the response to a hold with a token of your own was lost', true, { isPassing: false });
      }
      if (mayBeDone) claim = asked();
      return hold(claim, wait, timeout);
    });
  }

  /** What happens to a lock, until `signal` aborts. After a lost connection it begins with a `snapshot`. */
  async *watch(name: string, { signal }: { signal?: AbortSignal } = {}): AsyncGenerator<Event> {
    const path = `/v1/locks/${plain(name)}/events`;
    const { silence } = this.#transport;
    while (!signal?.aborted) {
      try {
        yield* this.#transport.events({ method: 'GET', path, silence, signal });
      } catch (error) {
        if (!isPassing(error)) throw error;
      }
      await this.#transport.rest(signal);
    }
  }

  /** Who holds a lock, as the API says it; undefined where it is free. */
  async show(name: string, { signal }: { signal?: AbortSignal } = {}): Promise<HeldLock | undefined> {
    try {
      const document = await this.#transport.ask({ method: 'GET', path: `/v1/locks/${plain(name)}`, signal });
      if (document.name === name) return document;
    } catch (error) {
      if (error instanceof Problem && error.code === 'lock-not-held') return undefined;
      throw error;
    }
    throw foreign();
  }

  /**
   * Ends the leases of all present holders, who read the reason, and by whom; whether there was any. They end after
   * `grace`, or when they would have ended unless renewed.
   */
  async break(
    name: string,
    reason: string,
    { by, grace, signal }: { by?: string | undefined; grace?: number; signal?: AbortSignal } = {},
  ): Promise<boolean> {
    const holding = await this.show(name, signal && { signal });
    const path = `/v1/locks/${plain(name)}/break`;
    for (const { fencing_token, slot } of holding ? (holding.holders ?? [holding]) : []) {
      await this.#transport.ask({ method: 'POST', path, body: { reason, fencing_token, slot, by, grace_ms: given(grace) }, signal });
    }
    return holding !== undefined;
  }

  /** Asks for what has no call of its own, such as `GET /v1/locks?prefix=ci/`: the document of the response. Only GET is repeated. */
  async ask(method: 'GET' | 'POST' | 'PUT' | 'DELETE', path: string, body?: unknown): Promise<unknown> {
    return await this.#transport[method === 'GET' ? 'ask' : 'send']({ method, path, body });
  }

  /** Begins a thing that is to be done once. The run is to be ended where it has no `answer`. */
  async begin(key: string, options: OnceOptions = {}): Promise<Run> {
    return await Run.begin(this.#transport, key, options);
  }

  /**
   * Calls `action` once for all calls with `key`, and gives all of them its value as JSON.
   *
   * Where it throws, the outcome is unknown, and a person settles it. Where it throws {@link NothingDone}, or with
   * `onCrash: 'rerun'`, the key is free again.
   */
  async once<T>(key: string, action: (signal: AbortSignal, run: Run) => Promise<T>, options: OnceOptions = {}): Promise<T> {
    const run = await this.begin(key, options);
    if (!run.answer) return await run.during(action, options.signal);
    const { body, isWhole } = run.answer;
    if (!isWhole) throw new KeylatchError(`${key} was done, and its value was not kept`);
    return (body ? JSON.parse(body) : undefined) as T;
  }
}
