/** One request to the service, with a deadline, and what came of it. */

import { platformFetch, platformOwner } from '#platform';

import { type Clock, machineClock, onAbort, until } from './clock.js';
import { type HeldLock, isBusy, isPassing, KeylatchError, LOSSES, mayBeDone, Problem, SettingsError, Unreachable } from './errors.js';

const REQUEST_WAIT = 50_000;
const MIN_REQUEST_WAIT = 1000;

/** What Node can set; elsewhere the platform sets it. */
export type PlatformOptions = Pick<ClientOptions, 'ca' | 'cert' | 'key' | 'socketPath' | 'agent'>;

/** What a client has done: a request, with what came of it after `took` milliseconds, or a loss. */
export interface LogEntry {
  message: 'response' | 'failure' | 'lost';
  request?: string;
  error?: KeylatchError;
  took?: number;
}

/** How a client reaches the service, and as whom. All spans are milliseconds. */
export interface ClientOptions {
  /**
   * `http://127.0.0.1:7070` unless `KEYLATCH_URL` is set, which may have several with commas. Of several, a request that
   * gets no connection goes to the next.
   */
  url?: string | readonly string[];
  /** Sent as a bearer; `KEYLATCH_API_KEY` unless it is given. */
  apiKey?: string;
  /** Who holds the locks, for people; in Node and Bun the host and the process unless it is given. */
  owner?: string | undefined;
  /** The `traceparent` of a request (W3C Trace Context), asked for each. */
  traceparent?: () => string | undefined;
  /** Another `fetch` than the platform's. */
  fetch?: typeof fetch;
  /** How long a response may take beside the wait that was asked for; 5 s by default. */
  timeout?: number;
  /** How often a failure is retried at most; as often as there is time by default. */
  retries?: number;
  /** The pause before a retry, beyond what the service asks for; 100 to 400 ms at random by default. */
  pause?: () => number;
  /** The client opens a watch again on which nothing comes for so long, not even a comment, as there is each 15 s; 90 s by default. */
  silence?: number;
  /** Told of each request and each loss. */
  log?: (entry: LogEntry) => void;
  /** In Node, a file in PEM with the authorities that the service's certificate is good by; else `KEYLATCH_CA`. */
  ca?: string | undefined;
  /** In Node, a file in PEM with the certificate of this client; else `KEYLATCH_CLIENT_CERT`. */
  cert?: string | undefined;
  /** In Node, a file in PEM with its private key; else `KEYLATCH_CLIENT_KEY`. */
  key?: string | undefined;
  /** In Node, the Unix socket of the service. The URL `unix:PATH` says the same. */
  socketPath?: string | undefined;
  /** In Node, an `http.Agent` or `https.Agent`, such as one that goes by a proxy; `ca`, `cert` and `key` are its own then. */
  agent?: object | undefined;
  /** @internal */
  clock?: Clock;
}

/** What the service says on a stream: `type` is a word such as `acquired`, and `data` has the members of that type. */
export interface Event {
  type: string;
  data: Partial<HeldLock> & { held?: boolean; ahead?: number; reason?: string; detail?: string; [member: string]: unknown };
}

/** An instance of the service; `user` is what its URL has of a user, as a header. */
interface Instance {
  url: string;
  user?: string;
  fetch: typeof fetch;
  isKnown?: boolean;
}

export interface Request {
  method: 'GET' | 'POST' | 'PUT' | 'DELETE';
  path: string;
  body?: unknown;
  token?: string;
  prefer?: number;
  timeout?: number;
  silence?: number;
  signal?: AbortSignal | undefined;
}

export type Attempt<T> = (wait: number, timeout: number, mayBeDone: boolean) => Promise<T>;
type Message = { method: string; headers: Record<string, string>; body?: string };
export type Patience = { wait?: number | undefined; signal?: AbortSignal | undefined };

export class Transport {
  readonly clock: Clock;
  readonly timeout: number;
  readonly silence: number;
  readonly owner: string | undefined;
  readonly #options: ClientOptions;
  readonly #apiKey: string | undefined;
  readonly #instances: Instance[];
  #at = 0;
  #store: { id: unknown; url: string } | undefined;

