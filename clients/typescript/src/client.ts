/** The client: what it makes of a name or a key. */

import { Claim, type LockOptions, PAUSE } from './claim.js';
import { now, until } from './clock.js';
import { Problem } from './errors.js';
import { type Event, events } from './events.js';
import { hold, Lease } from './lease.js';
import { ask, type KeptAnswer, type OnceOptions, Run } from './once.js';
import { type ClientOptions, plain, Transport } from './transport.js';

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
    return new Lease(claim, await claim.acquire(), (lease) => lease.renew());
  }

  /** Holds a lock by a connection: the service renews it, and frees it when this process is gone. */
  async hold(name: string, options: LockOptions = {}): Promise<Lease> {
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
      await until(now() + PAUSE, signal);
    }
  }

  /** Who holds a lock, as the API says it; undefined where it is free. */
  async show(name: string): Promise<any> {
    try {
      return (await ask(this.#transport, { method: 'GET', path: `/v1/locks/${plain(name)}` })).document;
    } catch (error) {
      if (error instanceof Problem && error.code === 'lock-not-held') return undefined;
      throw error;
    }
  }

  /** Ends the leases of all present holders, who read the reason; whether there was any. */
  async break(name: string, reason: string, by?: string): Promise<boolean> {
    const holding = await this.show(name);
    const path = `/v1/locks/${plain(name)}/break`;
    for (const { fencing_token, slot } of holding ? (holding.holders ?? [holding]) : []) {
      const body = { reason, fencing_token, ...(by && { by }), ...(slot !== undefined && { slot }) };
      await ask(this.#transport, { method: 'POST', path, body });
    }
    return holding !== undefined;
  }

  /** Begins a thing that is to be done once. The run is to be completed or abandoned where it has no `answer`. */
  async begin(key: string, options: OnceOptions = {}): Promise<Run> {
    return await Run.begin(this.#transport, key, options);
  }

  /**
   * Calls `action` once for all calls with `key`, and gives all of them its value as JSON.
   *
   * Where it throws, the outcome is unknown, and a person settles it; begin a {@link Run} to abandon it instead.
   */
  async once<T>(key: string, action: () => Promise<T>, options: OnceOptions = {}): Promise<T> {
    const run = await this.begin(key, options);
    if (run.answer) return valueOf(run.answer);
    const value = await action();
    await run.complete({ json: value ?? null });
    return value;
  }
}

function valueOf(answer: KeptAnswer): any {
  return answer.body ? JSON.parse(answer.body) : undefined;
}
