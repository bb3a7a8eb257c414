/** One request to the service, with a deadline, and what came of it. */

import { platformFetch } from '#platform';

import { KeylatchError, Problem, type ProblemDocument, Unreachable } from './errors.js';

export const ANSWER_TIMEOUT = 5000;
/** The service sends a comment more often than that while nothing happens on a stream (every 15 s by default). */
const SILENCE = 90_000;

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
  timeout?: number;
  /** Of a stream: for how long nothing may come. */
  silence?: number;
  signal?: AbortSignal;
}

/** What a success says. */
export interface Answer {
  status: number;
  document: any;
}

export class Transport {
  readonly #url: string;
  readonly #apiKey: string | undefined;
  readonly #traceparent: (() => string | undefined) | undefined;
  readonly #fetch: typeof fetch;
  readonly silence: number;

  constructor(options: ClientOptions) {
    const environment: Record<string, string | undefined> = (globalThis as any).process?.env ?? {};
    const url = options.url ?? environment['KEYLATCH_URL'] ?? 'http://127.0.0.1:7070';
    const isSocket = url.startsWith('unix:');
    this.#url = isSocket ? 'http://localhost' : url.replace(/\/+$/, '');
    this.#apiKey = options.apiKey ?? environment['KEYLATCH_API_KEY'];
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
      return await within(ending, request.timeout ?? ANSWER_TIMEOUT, async () => {
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

  /** The lines of a stream, until `signal` aborts or nothing comes for `silence`. */
  async *lines(request: Request): AsyncGenerator<string> {
    let rest = '';
    const ending = endingWith(request.signal);
    try {
      const opening = () => this.#fetch(...this.#arguments(request, ending.signal));
      const response = await within(ending, request.silence, opening);
      if (!response.ok || !response.body) throw problem(response, parsed(await response.text()));
      const [reader, decoder] = [response.body.getReader(), new TextDecoder()];
      const read = () => within(ending, request.silence, () => reader.read());
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

  #arguments({ method, path, body, token }: Request, signal: AbortSignal): [string, RequestInit] {
    const trace = this.#traceparent?.();
    const headers = {
      ...(body !== undefined && { 'content-type': 'application/json' }),
      ...(this.#apiKey && { authorization: `Bearer ${this.#apiKey}` }),
      ...(token && { 'lock-token': token }),
      ...(trace && { traceparent: trace }),
    };
    const content = body === undefined ? {} : { body: JSON.stringify(body) };
    // With a key of the program's own, a browser neither sends what it has of its user nor asks for a password.
    const credentials = this.#apiKey ? 'omit' : 'same-origin';
    return [this.#url + path, { method, headers, credentials, ...content, signal }];
  }
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
  signal?.addEventListener('abort', abort);
  return { signal: controller.signal, abort, forget: () => signal?.removeEventListener('abort', abort) };
}

/** Does something that ends after so many milliseconds. */
async function within<T>(ending: Ending, limit: number | undefined, act: () => Promise<T>): Promise<T> {
  const timer = limit === undefined ? undefined : setTimeout(ending.abort, limit);
  try {
    return await act();
  } finally {
    clearTimeout(timer);
  }
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

/** What Node's `fetch` says when it has sent nothing. A browser does not say whether it has. */
const UNSENT = ['ECONNREFUSED', 'ENOTFOUND', 'EAI_AGAIN', 'EHOSTUNREACH', 'ENETUNREACH', 'UND_ERR_CONNECT_TIMEOUT', 'ENOENT'];

function noAnswer(error: unknown): KeylatchError {
  if (error instanceof KeylatchError) return error;
  const cause: any = (error as any)?.cause ?? error;
  const isUnsent = UNSENT.includes(cause?.code ?? cause?.errors?.[0]?.code);
  const why = isUnsent ? 'the service cannot be reached' : 'no answer came';
  return new Unreachable(`${why}: ${cause?.message || cause}`, !isUnsent, { cause: error });
}

/** A name as a step of a path; a dot may not stand as it is, because `..` would be one too. */
export function plain(text: string): string {
  return encodeURIComponent(text).replace(/[.!'()*]/g, (c) => `%${c.charCodeAt(0).toString(16).toUpperCase()}`);
}

/** A secret that proves who holds a lock. */
export function newToken(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(24));
  return btoa(String.fromCharCode(...bytes)).replace(/\+/g, '-').replace(/\//g, '_');
}
