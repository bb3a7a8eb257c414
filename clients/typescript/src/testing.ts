/** A keylatch inside the process, for the tests of programs that use this client. */

import { Client } from './client.js';
import { onAbort } from './clock.js';
import type { ClientOptions } from './transport.js';

interface Holder {
  token: string;
  entries: Set<unknown>;
  limit: number;
  ttl: number;
  until: number;
  shown: { name: string; owner: unknown; fencing_token: number; slot?: number };
  broken?: unknown;
}

interface Kept {
  token: string;
  fingerprint: string;
  lease: number;
  until: number;
  end: number;
  isRerun: boolean;
  document: { state: string; fencing_token: number; [member: string]: unknown };
}

/**
 * Has locks, sets and runs, and neither holds nor watches. There is no network, and time stands still until the test moves it.
 *
 * ```js
 * const fake = new FakeKeylatch();
 * const lease = await fake.client.lock('deploy');
 * await fake.lose('deploy');
 * assert.ok(lease.signal.aborted);
 * ```
 */
export class FakeKeylatch {
  #time = 0;
  #fence = 0;
  readonly #timers = new Set<{ at: number; act: () => void }>();
  readonly #holders = new Map<string, Holder[]>();
  readonly #runs = new Map<string, Kept>();
  readonly #waiting = new Set<() => void>();

