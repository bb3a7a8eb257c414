/** One request to the service, with a deadline, and what came of it. */

import { platformFetch } from '#platform';

import { type Clock, machineClock, onAbort, until } from './clock.js';
import { isBusy, isPassing, KeylatchError, mayBeDone, Problem, type ProblemDocument, SettingsError, Unreachable } from './errors.js';

const ANSWER_TIMEOUT = 5000;
/** The service sends a comment more often than that while nothing happens on a stream (every 15 s by default). */
const SILENCE = 90_000;
const REQUEST_WAIT = 50_000;
const MIN_REQUEST_WAIT = 1000;

/** What Node can set, as files in PEM; elsewhere the platform sets it. */
export interface PlatformOptions {
  /** The authorities that the service's certificate is good by; `KEYLATCH_CA` unless it is given. */
  ca?: string | undefined;
  /** The certificate of this client; `KEYLATCH_CLIENT_CERT` unless it is given. */
  cert?: string | undefined;
  /** Its private key; `KEYLATCH_CLIENT_KEY` unless it is given. */
  key?: string | undefined;
  /** The Unix socket of the service. The URL `unix:PATH` says the same. */
  socketPath?: string | undefined;
}

/** How a client reaches the service, and as whom. */
export interface ClientOptions extends PlatformOptions {
  /** `http://127.0.0.1:7070` unless `KEYLATCH_URL` is set. */
  url?: string;
  /** Sent as a bearer; `KEYLATCH_API_KEY` unless it is given. */
  apiKey?: string;
  /** The `traceparent` of a request (W3C Trace Context), asked for each. */
  traceparent?: () => string | undefined;
  /** Another `fetch` than the platform's. */
  fetch?: typeof fetch;
  /** The client opens a watch again on which nothing comes for so many milliseconds, not even a comment; 90 s by default. */
  silence?: number;
}

export interface Request {
  method: 'GET' | 'POST' | 'PUT' | 'DELETE';
  path: string;
  body?: unknown;
  token?: string;
  /** For how many milliseconds the service is to wait for a run under way. */
  prefer?: number;
  timeout?: number;
  /** Of a stream: for how long nothing may come. */
  silence?: number;
  signal?: AbortSignal | undefined;
}

/** What a success says. */
export interface Answer {
  status: number;
  document: any;
}

/** For how long a request is repeated. */
export interface Patience {
  /** How long to wait for what others have; 0 by default. */
  wait?: number | undefined;
  signal?: AbortSignal | undefined;
  /** Takes back what the service may have done, where the caller does not learn of it. */
  undo?: () => Promise<unknown>;
}

export class Transport {
  readonly #url: string;
  readonly #apiKey: string | undefined;
  readonly #traceparent: (() => string | undefined) | undefined;
  readonly #fetch: typeof fetch;
  readonly clock: Clock = machineClock;
  readonly timeout = ANSWER_TIMEOUT;
  readonly silence: number;

  constructor(options: ClientOptions) {
    const environment: Record<string, string | undefined> = (globalThis as any).process?.env ?? {};
    const url = options.url ?? environment['KEYLATCH_URL'] ?? 'http://127.0.0.1:7070';
    const isSocket = url.startsWith('unix:');
    this.#url = isSocket ? 'http://localhost' : checkedUrl(url);
    this.#apiKey = checkedKey(options.apiKey ?? environment['KEYLATCH_API_KEY']);
    this.#traceparent = options.traceparent;
    this.silence = options.silence ?? SILENCE;
    const socketPath = isSocket ? url.slice(5) : options.socketPath;
    const { ca, cert, key } = options;
    this.#fetch = options.fetch ?? platformFetch({ ca, cert, key, socketPath });
  }

