/** What can go wrong: a problem that the service names, or no answer. */

/** What a client does next: repeat under the same key or token, correct the request, or ask a person. */
export type Retry = 'same-key' | 'new-key' | 'never';

export interface Holder {
  owner: string | null;
  fencing_token: number;
  expires_in_ms: number;
  slot?: number;
}

/** Who holds a lock, as the API says it. */
export interface HeldLock extends Holder {
  name: string;
  acquired_at?: string;
  mode?: 'shared';
  limit?: number;
  holding?: number;
  holders?: Holder[];
  waiting?: number;
  broken?: Broken;
}

export interface Broken {
  reason: string;
  by?: string | null;
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
  broken?: Broken;
  retry_after_ms?: number;
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
    readonly retryAfter = document.retry_after_ms,
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
  /** @internal */
  readonly isPassing: boolean;

  constructor(
    why: string,
    readonly sent: boolean,
    { isPassing = true, ...options }: ErrorOptions & { isPassing?: boolean } = {},
  ) {
    super(why, options);
    this.isPassing = isPassing;
  }
}

/** A setting of the client is wrong; the message names it, and never has a secret in it. */
export class SettingsError extends KeylatchError {
  override name = 'SettingsError';
}

/** What an action of `once` throws to say that it did nothing: the key is free again. */
export class NothingDone extends KeylatchError {
  override name = 'NothingDone';
}

/** Why a lease is lost; a hold may have other words of the service. */
export type LossReason = 'expired' | 'taken' | 'broken' | 'unrenewed' | 'paused' | 'unreachable' | 'released' | (string & {});

/** Why it is over, by the code of a problem or of an event that says that it is. */
export const LOSSES: Record<string, LossReason> = {
  'lock-not-held': 'expired',
  'outcome-unknown': 'expired',
  'no-record': 'expired',
  'token-mismatch': 'taken',
  'lock-broken': 'broken',
};

/** The lease is over, or will be before it can be renewed: stop. */
export class LeaseLost extends KeylatchError {
  override name = 'LeaseLost';

  constructor(
    /** The locks of the lease, or the key of the run. */
    readonly locks: readonly string[],
    readonly reason: LossReason,
    /** What happened; of a broken lease, why it was broken. */
    readonly detail: string,
    /** Who broke it, where they said so. */
    readonly by?: string,
  ) {
    const broken = reason === 'broken' ? `it was broken${by ? ` by ${by}` : ''}: ` : '';
    super(`the lease of ${locks.join(', ')} is lost: ${broken}${detail}`);
  }
}

/** Whether the same request may be answered otherwise after a while. */
export function isPassing(error: unknown): boolean {
  return (error instanceof Unreachable || error instanceof Problem) && error.isPassing;
}

/** Whether somebody else has what was asked for, and may end it. */
export function isBusy(error: unknown): error is Problem {
  return error instanceof Problem && (error.code === 'lock-held' || error.code === 'request-in-progress');
}

/** Whether a request that is repeated under one token may have been carried out, with what came of earlier tries. */
export function mayBeDone(error: unknown, before: boolean): boolean {
  if (!(error instanceof Problem)) return before || (error instanceof Unreachable && error.sent);
  if (!isPassing(error) || isBusy(error)) return false;
  const { outcome, status } = error;
  return before || outcome === 'unknown' || (outcome === undefined && status >= 500);
}
