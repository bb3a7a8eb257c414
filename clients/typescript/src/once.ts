/** Doing a thing once, under an idempotency key. */

import { NothingDone, Problem } from './errors.js';
import { Keeper } from './keeper.js';
import { foreign, given, newToken, plain, type Transport } from './transport.js';

/** How to do a thing once. All spans are milliseconds. */
export interface OnceOptions {
  /** Tells two things apart that have the same key by mistake (`idempotency-key-reused`). */
  fingerprint?: string;
  /** In place of `fingerprint`: the HTTP request that is to be done, of which the service makes one as a guard does. */
  request?: { query?: string; content_type?: string; headers?: Record<string, string[]>; body?: string; body_base64?: string };
  /** To what the key belongs: a guarded route, and an identity or `user:NAME`. `source` is where the route has the key from. */
  scope?: { method?: string; path?: string; principal?: string; source?: string };
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
  /** Whether its body was kept: it was not too large, and nobody has erased it. */
  isWhole: boolean;
  /** A header that came once is a text, as `setHeader` takes it. */
  headers: Record<string, string | string[]>;
  body?: string;
  /** The body, where it is no text. */
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

function keptAnswer({ status: kept, answer, answer_kept: isWhole = answer !== undefined }: any): KeptAnswer {
  const { status, headers, body, body_base64: base64 } = answer ?? { status: kept };
  const bytes = base64 === undefined ? undefined : Uint8Array.from(atob(base64), (char) => char.charCodeAt(0));
  const single = Object.entries<string[]>(headers ?? {}).map(([name, values]) => [name, values.length === 1 ? values[0] : values]);
  return { status, isWhole, headers: Object.fromEntries(single), ...(body !== undefined && { body }), ...(bytes && { bytes }) };
}

function base64Of(bytes: Uint8Array): string {
  let text = '';
  // A call takes only so many arguments.
  for (let at = 0; at < bytes.length; at += 8192) text += String.fromCharCode(...bytes.subarray(at, at + 8192));
  return btoa(text);
}

/** 1 to 256 bytes without control characters, as the service takes a reason. */
function reasonOf(detail: string): string {
  const text = detail.replace(/[\u0000-\u001f\u007f-\u009f]+/g, ' ').trim() || 'it threw';
  // Of a character that is cut there is no rest.
  return new TextDecoder().decode(new TextEncoder().encode(text).subarray(0, 256)).replace(/\ufffd$/, '');
}

type Asked = OnceOptions & { lease: number; token: string };

function pathOf(key: string, { scope = {} }: OnceOptions, act = ''): string {
  const query = Object.entries(scope).flatMap(([name, value]) => (value === undefined ? [] : [`${name}=${plain(value)}`]));
  return `/v1/idempotency/${plain(key)}${act}${query.length ? `?${query.join('&')}` : ''}`;
}

/**
 * What came of beginning. Where `answer` is undefined the thing is to be done now, and then completed, failed or abandoned.
 * Until then the run is renewed.
 */
export class Run extends Keeper {
  readonly #asked: Asked;

  /** Rises with every run of the key. */
  readonly fencingToken: number;
  /** What the thing came to when it was done before. */
  readonly answer: KeptAnswer | undefined;

  private constructor(transport: Transport, key: string, asked: Asked, until: number, document: any) {
    super(transport, [key], asked.lease, until);
    this.#asked = asked;
    this.fencingToken = document.fencing_token;
    this.answer = document.state === 'done' ? keptAnswer(document) : undefined;
  }

  /** @internal */
  static async begin(transport: Transport, key: string, options: OnceOptions): Promise<Run> {
    const asked = { ...options, lease: options.lease ?? 30_000, token: options.token ?? newToken() };
    const { fingerprint, request, lease, retention, signal, onCrash, token } = asked;
    const body = { fingerprint, request, on_crash: onCrash, lease_ms: given(lease), retention_ms: given(retention) };
    const renew = async (timeout = transport.timeout): Promise<number> => {
      const sent = transport.clock.now();
      await transport.send({ method: 'POST', path: pathOf(key, asked, '/renew'), token, timeout });
      return sent + lease;
    };
    const path = pathOf(key, asked);
    const attempt = async (prefer: number, timeout: number): Promise<Run> => {
      const sent = transport.clock.now();
      const document = await transport.send({ method: 'POST', path, body, token, prefer, timeout, signal });
      const isDone = document.state === 'done';
      if (!isDone && document.token !== token) throw foreign();
      const granted = sent + (document.lease_expires_in_ms ?? lease);
      const until = isDone ? granted : await transport.fresh(granted, lease, renew);
      const run = new Run(transport, key, asked, until, document);
      if (isDone) run.leave();
      else void run.renew(renew);
      return run;
    };
    // Under a token of the caller's own another run may be under way.
    const undo = options.token === undefined ? () => transport.ask({ method: 'DELETE', path, token }) : undefined;
    return await transport.persist(attempt, options, undo);
  }

  /** The secret that proves the run. It is not printed. */
  get token(): string {
    return this.#asked.token;
  }

  /** Keeps this as the answer of every repeat. */
  async complete({ status = 200, headers, body, bytes, json }: Completion = {}): Promise<void> {
    await this.#end('PUT', '', { status, headers, body, json, body_base64: bytes && base64Of(bytes) });
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
    this.ending.abort();
  }

  /** @internal The value of `action`, which is the answer of every repeat. What it throws ends the run. */
  async during<T>(action: (signal: AbortSignal, run: Run) => Promise<T>, signal?: AbortSignal): Promise<T> {
    let isDone = false;
    try {
      const value = await action(signal ? AbortSignal.any([this.signal, signal]) : this.signal, this);
      isDone = !this.isEnded;
      if (isDone) await this.complete({ json: value ?? null });
      return value;
    } catch (error) {
      // What is refused, such as a value that is too large, leaves the run to this program.
      if (!this.isEnded || (isDone && error instanceof Problem)) {
        const isFree = this.#asked.onCrash === 'rerun' || error instanceof NothingDone;
        await (isFree ? this.abandon() : this.fail(String(error))).catch(() => undefined);
      }
      throw error;
    }
  }

  async #end(method: 'PUT' | 'POST' | 'DELETE', act = '', body?: unknown): Promise<void> {
    // What cannot be written throws here, while the run is still renewed.
    JSON.stringify(body);
    this.ending.abort();
    await this.transport.ask({ method, path: pathOf(this.names[0]!, this.#asked, act), token: this.token, body });
  }
}