  /** The answer, if it is a success; throws {@link Problem} or {@link Unreachable}. */
  async send(request: Request): Promise<Answer> {
    const ending = endingWith(request.signal);
    try {
      return await this.#within(ending, request.timeout ?? this.timeout, async () => {
        const response = await this.#fetch(...this.#arguments(request, ending.signal));
        const document = parsed(await response.text());
        if (!response.ok) throw problem(response, document);
        return { status: response.status, document };
      });
    } catch (error) {
      throw noAnswer(error);
    } finally {
      ending.forget();
    }
  }

  /** The answer to a request that is safe to repeat. */
  async ask(request: Request): Promise<Answer> {
    const { signal } = request;
    return await this.persist((_, timeout) => this.send({ ...request, timeout }), { signal });
  }

  /**
   * Tries until there is an answer for good. An answer that does not come is outlasted for as long as one may take, and for
   * `wait`. Each try is told how long the service may let it wait, how long it may take in all, and whether an earlier
   * one may have been carried out.
   */
  async persist<T>(
    attempt: (wait: number, timeout: number, mayBeDone: boolean) => Promise<T>,
    { wait = 0, signal, undo }: Patience = {},
  ): Promise<T> {
    const { clock, timeout } = this;
    const began = clock.now();
    const [end, patience] = [began + wait, began + Math.max(wait, timeout)];
    let [longest, isDone] = [REQUEST_WAIT, false];
    try {
      for (;;) {
        signal?.throwIfAborted();
        const sent = clock.now();
        const asked = Math.max(0, Math.min(end - sent, longest));
        let next: number;
        try {
          return await attempt(asked, wait > 0 ? asked + timeout : Math.max(patience - sent, 100), isDone);
        } catch (error) {
          isDone = mayBeDone(error, isDone);
          signal?.throwIfAborted();
          if (asked > 0 && error instanceof Problem && error.document.field === 'wait_ms') {
            longest = longest / 4 >= MIN_REQUEST_WAIT ? longest / 4 : 0;
            continue;
          }
          const time = clock.now();
          const isHeld = isBusy(error);
          if (isHeld ? time >= end : !isPassing(error)) throw error;
          // The service has let it wait, so it may ask again at once.
          next = isHeld && asked > 0 && time >= sent + asked ? time : time + pauseAfter(error);
          if (isHeld) next = Math.min(next, end);
          else if (next >= patience) throw error;
        }
        await until(clock, next, signal);
      }
    } catch (error) {
      if (isDone) undo?.().catch(() => undefined);
      throw error;
    }
  }

  /** The lines of a stream, until `signal` aborts or nothing comes for `silence`. */
  async *lines(request: Request): AsyncGenerator<string> {
    let rest = '';
    const ending = endingWith(request.signal);
    try {
      const opening = () => this.#fetch(...this.#arguments(request, ending.signal));
      const response = await this.#within(ending, request.silence, opening);
      if (!response.ok || !response.body) throw problem(response, parsed(await response.text()));
      const [reader, decoder] = [response.body.getReader(), new TextDecoder()];
      const read = () => this.#within(ending, request.silence, () => reader.read());
      for (let part = await read(); !part.done; part = await read()) {
        const lines = (rest + decoder.decode(part.value, { stream: true })).split('\n');
        rest = lines.pop() ?? '';
        yield* lines;
      }
    } catch (error) {
      throw noAnswer(error);
    } finally {
      // A reader that leaves in the middle ends the connection.
      ending.abort();
      ending.forget();
    }
  }

  #arguments({ method, path, body, token, prefer }: Request, signal: AbortSignal): [string, RequestInit] {
    const trace = this.#traceparent?.();
    const headers = {
      ...(body !== undefined && { 'content-type': 'application/json' }),
      ...(this.#apiKey && { authorization: `Bearer ${this.#apiKey}` }),
      ...(token && { 'lock-token': token }),
      ...(prefer && { prefer: `wait=${Math.ceil(prefer / 1000)}` }),
      ...(trace && { traceparent: trace }),
    };
    const content = body === undefined ? {} : { body: JSON.stringify(body) };
    // With a key of the program's own, a browser neither sends what it has of its user nor asks for a password.
    const credentials = this.#apiKey ? 'omit' : 'same-origin';
    return [this.#url + path, { method, headers, credentials, ...content, signal }];
  }

  /** Does something that ends after so many milliseconds. */
  async #within<T>(ending: Ending, limit: number | undefined, act: () => Promise<T>): Promise<T> {
    const cancel = limit === undefined ? undefined : this.clock.after(limit, ending.abort);
    try {
      return await act();
    } finally {
      cancel?.();
    }
  }
}