  constructor(options: ClientOptions) {
    const environment: Record<string, string | undefined> = (globalThis as any).process?.env ?? {};
    this.#options = options;
    this.clock = options.clock ?? machineClock;
    this.timeout = options.timeout ?? 5000;
    this.silence = options.silence ?? 90_000;
    this.owner = options.owner ?? platformOwner();
    this.#apiKey = options.apiKey ?? environment['KEYLATCH_API_KEY'];
    const isKey = !/[^\x21-\x7e]/.test(this.#apiKey ?? '');
    if (!isKey) throw new SettingsError('the API key has a character that no header may have, such as the end of a line');
    const urls = [options.url ?? environment['KEYLATCH_URL']?.split(',') ?? 'http://127.0.0.1:7070'].flat();
    const { ca, cert, key, socketPath, agent, fetch } = options;
    this.#instances = urls.map((text: string) => {
      const url = text.trim();
      const isSocket = url.startsWith('unix:');
      const settings = { ca, cert, key, socketPath: isSocket ? url.slice(5) : socketPath, agent };
      const unused = fetch && Object.entries(settings).find(([, value]) => value !== undefined);
      if (unused) throw new SettingsError(`a fetch of one's own takes no ${unused[0]}`);
      return { ...checkedUrl(isSocket ? 'http://localhost' : url), fetch: fetch ?? platformFetch(settings, this.timeout / urls.length) };
    });
  }

  /** How long to wait after a failure: not all that failed together come again together. */
  pause(error?: unknown): number {
    const after = error instanceof Problem && error.code !== 'lock-held' ? error.retryAfter : undefined;
    return (after ?? 0) + (this.#options.pause ? this.#options.pause() : 100 + Math.random() * 300);
  }

  /** Pauses, or until `signal` aborts. */
  async rest(signal?: AbortSignal): Promise<void> {
    await until(this.clock, this.clock.now() + this.pause(), signal);
  }

  /** Tells the program's log; what that throws changes nothing. */
  log(entry: LogEntry): void {
    try {
      this.#options.log?.(entry);
    } catch {}
  }

  /** The document of a success; throws {@link Problem} or {@link Unreachable}. */
  async send(request: Request): Promise<any> {
    const [message, { timeout = this.timeout, signal }] = [this.#message(request), request];
    return await this.#timed(timeout, signal, (ending) => this.#reach(request, message, ending, documentOf));
  }

  /** What is sent, made before anything is: what the caller's `traceparent` or value throws is its own error. */
  #message({ method, body, token, prefer }: Request): Message {
    const trace = this.#options.traceparent?.();
    const headers = {
      ...(body !== undefined && { 'content-type': 'application/json' }),
      ...(token && { 'lock-token': token }),
      ...(prefer && { prefer: `wait=${Math.ceil(prefer / 1000)}` }),
      ...(trace && { traceparent: trace }),
    };
    return { method, headers, ...(body !== undefined && { body: JSON.stringify(body) }) };
  }

  async #open(instance: Instance, path: string, message: Message, signal: AbortSignal): Promise<Response> {
    const authorization = this.#apiKey ? `Bearer ${this.#apiKey}` : instance.user;
    const headers = { ...message.headers, ...(authorization && { authorization }) };
    // With a key of the program's own, a browser neither sends what it has of its user nor asks for a password.
    const credentials = authorization ? 'omit' : 'same-origin';
    const response = await instance.fetch(instance.url + path, { ...message, headers, credentials, redirect: 'manual', signal });
    if (response.ok) return response;
    const seconds = Number.parseInt(response.headers.get('retry-after') ?? '', 10);
    const document = parsed(await response.text()) ?? {};
    throw new Problem(response.status, document, document.retry_after_ms ?? (seconds >= 0 ? seconds * 1000 : undefined));
  }

  /** Asks one instance after the other until one is connected. The next request begins with the one that was. */
  async #reach<T>({ method, path }: Request, message: Message, signal: AbortSignal, read: (response: Response) => Promise<T>): Promise<T> {
    const count = this.#instances.length;
    for (let [at, left] = [this.#at, count]; ; at = (at + 1) % count) {
      const instance = this.#instances[at]!;
      const [request, began] = [`${method} ${instance.url}${path}`, this.clock.now()];
      try {
        await this.#know(instance, signal);
        const result = await read(await this.#open(instance, path, message, signal));
        this.log({ message: 'response', request, took: this.clock.now() - began });
        return result;
      } catch (failure) {
        const error = noAnswer(failure);
        this.log({ message: 'failure', request, error, took: this.clock.now() - began });
        if (!(error instanceof Problem) && this.#at === at) this.#at = (at + 1) % count;
        if (!(error instanceof Unreachable) || error.sent || --left === 0 || signal.aborted) throw error;
      }
    }
  }

  /** Of several instances each is asked which store it has: two stores would be two holders. */
  async #know(instance: Instance, within: AbortSignal): Promise<void> {
    const count = this.#instances.length;
    if (count === 1 || instance.isKnown) return;
    const ask = async (signal: AbortSignal) => documentOf(await this.#open(instance, '/v1/info', { method: 'GET', headers: {} }, signal));
    const { store } = await this.#timed(this.timeout / count, within, ask).catch((error) => {
      // A keylatch may refuse to tell this client. What else comes tells nothing, and of the request nothing was sent.
      if (error instanceof Problem && error.code && error.status < 500 && ![408, 429].includes(error.status)) return {};
      throw new Unreachable(`${instance.url} does not say which store it has: ${noAnswer(error).message}`, false, { cause: error });
    });
    if (store?.id !== undefined) this.#store ??= { id: store.id, url: instance.url };
    if (store?.id !== undefined && store.id !== this.#store?.id) {
      throw new SettingsError(`${instance.url} has another store than ${this.#store?.url}`);
    }
    instance.isKnown = true;
  }

  /** The document of a request that is safe to repeat. */
  async ask(request: Request): Promise<any> {
    return await this.persist((_, timeout) => this.send({ ...request, timeout }), request);
  }

  /**
   * Tries until there is an answer for good. An answer that does not come is outlasted for as long as one may take, and for
   * `wait`. Each try is told how long the service may let it wait, how long it may take in all, and whether an earlier
   * one may have been carried out. `undo` takes back what may have been, where the caller does not learn of it.
   */
  async persist<T>(attempt: Attempt<T>, { wait = 0, signal }: Patience = {}, undo?: () => Promise<unknown>): Promise<T> {
    const { clock, timeout } = this;
    const began = clock.now();
    const [end, patience] = [began + wait, began + Math.max(wait, timeout)];
    for (let [longest, isDone, left] = [REQUEST_WAIT, false, this.#options.retries ?? Infinity]; ; ) {
      const sent = clock.now();
      // The service takes whole milliseconds alone.
      const asked = Math.max(0, Math.min(Math.ceil(end - sent), longest));
      let failure: unknown;
      try {
        signal?.throwIfAborted();
        return await attempt(asked, wait > 0 ? asked + timeout : Math.max(patience - sent, 100), isDone);
      } catch (error) {
        failure = error;
      }
      isDone = mayBeDone(failure, isDone);
      const [time, pause] = [clock.now(), this.pause(failure)];
      let next: number | undefined;
      if (asked > 0 && failure instanceof Problem && failure.document.field === 'wait_ms') {
        [longest, next] = [longest / 4 >= MIN_REQUEST_WAIT ? longest / 4 : 0, time];
      } else if (isBusy(failure)) {
        // Without a word of its wait for a lock, it was not let wait and will not be. After its wait it asks again at once.
        const isFinal = failure.code === 'lock-held' && asked > 0 && failure.document.waited_ms === undefined;
        if (!isFinal && time < end) next = asked > 0 && time >= sent + asked ? time : Math.min(end, time + pause);
      } else if (isPassing(failure) && time + pause < patience && left-- > 0) next = time + pause;
      if (next !== undefined) await until(clock, next, signal);
      if (next !== undefined && !signal?.aborted) continue;
      // Who leaves in a pause may stand in a queue.
      if (isDone || next !== undefined) undo?.().catch(() => undefined);
      if (signal?.aborted) throw signal.reason;
      throw failure instanceof Unreachable && isDone ? new Unreachable(failure.message, true, { cause: failure.cause }) : failure;
    }
  }

  /** Until when it is good. It is renewed before it is used where its answer was so late that little of it is left. */
  async fresh(until: number, ttl: number, renew: () => Promise<number>): Promise<number> {
    if (until - this.clock.now() >= ttl / 2) return until;
    return await renew().catch((error) => {
      // It was over before its answer was read, so that it may be asked for anew.
      throw error instanceof Problem && LOSSES[error.code] ? new Unreachable(error.message, true, { cause: error }) : error;
    });
  }

  /** What comes on a stream (WHATWG HTML, section 9.2), until `signal` aborts or nothing comes for `silence`. */
  async *events(request: Request): AsyncGenerator<Event> {
    let [rest, type, data] = ['', '', ''];
    const message = this.#message(request);
    const ending = endingWith(request.signal);
    try {
      const response = await this.#within(ending, request.silence, () => this.#reach(request, message, ending.signal, async (opened) => opened));
      const [reader, decoder] = [response.body!.getReader(), new TextDecoder()];
      const read = () => this.#within(ending, request.silence, () => reader.read());
      for (let part = await read(); !part.done; part = await read()) {
        const lines = (rest + decoder.decode(part.value, { stream: true })).split('\n');
        rest = lines.pop() ?? '';
        for (const line of lines) {
          if (line.startsWith('event:')) type = line.slice(6).trim();
          else if (line.startsWith('data:')) data += line.slice(5).trim();
          else if (line.trim() === '' && type) {
            yield { type, data: JSON.parse(data || '{}') };
            [type, data] = ['', ''];
          }
        }
      }
    } catch (error) {
      throw noAnswer(error);
    } finally {
      // A reader that leaves in the middle ends the connection.
      ending.abort();
      ending.forget();
    }
  }

  /** Does something that ends after so many milliseconds, or when `signal` aborts. */
  async #timed<T>(limit: number, signal: AbortSignal | undefined, act: (signal: AbortSignal) => Promise<T>): Promise<T> {
    const ending = endingWith(signal);
    try {
      return await this.#within(ending, limit, () => act(ending.signal));
    } finally {
      ending.forget();
    }
  }

  async #within<T>(ending: { abort(): void }, limit: number | undefined, act: () => Promise<T>): Promise<T> {
    const cancel = limit === undefined ? undefined : this.clock.after(limit, ending.abort);
    try {
      return await act();
    } finally {
      cancel?.();
    }
  }
}