  /** What makes further clients of it: `new Client(fake.options)`. */
  readonly options: ClientOptions = {
    url: 'http://fake',
    fetch: (input, init) => this.#answer(String(input).slice('http://fake/v1/'.length), init ?? {}),
    clock: { now: () => this.#time, after: (span, act) => this.#after(span, act) },
  };
  readonly client: Client = new Client(this.options);

  /** Lets so many milliseconds pass, with all that happens in them. */
  async advance(span: number): Promise<void> {
    for (const end = this.#time + span; ; ) {
      // What goes on without time comes first.
      for (let turn = 0; turn < 5; turn++) await new Promise((resolve) => realTimeout(resolve, 0));
      const [next] = [...this.#timers].filter(({ at }) => at <= end).sort((one, other) => one.at - other.at);
      if (!next) return void (this.#time = end);
      this.#timers.delete(next);
      this.#time = Math.max(this.#time, next.at);
      next.act();
    }
  }

  /** Takes a lock from its holders. Time passes to their next renewal, at which they hear of it. */
  async lose(name: string): Promise<void> {
    const ttls = this.#of(name).map(({ ttl }) => ttl);
    this.#holders.delete(name);
    await this.advance(Math.max(0, ...ttls) / 3);
  }

  #after(span: number, act: () => void): () => void {
    const timer = { at: this.#time + span, act };
    this.#timers.add(timer);
    return () => this.#timers.delete(timer);
  }

  async #answer(path: string, { method = 'GET', body, headers, signal }: RequestInit): Promise<Response> {
    const [, kind, name, act, query] = /^(locks|idempotency)(?:\/([^/?]+))?(?:\/([^?]+))?(?:\?(.*))?$/.exec(path) ?? [];
    const { 'lock-token': token = '', prefer } = headers as Record<string, string>;
    const ask = JSON.parse(String(body ?? '{}'));
    const does = `${method} ${act ?? ''}`;
    if (kind === 'idempotency') return await this.#run(`${name}?${query}`, does, token, ask, 1000 * Number(prefer?.slice(5) ?? 0), signal);
    const names: string[] = ask.names ?? (name ? [decodeURIComponent(name)] : new URLSearchParams(query).getAll('name'));
    if (does === 'POST ') return await this.#create(names, token, ask, name === undefined, signal);
    if (does === 'GET ') return this.#show(names[0]!);
    const held = names.map((each) => this.#of(each).find((holder) => holder.token === token || holder.shown.fencing_token === ask.fencing_token));
    const isFree = names.some((each) => this.#of(each).length === 0);
    if (!['PUT ', 'DELETE ', 'POST break'].includes(does)) return problem(501, 'not-supported');
    if (!held.every((holder) => holder !== undefined)) return isFree ? problem(404, 'lock-not-held') : problem(412, 'token-mismatch');
    if (does === 'POST break') held[0]!.broken = { reason: ask.reason, by: ask.by };
    const { broken } = held.find((holder) => holder.broken) ?? {};
    if (does === 'PUT ') return broken ? problem(409, 'lock-broken', { broken }) : this.#grant(held, ask.ttl_ms, name === undefined, this.#time);
    const entry = new URLSearchParams(query).get('entry') ?? undefined;
    for (const holder of does === 'DELETE ' ? held : []) {
      if (entry === undefined) holder.entries.clear();
      holder.entries.delete(entry);
      if (holder.entries.size === 0) holder.until = this.#time;
    }
    this.#serve();
    return new Response(null, { status: 204 });
  }

  /** Who holds a lock now. */
  #of(name: string): Holder[] {
    const holders = (this.#holders.get(name) ?? []).filter(({ until }) => until > this.#time);
    this.#holders.set(name, holders);
    return holders;
  }

  #show(name: string): Response {
    const holders = this.#of(name).map(({ shown, until }) => ({ ...shown, expires_in_ms: until - this.#time }));
    return holders.length ? Response.json({ ...holders[0], ...(holders.length > 1 && { holders }) }) : problem(404, 'lock-not-held');
  }

  async #create(names: string[], token: string, ask: any, isSet: boolean, signal: AbortSignal | null | undefined): Promise<Response> {
    const [began, limit] = [this.#time, ask.mode === 'shared' ? (ask.limit ?? Infinity) : 1];
    const take = (): Response | undefined => {
      const own = names.map((name) => this.#of(name).find((holder) => holder.token === token));
      const fits = (name: string): boolean => Math.min(limit, ...this.#of(name).map((holder) => holder.limit)) > this.#of(name).length;
      if (!names.every((name, at) => own[at] || fits(name))) return undefined;
      const held = names.map((name, at) => {
        const slots = this.#of(name).map(({ shown }) => shown.slot);
        const slot = ask.limit && { slot: slots.concat(-1).findIndex((_, free) => !slots.includes(free)) };
        const shown = { name, owner: ask.owner ?? null, fencing_token: ++this.#fence, ...slot };
        const holder = own[at] ?? { token, entries: new Set(), limit, ttl: 0, until: 0, shown };
        holder.entries.add(ask.entry);
        if (!own[at]) this.#of(name).push(holder);
        return holder;
      });
      return this.#grant(held, ask.ttl_ms, isSet, began);
    };
    const late = (): Response => {
      const name = names.find((each) => this.#of(each).length > 0)!;
      const holders = this.#of(name).map(({ shown, until }) => ({ ...shown, expires_in_ms: until - this.#time }));
      return problem(409, 'lock-held', { name, holders, waited_ms: this.#time - began });
    };
    return await this.#wait(take, ask.wait_ms, late, signal);
  }

  #grant(held: Holder[], ttl: number, isSet: boolean, began: number): Response {
    for (const holder of held) [holder.ttl, holder.until] = [ttl, this.#time + ttl];
    this.#after(ttl, () => this.#serve());
    const locks = held.map(({ shown }) => shown);
    return Response.json({ ...(isSet ? { locks } : locks[0]), waited_ms: this.#time - began, valid_for_ms: ttl });
  }

  async #run(id: string, does: string, token: string, ask: any, wait: number, signal: AbortSignal | null | undefined): Promise<Response> {
    const fingerprint = JSON.stringify([ask.fingerprint, ask.request]);
    const find = (): Kept | undefined => {
      const run = this.#runs.get(id);
      if (run?.document.state === 'in-flight' && run.until <= this.#time) run.document.state = run.isRerun ? 'free' : 'unknown';
      return run?.document.state === 'free' || run?.end === this.#time ? undefined : run;
    };
    if (does === 'POST ') {
      const begin = (): Response | undefined => {
        const run = find();
        if (run && run.token !== token && run.fingerprint !== fingerprint) return problem(422, 'idempotency-key-reused', { retry: 'new-key' });
        if (run?.document.state === 'done') return Response.json(run.document);
        if (run?.document.state === 'unknown') return problem(409, 'outcome-unknown', { retry: 'never' });
        if (run && run.token !== token) return undefined;
        const document = run?.document ?? { state: 'in-flight', fencing_token: ++this.#fence, token };
        const times = { lease: ask.lease_ms, until: this.#time + ask.lease_ms, end: Infinity };
        this.#runs.set(id, { token, fingerprint, ...times, isRerun: ask.on_crash === 'rerun', document });
        this.#after(ask.lease_ms, () => this.#serve());
        return Response.json(document, { status: 201 });
      };
      return await this.#wait(begin, wait, () => problem(409, 'request-in-progress', { retry: 'same-key' }), signal);
    }
    const run = find();
    if (!run) return problem(404, 'no-record');
    if (does === 'GET ') return Response.json(run.document);
    if (run.token !== token) return problem(412, 'token-mismatch');
    const { json, body = json === undefined ? '' : JSON.stringify(json), ...answer } = ask;
    if (does === 'POST renew') run.until = this.#time + run.lease;
    if (does === 'PUT ') Object.assign(run.document, { state: 'done', answer: { ...answer, ...(answer.body_base64 ? {} : { body }) } });
    if (does === 'POST fail') run.document.state = 'unknown';
    if (does === 'DELETE ') this.#runs.delete(id);
    this.#serve();
    return Response.json({});
  }

  /** What comes of trying again each time that something has changed, or what to say when the wait is over. */
  async #wait(act: () => Response | undefined, wait: number, late: () => Response, signal?: AbortSignal | null): Promise<Response> {
    return await new Promise((resolve, reject) => {
      const end = (settle: () => void): void => {
        this.#waiting.delete(look);
        cancel();
        forget();
        settle();
      };
      const look = (over = false): void => {
        const response = act() ?? (over ? late() : undefined);
        if (response) end(() => resolve(response));
      };
      const cancel = this.#after(wait, () => look(true));
      const forget = onAbort(signal ?? undefined, () => end(() => reject(signal?.reason)));
      this.#waiting.add(look);
      look(wait === 0);
    });
  }

  #serve(): void {
    for (const look of [...this.#waiting]) look();
  }
}

const realTimeout = setTimeout;

function problem(status: number, code: string, members: object = {}): Response {
  return Response.json({ code, status, detail: code, ...members }, { status });
}
