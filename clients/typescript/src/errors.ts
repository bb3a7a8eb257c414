/** What can go wrong: a problem that the service names, or no answer. */

/** What a client does next: repeat under the same key or token, correct the request, or ask a person. */
export type Retry = 'same-key' | 'new-key' | 'never';

/** A holder of a lock, as others see it. */
export interface Holder {
  owner: string | null;
  fencing_token: number;
  expires_in_ms: number;
  slot?: number;
}

/** What the service says of a problem (RFC 9457). */
export interface ProblemDocument {
  code?: string;
  title?: string;
  detail?: string;
  status?: number;
  retry?: Retry;
  outcome?: 'not-executed' | 'unknown';
  field?: string;
  name?: string;
  holder?: Holder;
  holders?: Holder[];
  waited_ms?: number;
  broken?: { reason: string };
}

/** Everything that this package throws. */
export class KeylatchError extends Error {
  override name = 'KeylatchError';
}

/** The service refused the request, and says why. `/problems/CODE` of the service explains the code. */
export class Problem extends KeylatchError {
  override name = 'Problem';

  constructor(
    readonly status: number,
    readonly document: ProblemDocument,
    /** Milliseconds after which to come again, where the service says so. */
    readonly retryAfter?: number,
  ) {
    super(document.detail ?? `status ${status}`);
  }

  /** A stable word such as `outcome-unknown`; empty where something else than keylatch answered. */
  get code(): string {
    return this.document.code ?? '';
  }

  get retry(): Retry {
    return this.document.retry ?? (this.isPassing ? 'same-key' : 'never');
  }

  /** Of a 5xx: whether the request may have been carried out. */
  get outcome(): 'not-executed' | 'unknown' | undefined {
    return this.document.outcome;
  }

  /** Whether the same request may be answered otherwise after a while. */
  get isPassing(): boolean {
    if (this.document.retry) return this.document.retry === 'same-key';
    return this.status >= 500 || this.status === 408 || this.status === 429;
  }
}

/** Others held the lock until the wait was over. Of several locks `lock` is the first that was not to be had. */
export class Held extends KeylatchError {
  override name = 'Held';

  constructor(
    readonly lock: string,
    readonly holder?: Holder,
  ) {
    super(holder?.owner ? `${lock} is held by ${holder.owner}` : `${lock} is held`);
  }
}

/** The service gave no answer. Where `sent` is true it may have carried the request out. */
export class Unreachable extends KeylatchError {
  override name = 'Unreachable';

  constructor(
    why: string,
    readonly sent: boolean,
    options?: ErrorOptions,
  ) {
    super(why, options);
  }
}

/** Why a lease is lost; a hold may have other words of the service. */
export type LossReason = 'expired' | 'taken' | 'broken' | 'unrenewed' | 'paused' | 'unreachable' | (string & {});

/** The lease is over, or will be before it can be renewed: stop. */
export class LeaseLost extends KeylatchError {
  override name = 'LeaseLost';

  constructor(
    readonly reason: LossReason,
    detail: string,
  ) {
    super(detail);
  }
}
