/** Doing a thing once, under an idempotency key. */

import { PAUSE } from './claim.js';
import { now, until } from './clock.js';
import { Problem, Unreachable } from './errors.js';
import { ANSWER_TIMEOUT, type Answer, newToken, plain, type Request, type Transport } from './transport.js';

/** How to do a thing once. All spans are milliseconds. */
export interface OnceOptions {
  /** Tells two things apart that have the same key by mistake (`idempotency-key-reused`). */
  fingerprint?: string;
  /** How long the run may go unrenewed before its outcome is unknown; 30 s by default. */
  lease?: number;
  /** How long to wait for the same thing under way elsewhere; 0 by default. */
  wait?: number;
}

/** What a thing came to. */
export interface KeptAnswer {
  status: number;
  headers: Record<string, string[]>;
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

/** The answer to a request that is safe to repeat, also where earlier ones were lost. */
export async function ask(transport: Transport, request: Request, wait = 0): Promise<Answer> {
  const end = now() + Math.max(wait, ANSWER_TIMEOUT);
  for (;;) {
    let pause = PAUSE;
    try {
      return await transport.send(request);
    } catch (error) {
      if (error instanceof Problem) {
        if (!error.isPassing || (error.code === 'request-in-progress' && wait <= 0)) throw error;
        pause = Math.max(error.retryAfter ?? 0, PAUSE);
      } else if (!(error instanceof Unreachable)) throw error;
      if (now() + pause >= end) throw error;
    }
    await until(now() + pause);
  }
}

function keptAnswer(document: any): KeptAnswer | undefined {
  if (!document) return undefined;
  const { status, headers, body, body_base64: base64 } = document;
  const bytes = base64 === undefined ? undefined : Uint8Array.from(atob(base64), (char) => char.charCodeAt(0));
  return { status, headers, ...(body !== undefined && { body }), ...(bytes && { bytes }) };
}

/** What came of beginning. Where `answer` is undefined the thing is to be done now, and then completed or abandoned. */
export class Run {
  readonly #transport: Transport;
  readonly #path: string;
  readonly #token: string;
  readonly #ended = new AbortController();

  readonly fencingToken: number;
  /** What the thing came to when it was done before. */
  readonly answer: KeptAnswer | undefined;

  private constructor(transport: Transport, path: string, token: string, document: any) {
    [this.#transport, this.#path, this.#token] = [transport, path, token];
    this.fencingToken = document.fencing_token;
    this.answer = document.state === 'done' ? keptAnswer(document.answer) : undefined;
  }

  /** @internal */
  static async begin(transport: Transport, key: string, options: OnceOptions): Promise<Run> {
    const [path, token, lease] = [`/v1/idempotency/${plain(key)}`, newToken(), options.lease ?? 30_000];
    const { fingerprint } = options;
    const body = { lease_ms: Math.round(lease), ...(fingerprint !== undefined && { fingerprint }) };
    const { document } = await ask(transport, { method: 'POST', path, body, token }, options.wait);
    const run = new Run(transport, path, token, document);
    if (document.state !== 'done') void run.#renew(lease);
    return run;
  }

  /** Keeps this as the answer of every repeat. */
  async complete({ status = 200, headers, body, bytes, json }: Completion = {}): Promise<void> {
    this.#ended.abort();
    const text = json === undefined ? { body: body ?? '' } : { json };
    const content = bytes === undefined ? text : { body_base64: btoa(String.fromCharCode(...bytes)) };
    await this.#send('PUT', { status, ...(headers && { headers }), ...content });
  }

  /** Says that nothing was done, so that a repeat runs. */
  async abandon(): Promise<void> {
    this.#ended.abort();
    await this.#send('DELETE');
  }

  async #send(method: 'PUT' | 'DELETE', body?: unknown): Promise<void> {
    const content = body === undefined ? {} : { body };
    await ask(this.#transport, { method, path: this.#path, token: this.#token, ...content });
  }

  /** Keeps the run from being over while the program carries it out. */
  async #renew(lease: number): Promise<void> {
    for (let due = now() + lease / 3; ; ) {
      await until(due, this.#ended.signal);
      if (this.#ended.signal.aborted) return;
      due = now() + lease / 3;
      try {
        await this.#transport.send({ method: 'POST', path: `${this.#path}/renew`, token: this.#token });
      } catch (error) {
        if (error instanceof Problem && !error.isPassing) return;
        due = now() + PAUSE;
      }
    }
  }
}
