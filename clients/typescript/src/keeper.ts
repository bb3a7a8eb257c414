/** What keeps a lease or a run: it renews, notices the loss ahead, and answers from the clock whether it is still good. */

import { type Clock, until } from './clock.js';
import { LeaseLost, type LossReason, Problem } from './errors.js';
import { pauseAfter, type Transport } from './transport.js';

const LEAD_MAX = 10_000;

const REASONS: Record<string, LossReason> = {
  'lock-not-held': 'expired',
  'outcome-unknown': 'expired',
  'no-record': 'expired',
  'token-mismatch': 'taken',
  'lock-broken': 'broken',
};

/** Why it is over, where the code of a problem or of an event says that it is. */
export function lossReason(code: string): LossReason | undefined {
  return REASONS[code];
}

export class Keeper {
  readonly #lost = new AbortController();
  readonly #ended = new AbortController();
  readonly #clock: Clock;
  #until: number;
  #why = '';

  /** It is good until then, on the clock of the transport. */
  constructor(
    readonly transport: Transport,
    readonly names: readonly string[],
    readonly ttl: number,
    until: number,
  ) {
    this.#clock = transport.clock;
    this.#until = until;
  }

  /** Aborts when it is lost. A timer only tells it sooner: whoever asks reads the clock. */
  get signal(): AbortSignal {
    this.#look();
    return this.#lost.signal;
  }

  /** Aborts when the program begins to end it. */
  get ended(): AbortSignal {
    return this.#ended.signal;
  }

  get validFor(): number {
    this.#look();
    return Math.max(0, this.#until - this.#clock.now());
  }

  check(): void {
    this.signal.throwIfAborted();
    if (this.ended.aborted) throw new LeaseLost(this.names, 'released', 'the program has released it');
  }

  end(): void {
    this.#ended.abort();
  }

  extend(until: number): void {
    if (!this.signal.aborted) [this.#until, this.#why] = [until, ''];
  }

  lose(reason: LossReason, detail: string, by?: string | null): void {
    if (this.ended.aborted || this.#lost.signal.aborted) return;
    const error = new LeaseLost(this.names, reason, detail, by ?? undefined);
    this.transport.log({ message: 'lost', error });
    this.#lost.abort(error);
  }

  /** Loses it if the problem says that it is over. */
  refused({ code, document: { broken }, message }: Problem): void {
    const reason = lossReason(code);
    if (reason === 'broken' && broken) this.lose(reason, broken.reason, broken.by);
    else if (reason) this.lose(reason, message);
  }

  get #giveUp(): number {
    return this.#until - Math.min(this.ttl / 4, LEAD_MAX);
  }

  #look(): void {
    const time = this.#clock.now();
    if (time < this.#giveUp) return;
    const isOver = time >= this.#until;
    const what = isOver ? 'it ended while this process was paused' : 'it could not be renewed in time';
    this.lose(isOver ? 'paused' : 'unrenewed', this.#why ? `${what}: ${this.#why}` : what);
  }

  /** Renews at each third of the TTL until it is lost or ended. `renew` says until when it is good. */
  async renew(renew: (timeout: number) => Promise<number>): Promise<void> {
    for (let due = this.#clock.now() + this.ttl / 3; ; ) {
      await until(this.#clock, Math.min(due, this.#giveUp), this.ended);
      if (this.signal.aborted || this.ended.aborted) return;
      const sent = this.#clock.now();
      try {
        this.extend(await renew(Math.min(this.transport.timeout, Math.max((this.#giveUp - sent) / 2, 50))));
        due = sent + this.ttl / 3;
      } catch (error) {
        if (error instanceof Problem) this.refused(error);
        this.#why = String(error);
        due = this.#clock.now() + pauseAfter(error);
      }
    }
  }

  /** Waits until its validity is over, or `gone` aborts. Something else extends it meanwhile. */
  async outlast(gone: AbortSignal): Promise<void> {
    while (this.#clock.now() < this.#giveUp && !gone.aborted) await until(this.#clock, this.#giveUp, gone);
    this.#look();
    await until(this.#clock, this.#until, gone);
  }
}