/** How long to wait after a failure: not all that failed together come again together. */
export function pauseAfter(error: unknown): number {
  const after = error instanceof Problem && error.code !== 'lock-held' ? error.retryAfter : undefined;
  return (after ?? 0) + 100 + Math.random() * 300;
}

/** What ends a request: also when `signal` aborts, until it is forgotten. */
interface Ending {
  readonly signal: AbortSignal;
  abort(): void;
  forget(): void;
}

function endingWith(signal?: AbortSignal): Ending {
  const controller = new AbortController();
  const abort = (): void => controller.abort();
  if (signal?.aborted) abort();
  return { signal: controller.signal, abort, forget: onAbort(signal, abort) };
}

function checkedUrl(url: string): string {
  const isWhole = URL.canParse(url, globalThis.location?.href);
  const { protocol, search, hash } = isWhole ? new URL(url, globalThis.location?.href) : new URL('none:');
  if (!/^https?:$/.test(protocol) || search || hash) {
    throw new SettingsError(`the URL ${JSON.stringify(url)} is not one of a keylatch, as http://127.0.0.1:7070`);
  }
  return url.replace(/\/+$/, '');
}

function checkedKey(key?: string): string | undefined {
  if (key !== undefined && !/^[\x21-\x7e]*$/.test(key)) {
    throw new SettingsError('the API key has a character that no header may have, such as the end of a line');
  }
  return key;
}

function parsed(text: string): any {
  try {
    return JSON.parse(text);
  } catch {
    return {};
  }
}

function problem(response: Response, document: ProblemDocument): Problem {
  const seconds = Number.parseInt(response.headers.get('retry-after') ?? '', 10);
  return new Problem(response.status, document, Number.isNaN(seconds) ? undefined : seconds * 1000);
}

/** What a platform says when it has sent nothing. A browser does not say whether it has. */
const UNSENT =
  /^(ECONNREFUSED|ENOTFOUND|EAI_AGAIN|EHOSTUNREACH|ENETUNREACH|ENOENT|EPROTO|UND_ERR_CONNECT_TIMEOUT|UNSENT|(ERR_(INVALID_(CHAR|URL|PROTOCOL)|HTTP_INVALID|TLS|SSL|UNESCAPED)|UNABLE|UNKNOWN_|CERT|DEPTH|SELF_SIGNED|HOSTNAME|InvalidHeader|ConnectionRefused|FailedToOpenSocket).*)$/;

function noAnswer(error: unknown): KeylatchError {
  if (error instanceof KeylatchError) return error;
  const cause: any = (error as any)?.cause ?? error;
  const { code, syscall } = cause?.errors?.[0] ?? cause ?? {};
  const isUnsent = syscall === 'connect' || UNSENT.test(code);
  const why = isUnsent ? 'the service cannot be reached' : 'no answer came';
  return new Unreachable(`${why}: ${cause?.message || cause}`, !isUnsent, { cause: error });
}

/** A name as a step of a path; a dot may not stand as it is, because `..` would be one too. */
export function plain(text: string): string {
  return encodeURIComponent(text).replace(/[.!'()*]/g, (c) => `%${c.charCodeAt(0).toString(16).toUpperCase()}`);
}

/** What the caller gave, as the service is to see it: JSON would make nothing of a number that is none. */
export function given(value: unknown): unknown {
  return Number.isFinite(value) ? value : String(value);
}

/** A secret that proves who holds a lock. */
export function newToken(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(24));
  return btoa(String.fromCharCode(...bytes)).replace(/\+/g, '-').replace(/\//g, '_');
}
