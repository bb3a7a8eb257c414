/** What keeps a lease or a run: it renews, notices the loss ahead, and answers from the clock whether it is still good. */

import { type Clock, until } from './clock.js';
import { type Broken, LeaseLost, LOSSES, type LossReason, Problem } from './errors.js';
import type { Transport } from './transport.js';

const LEAD_MAX = 10_000;

export class Keeper {
  readonly #lost = new AbortController();
  protected readonly ending = new AbortController();
  readonly #clock: Clock;
  #why = '';

  /** It is good until then, on the clock of the transport. */
  protected constructor(
    protected readonly transport: Transport,
    protected readonly names: readonly string[],
    private readonly ttl: number,
    private until: number,
  ) {
    this.#clock = transport.clock;
  }

  /**
   * Aborts when it is lost, so that another may have it; its reason is a {@link LeaseLost}. Hand it to what you call. A
   * timer only tells it sooner: whoever asks reads the clock.
   */
  get signal(): AbortSignal {
    this.#look();
    return this.#lost.signal;
  }

  /** For how many milliseconds it is exclusive from now on unless it is renewed. */
  get validFor(): number {
    return this.signal.aborted || this.isEnded ? 0 : Math.max(0, this.until - this.#clock.now());
  }

  /** Throws {@link LeaseLost} once it is lost, by the clock, or ended. Call it before each step of the work. */
  check(): void {
    this.signal.throwIfAborted();
    if (this.isEnded) throw new LeaseLost(this.names, 'released', 'the program has released it');
  }

  protected get isEnded(): boolean {
    return this.ending.signal.aborted;
  }

  protected extend(until: number): void {
    if (!this.signal.aborted) [this.until, this.#why] = [until, ''];
  }

  protected lose(reason: LossReason, detail: string, broken?: Broken): void {
    if (this.isEnded || this.#lost.signal.aborted) return;
    const error = new LeaseLost(this.names, reason, broken?.reason ?? detail, broken?.by ?? undefined);
    this.transport.log({ message: 'lost', error });
    this.#lost.abort(error);
  }

  get #giveUp(): number {
    return this.until - Math.min(this.ttl / 4, LEAD_MAX);
  }

  #look(): void {
    const time = this.#clock.now();
    if (time < this.#giveUp) return;
    const isOver = time >= this.until;
    const what = isOver ? 'it ended while this process was paused' : 'it could not be renewed in time';
    this.lose(isOver ? 'paused' : 'unrenewed', this.#why ? `${what}: ${this.#why}` : what);
  }

  /** Renews at each third of the TTL until it is lost or ended. `renew` says until when it is good. */
  protected async renew(renew: (timeout: number) => Promise<number>): Promise<void> {
    for (let due = this.#clock.now() + this.ttl / 3; ; ) {
      await until(this.#clock, Math.min(due, this.#giveUp), this.ending.signal);
      if (this.signal.aborted || this.isEnded) return;
      const sent = this.#clock.now();
      const forget = this.#clock.after(this.#giveUp - sent, () => this.#look());
      try {
        this.extend(await renew(Math.min(this.transport.timeout, Math.max((this.#giveUp - sent) / 2, 50))));
        due = sent + this.ttl / 3;
      } catch (error) {
        const reason = error instanceof Problem ? LOSSES[error.code] : undefined;
        if (reason) this.lose(reason, (error as Problem).message, (error as Problem).document.broken);
        this.#why = String(error);
        due = this.#clock.now() + this.transport.pause(error);
      } finally {
        forget();
      }
    }
  }

  /** Waits until its validity is over, or `gone` aborts. Something else extends it meanwhile. */
  protected async outlast(gone: AbortSignal): Promise<void> {
    while (this.#clock.now() < this.#giveUp && !gone.aborted) await until(this.#clock, this.#giveUp, gone);
    this.#look();
    await until(this.#clock, this.until, gone);
  }
}
