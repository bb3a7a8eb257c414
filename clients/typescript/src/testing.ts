/** A keylatch inside the process, for the tests of programs that use this client. */

import { Client } from './client.js';
import { onAbort } from './clock.js';
import type { ClientOptions } from './transport.js';

/** A lease or a run. */
interface Kept {
  name: string;
  token: string;
  fence: number;
  ttl: number;
  until: number;
  owner?: string;
  limit?: number;
  broken?: { reason: string; by?: string };
  fingerprint?: string;
  isRerun?: boolean;
  answer?: unknown;
}

/**
 * Has locks, sets and runs, without slots and entries, holds and watches. Time stands still until the test moves it.
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
  #leases: Kept[] = [];
  readonly #runs = new Map<string, Kept>();
  readonly #timers = new Set<{ at: number; act: () => void }>();
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
      this.#time = Math.max(this.#time, next?.at ?? end);
      if (!next) return;
      this.#timers.delete(next);
      next.act();
    }
  }

  /** Takes a lock from its holders. Time passes to their next renewal, at which they hear of it. */
  async lose(name: string): Promise<void> {
    const lost = this.#holders(name);
    this.#leases = this.#leases.filter((lease) => !lost.includes(lease));
    await this.advance(Math.max(0, ...lost.map(({ ttl }) => ttl)) / 3);
  }

  #after(span: number, act: () => void): () => void {
    const timer = { at: this.#time + span, act };
    this.#timers.add(timer);
    return () => this.#timers.delete(timer);
  }

  /** When what lasts so long from now on is over, which others may wait for. */
  #end(span: number): number {
    this.#after(span, () => this.#serve());
    return this.#time + span;
  }

  #serve(): void {
    for (const look of [...this.#waiting]) if (this.#waiting.has(look)) look();
  }

  #holders(name: string): Kept[] {
    return this.#leases.filter((lease) => lease.name === name && lease.until > this.#time);
  }

  async #answer(path: string, { method = 'GET', body, headers, signal }: RequestInit): Promise<Response> {
    const [, kind, key, does = '', query] = /^(\w+)(?:\/([^/?]+))?(?:\/(\w+))?(?:\?(.*))?$/.exec(path) ?? [];
    const ask = { method: method + does, query, ...JSON.parse(String(body ?? '{}')), ...headers };
    const began = this.#time;
    if (kind === 'idempotency') {
      const wait = 1000 * Number(ask.prefer?.slice('wait='.length) ?? 0);
      return await this.#wait((isLate) => this.#run(`${key}?${query}`, ask, isLate), wait, signal);
    }
    const names: string[] = ask.names ?? (key ? [decodeURIComponent(key)] : new URLSearchParams(query).getAll('name'));
    const act = (isLate: boolean) => this.#lock(names, { ...ask, isSet: !key, waited_ms: this.#time - began }, isLate);
    return await this.#wait(act, ask.wait_ms ?? 0, signal);
  }

  #lock(names: string[], ask: any, isLate: boolean): Response | undefined {
    const { method, isSet, ttl_ms: ttl, owner, waited_ms } = ask;
    const shown = (lease: Kept) => ({
      ...{ name: lease.name, fencing_token: lease.fence, owner: lease.owner ?? null, expires_in_ms: lease.until - this.#time },
    });
    const held = names.map((name) => this.#holders(name));
    const taken = held.find(([first]) => first)?.map(shown);
    const own = held.flat().filter(({ token, fence }) => token === ask['lock-token'] || fence === ask.fencing_token);
    if (method === 'GET') return taken ? Response.json({ ...taken[0], holders: taken }) : problem(404, 'lock-not-held');
    if (method === 'POST' && own.length === 0) {
      const limit = ask.mode === 'shared' ? (ask.limit ?? Infinity) : 1;
      const isFull = (leases: Kept[]) => Math.min(limit, ...leases.map((lease) => lease.limit!)) <= leases.length;
      const [full] = held.find(isFull) ?? [];
      if (full) return isLate ? problem(409, 'lock-held', { name: full.name, holder: shown(full), waited_ms }) : undefined;
      own.push(...names.map((name) => ({ name, token: ask['lock-token'], fence: ++this.#fence, ttl, until: 0, owner, limit })));
      this.#leases.push(...own);
    }
    if (own.length < names.length) return taken ? problem(412, 'token-mismatch') : problem(404, 'lock-not-held');
    if (method === 'POSTbreak') own[0]!.broken = { reason: ask.reason, by: ask.by };
    if (method === 'DELETE') this.#leases = this.#leases.filter((lease) => !own.includes(lease));
    if (method === 'DELETE' || method === 'POSTbreak') return new Response(null, { status: 204 });
    const { broken } = own.find((lease) => lease.broken) ?? {};
    if (broken) return problem(409, 'lock-broken', { broken });
    for (const lease of own) [lease.ttl, lease.until] = [ttl, this.#end(ttl)];
    const locks = names.map((name) => shown(own.find((lease) => lease.name === name)!));
    return Response.json({ ...(isSet ? { locks } : locks[0]), token: ask['lock-token'], waited_ms, valid_for_ms: ttl });
  }

  #run(key: string, ask: any, isLate: boolean): Response | undefined {
    const { method, 'lock-token': token, fingerprint } = ask;
    const found = this.#runs.get(key);
    const isOver = found !== undefined && !found.answer && found.until <= this.#time;
    const run = isOver && found.isRerun ? undefined : found;
    const document = { state: 'in-flight', fencing_token: run?.fence, token: run?.token };
    if (method === 'POST') {
      if (run && run.fingerprint !== fingerprint) return problem(422, 'idempotency-key-reused', { retry: 'new-key' });
      if (run?.answer) return Response.json({ ...document, state: 'done', answer: run.answer });
      if (run && isOver) return problem(409, 'outcome-unknown', { retry: 'never' });
      if (run && run.token !== token) return isLate ? problem(409, 'request-in-progress', { retry: 'same-key' }) : undefined;
      const begun = { name: key, token, fence: run?.fence ?? ++this.#fence, ttl: ask.lease_ms, until: this.#end(ask.lease_ms) };
      this.#runs.set(key, { ...begun, fingerprint, isRerun: ask.on_crash === 'rerun' });
      return Response.json({ ...document, token, fencing_token: begun.fence }, { status: 201 });
    }
    if (run?.token !== token || !run || isOver) return problem(412, 'token-mismatch');
    const { status = 200, headers = {}, body_base64, json, body = json === undefined ? '' : JSON.stringify(json) } = ask;
    if (method === 'POSTrenew') run.until = this.#end(run.ttl);
    if (method === 'POSTfail') run.until = this.#time;
    if (method === 'PUT') run.answer = { status, headers, ...(body_base64 ? { body_base64 } : { body }) };
    if (method === 'DELETE') this.#runs.delete(key);
    return new Response(null, { status: 204 });
  }

  /** What comes of asking again each time that something has changed, until the wait is over. */
  async #wait(act: (isLate: boolean) => Response | undefined, span: number, signal?: AbortSignal | null): Promise<Response> {
    return await new Promise((resolve, reject) => {
      const look = (isLate = false): void => {
        const response = act(isLate);
        if (response) end(() => resolve(response));
      };
      const end = (settle: () => void): void => {
        for (const stop of stops) stop();
        settle();
        this.#serve();
      };
      const stops: (() => void)[] = [this.#after(span, () => look(true)), () => this.#waiting.delete(look)];
      stops.push(onAbort(signal ?? undefined, () => end(() => reject(signal?.reason))));
      this.#waiting.add(look);
      look(span === 0);
    });
  }
}

const realTimeout = setTimeout;

function problem(status: number, code: string, members: object = {}): Response {
  return Response.json({ code, status, detail: code, ...members }, { status });
}
