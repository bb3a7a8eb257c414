/** Doing a thing once, under an idempotency key. */

import { NothingDone, Unreachable } from './errors.js';
import { Keeper } from './keeper.js';
import { given, newToken, plain, type Transport } from './transport.js';

/** To what a key belongs: a guarded route and a principal, or this API alone. */
export interface Scope {
  /** The method of a guarded route. */
  method?: string;
  /** The path of a guarded route. */
  path?: string;
  /** Whose key it is: an identity by its name, or a user of a guarded route as `user:NAME`. */
  principal?: string;
  /** Where a guarded route has the key from; empty for the `Idempotency-Key`. */
  source?: string;
}

/** An HTTP request that is to be done once, of which the service makes the fingerprint as a guard does. */
export interface DescribedRequest {
  /** Its query, without the question mark. */
  query?: string;
  content_type?: string;
  headers?: Record<string, string[]>;
  body?: string;
  /** Its body in base64, in place of `body`. */
  body_base64?: string;
}

/** How to do a thing once. All spans are milliseconds. */
export interface OnceOptions {
  /** Tells two things apart that have the same key by mistake (`idempotency-key-reused`). */
  fingerprint?: string;
  /** The request that is to be done, in place of `fingerprint`. */
  request?: DescribedRequest;
  /** To what the key belongs. */
  scope?: Scope;
  /** How long the answer is kept for repeats; a day by default. */
  retention?: number;
  /** A secret of 20 to 128 letters, digits, `-` and `_` that proves the run; a new one by default. */
  token?: string;
  /** How long the run may go unrenewed before its outcome is unknown; 30 s by default. */
  lease?: number;
  /** How long to wait for the same thing under way elsewhere; 0 by default, `Infinity` for ever. */
  wait?: number | undefined;
  /** `rerun`: a repeat runs where this process is gone, or the action has thrown. By default the outcome is unknown. */
  onCrash?: 'unknown' | 'rerun';
  /** Gives up beginning, and tells the action that nobody waits for it any more. */
  signal?: AbortSignal | undefined;
}

/** What a thing came to. */
export interface KeptAnswer {
  status: number;
  /** A header that came once is a text, as `setHeader` takes it. */
  headers: Record<string, string | string[]>;
  /** The body, where it is text. */
  body?: string;
  /** The body, where it is not. */
  bytes?: Uint8Array;
}

/** What a run is completed with: one of `body`, `bytes` and `json`. */
export interface Completion {
  /** 200 by default. */
  status?: number;
  headers?: Record<string, string | string[]>;
  body?: string;
  bytes?: Uint8Array;
  json?: unknown;
}

function keptAnswer(document: any): KeptAnswer | undefined {
  if (!document) return undefined;
  const { status, headers, body, body_base64: base64 } = document;
  const bytes = base64 === undefined ? undefined : Uint8Array.from(atob(base64), (char) => char.charCodeAt(0));
  const single = Object.entries<string[]>(headers ?? {}).map(([name, values]) => [name, values.length === 1 ? values[0] : values]);
  return { status, headers: Object.fromEntries(single), ...(body !== undefined && { body }), ...(bytes && { bytes }) };
}

function base64Of(bytes: Uint8Array): string {
  let text = '';
  // A call takes only so many arguments.
  for (let at = 0; at < bytes.length; at += 8192) text += String.fromCharCode(...bytes.subarray(at, at + 8192));
  return btoa(text);
}

/** 1 to 256 bytes without control characters, as the service takes a reason. */
function reasonOf(detail: unknown): string {
  const text = String(detail).replace(/[\u0000-\u001f\u007f-\u009f]+/g, ' ').trim() || 'it threw';
  const { written } = new TextEncoder().encodeInto(text, reason);
  return new TextDecoder().decode(reason.subarray(0, written));
}

const reason = new Uint8Array(256);

/** Where a record is, with what is done with it. */
type RecordPath = (act?: string) => string;

export function recordPath(key: string, scope: Scope = {}): RecordPath {
  const query = Object.entries(scope).map(([name, value]) => `${name}=${plain(value)}`);
  return (act = '') => `/v1/idempotency/${plain(key)}${act}${query.length ? `?${query.join('&')}` : ''}`;
}

/**
 * What came of beginning. Where `answer` is undefined the thing is to be done now, and then completed, failed or abandoned.
 * Until then the run is renewed.
 */
export class Run {
  readonly #transport: Transport;
  readonly #path: RecordPath;
  readonly #keeper: Keeper;
  readonly #isRerun: boolean;