/** What ends a request: also when `signal` aborts, until it is forgotten. */
function endingWith(signal?: AbortSignal) {
  const controller = new AbortController();
  const abort = (): void => controller.abort();
  return { signal: controller.signal, abort, forget: onAbort(signal, abort) };
}

/** The URL, which is logged, and apart from it the user and the password that it has. */
function checkedUrl(text: string): { url: string; user?: string } {
  try {
    const { href, username, password } = new URL(text, globalThis.location?.href);
    const user = new TextEncoder().encode(`${decodeURIComponent(username)}:${decodeURIComponent(password)}`);
    const url = text.replace(/^(\w+:\/\/)[^/]*@/, '$1').replace(/\/+$/, '');
    if (/^https?:[^?#]+$/.test(href)) return { url, ...(user.length > 1 && { user: `Basic ${btoa(String.fromCharCode(...user))}` }) };
  } catch {}
  const shown = text.replace(/^(\w+:\/\/)?.*@/, '$1');
  throw new SettingsError(`the URL ${JSON.stringify(shown)} is not one of a keylatch, as http://127.0.0.1:7070`);
}

/** The document of a success. What is none, such as the page of a proxy, is no success. */
async function documentOf(response: Response): Promise<any> {
  const text = await response.text();
  const document = text === '' ? {} : parsed(text);
  if (!document) throw foreign();
  return document;
}

function parsed(text: string): any {
  try {
    const document = JSON.parse(text);
    if (typeof document === 'object') return document;
  } catch {}
}

/** What a platform says when it has sent nothing. A browser does not say whether it has. */
const UNSENT = [
  /^(E(CONNREFUSED|NOTFOUND|AI_AGAIN|HOSTUNREACH|NETUNREACH|NOENT)|UND_ERR_CONNECT_TIMEOUT)$/,
  /^(ERR_(INVALID_(CHAR|URL|PROTOCOL)|HTTP_INVALID|TLS_CERT|SSL_.*(CERT|UNKNOWN_CA)|UNESCAPED)|ConnectionRefused)/,
  /^(UNABLE|CERT|UNKNOWN_CERT|DEPTH|SELF_SIGNED|HOSTNAME)_/,
];

function noAnswer(error: unknown): KeylatchError {
  if (error instanceof KeylatchError) return error;
  const cause: any = (error as any)?.cause ?? error;
  const { code, syscall } = cause?.errors?.[0] ?? cause ?? {};
  const isUnsent = cause?.isUnsent || syscall === 'connect' || UNSENT.some((each) => each.test(code));
  const why = isUnsent ? 'the service cannot be reached' : 'no answer came';
  return new Unreachable(`${why}: ${cause?.message || cause}`, !isUnsent, { cause: error });
}

/** A name as a step of a path; a dot may not stand as it is, because `..` would be one too. */
export function plain(text: string): string {
  return encodeURIComponent(text).replace(/[.!'()*]/g, (c) => `%${c.charCodeAt(0).toString(16).toUpperCase()}`);
}

/** What the caller gave, as the service is to see it: JSON would make nothing of a number that is none. */
export function given(value: unknown): unknown {
  return value === undefined || Number.isFinite(value) ? value : String(value);
}

export function foreign(): Unreachable {
  return new Unreachable('the response is not one of keylatch for this request', true);
}

/** A secret that proves who holds a lock. */
export function newToken(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(24));
  return btoa(String.fromCharCode(...bytes)).replace(/\+/g, '-').replace(/\//g, '_');
}
