/** The client: what it makes of a name or a key. */

import { Claim, type HoldOptions, type LockOptions } from './claim.js';
import { until } from './clock.js';
import { type HeldLock, LeaseLost, Problem, Unreachable } from './errors.js';
import { type Event, events } from './events.js';
import { hold, Lease } from './lease.js';
import { type KeptAnswer, type OnceOptions, Run } from './once.js';
import { type ClientOptions, given, pauseAfter, plain, Transport } from './transport.js';

/** How to end the leases of a lock. */
export interface BreakOptions {
  /** A label for people that says who does it. */
  by?: string | undefined;
  /** The leases end in so many milliseconds; by default when they would have ended unless renewed. */
  grace?: number;
  signal?: AbortSignal;
}

/** A client of a keylatch. */
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
    const claim = new Claim(this.#transport, isSet ? names : [names], isSet, options);
    const lease = new Lease(claim, await claim.acquire());
    void lease.renew();
    return lease;
  }

  /**
   * Calls `action` under a lock, or several, and releases. The signal that it gets aborts when the lease is lost, and with
   * that of `options`. What it throws stays the error; throws {@link LeaseLost} where the lease was lost meanwhile.
   *
   * ```js
   * await keylatch.using('deploy', { wait: 30_000 }, async (signal, lease) => deploy(lease.fencingToken, { signal }));
   * ```
   */
  async using<T>(
    names: string | readonly string[],
    options: LockOptions,
    action: (signal: AbortSignal, lease: Lease) => Promise<T>,
  ): Promise<T> {
    return await (await this.lock(names, options)).during(action);
  }

  /**
   * Leads while it has the lock, again and again, until the signal of `options` aborts. The signal that `lead` gets aborts
   * ahead of the loss, and with that of `options`. What `lead` throws for another reason ends the election.
   */
  async elect(name: string, options: LockOptions, lead: (signal: AbortSignal, lease: Lease) => Promise<unknown>): Promise<void> {
    const [{ signal }, { clock }] = [options, this.#transport];
    while (!signal?.aborted) {
      let told = signal;
      try {
        await this.using(name, { wait: Infinity, ...options }, (given, lease) => lead((told = given), lease));
      } catch (error) {
        const isAbort = error === signal?.reason || (error as Error | null)?.name === 'AbortError';
        if (!(error instanceof LeaseLost) && !(told?.aborted && isAbort)) throw error;
      }
      await until(clock, clock.now() + pauseAfter(undefined), signal);
    }
  }

  /** Holds a lock by a connection: the service renews it, and frees it when this process is gone. */
  async hold(name: string, options: HoldOptions = {}): Promise<Lease> {
    return await hold(new Claim(this.#transport, [name], false, options));
  }

  /** What happens to a lock, until `signal` aborts. After a lost connection it begins with a `snapshot`. */
  async *watch(name: string, { signal }: { signal?: AbortSignal } = {}): AsyncGenerator<Event> {
    const path = `/v1/locks/${plain(name)}/events`;
    while (!signal?.aborted) {
      try {
        const { silence } = this.#transport;
        yield* events(this.#transport, { method: 'GET', path, silence, ...(signal && { signal }) });
      } catch (error) {
        if (error instanceof Problem && !error.isPassing) throw error;
      }
      const { clock } = this.#transport;
      await until(clock, clock.now() + pauseAfter(undefined), signal);
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
    throw new Unreachable('the response is not one of keylatch for this request', true);
  }

  /** Ends the leases of all present holders, who read the reason, and by whom; whether there was any. */
  async break(name: string, reason: string, options: BreakOptions = {}): Promise<boolean> {
    const { by, grace, signal } = options;
    const holding = await this.show(name, signal && { signal });
    const path = `/v1/locks/${plain(name)}/break`;
    for (const { fencing_token, slot } of holding ? (holding.holders ?? [holding]) : []) {
      const body = { reason, fencing_token, ...(by && { by }), ...(grace !== undefined && { grace_ms: given(grace) }), ...(slot !== undefined && { slot }) };
      await this.#transport.ask({ method: 'POST', path, body, signal });
    }
    return holding !== undefined;
  }

  /** Asks for what has no call of its own, such as `GET /v1/locks?prefix=ci/`: the document of the response. */
  async ask(method: 'GET' | 'POST' | 'PUT' | 'DELETE', path: string, body?: unknown): Promise<unknown> {
    return await this.#transport.ask({ method, path, body });
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
    return run.answer ? valueOf(run.answer) : await run.during(action, options.signal);
  }
}

function valueOf(answer: KeptAnswer): any {
  return answer.body ? JSON.parse(answer.body) : undefined;
}