  /** Rises with every run of the key. */
  readonly fencingToken: number;
  /** What the thing came to when it was done before. */
  readonly answer: KeptAnswer | undefined;
  /** The secret that proves the run. */
  readonly token: string;

  private constructor(transport: Transport, path: RecordPath, token: string, document: any, keeper: Keeper, isRerun: boolean) {
    [this.#transport, this.#path, this.token, this.#keeper, this.#isRerun] = [transport, path, token, keeper, isRerun];
    this.fencingToken = document.fencing_token;
    this.answer = document.state === 'done' ? keptAnswer(document.answer) : undefined;
  }

  /** @internal */
  static async begin(transport: Transport, key: string, options: OnceOptions): Promise<Run> {
    const { fingerprint, request, scope, lease = 30_000, retention, wait, signal, onCrash, token = newToken() } = options;
    const path = recordPath(key, scope);
    const body = {
      lease_ms: given(lease),
      ...(fingerprint !== undefined && { fingerprint }),
      ...(request && { request }),
      ...(retention !== undefined && { retention_ms: given(retention) }),
      ...(onCrash && { on_crash: onCrash }),
    };
    let sent = 0;
    const attempt = async (prefer: number, timeout: number): Promise<Run> => {
      sent = transport.clock.now();
      const document = await transport.send({ method: 'POST', path: path(), body, token, prefer, timeout, signal });
      const isDone = document.state === 'done';
      if (!isDone && document.token !== token) throw new Unreachable('the response is not one of keylatch for this request', true);
      const keeper = new Keeper(transport, [key], lease, sent + (document.lease_expires_in_ms ?? lease));
      const run = new Run(transport, path, token, document, keeper, onCrash === 'rerun');
      if (isDone) keeper.end();
      else void keeper.renew((limit) => run.#renew(lease, limit));
      return run;
    };
    const undo = (): Promise<unknown> => transport.ask({ method: 'DELETE', path: path(), token });
    return await transport.persist(attempt, { wait, signal, undo });
  }

  /** Aborts when the run is lost, so that its outcome is unknown or another may run; its reason is a {@link LeaseLost}. */
  get signal(): AbortSignal {
    return this.#keeper.signal;
  }

  /** Throws {@link LeaseLost} once the run is lost, by the clock, or ended. */
  check(): void {
    this.#keeper.check();
  }

  /** Keeps this as the answer of every repeat. */
  async complete({ status = 200, headers, body, bytes, json }: Completion = {}): Promise<void> {
    const text = json === undefined ? { body: body ?? '' } : { json };
    const content = bytes === undefined ? text : { body_base64: base64Of(bytes) };
    const lists = Object.entries(headers ?? {}).map(([name, value]) => [name, [value].flat()]);
    await this.#end('PUT', '', { status, headers: Object.fromEntries(lists), ...content });
  }

  /** Says that nothing was done, so that a repeat runs. */
  async abandon(): Promise<void> {
    await this.#end('DELETE');
  }

  /** Says that it failed half way: the outcome is unknown now, and a person settles it. */
  async fail(detail: string): Promise<void> {
    await this.#end('POST', '/fail', { reason: reasonOf(detail) });
  }

  /** Ends the renewal and says nothing: after its lease the run counts as interrupted. */
  leave(): void {
    this.#keeper.end();
  }

  /** @internal The value of `action`, which is the answer of every repeat. What it throws ends the run. */
  async during<T>(action: (signal: AbortSignal, run: Run) => Promise<T>, signal?: AbortSignal): Promise<T> {
    try {
      const value = await action(signal ? AbortSignal.any([this.signal, signal]) : this.signal, this);
      if (!this.#keeper.ended.aborted) await this.complete({ json: value ?? null });
      return value;
    } catch (error) {
      if (!this.#keeper.ended.aborted) {
        const isFree = this.#isRerun || error instanceof NothingDone;
        await (isFree ? this.abandon() : this.fail(String(error))).catch(() => undefined);
      }
      throw error;
    }
  }

  async #renew(lease: number, timeout: number): Promise<number> {
    const sent = this.#transport.clock.now();
    await this.#transport.send({ method: 'POST', path: this.#path('/renew'), token: this.token, timeout });
    return sent + lease;
  }

  async #end(method: 'PUT' | 'POST' | 'DELETE', act = '', body?: unknown): Promise<void> {
    // What cannot be written throws here, while the run is still renewed.
    JSON.stringify(body);
    this.#keeper.end();
    await this.#transport.ask({ method, path: this.#path(act), token: this.token, ...(body === undefined ? {} : { body }) });
  }
}
