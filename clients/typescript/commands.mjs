/** The commands of `clients/conformance`, for every platform of this client. */

import { Client, Held, LeaseLost, NothingDone, Problem, SettingsError, Unreachable } from './dist/index.js';

/** The function that carries a command out; `say` takes each line of the answer. */
export function program(settings, say) {
  const client = new Client(settings);
  const [leases, runs, watches, blocks] = [new Map(), new Map(), new Map(), new Map()];

  const options = ({ ttl_ms: ttl, wait_ms: wait, max_ahead: maxAhead, owner, limit, entry, token }) => ({
    ...{ ttl, wait, maxAhead, owner, limit, entry, token },
  });
  const onceOptions = ({ fingerprint, lease_ms: lease, wait_ms: wait, retention_ms: retention, on_crash: onCrash, scope }) => ({
    ...{ fingerprint, lease, wait, retention, onCrash, scope },
  });

  function tellLoss(lease, { signal }) {
    signal.addEventListener('abort', () => {
      const { reason, by } = signal.reason;
      say({ event: 'lost', lease, reason, by });
    });
  }

  async function keep({ lease: name }, getting, shown) {
    try {
      const lease = await getting;
      leases.set(name, lease);
      tellLoss(name, lease);
      return shown(lease);
    } catch (error) {
      if (error instanceof Held) return { held: { name: error.lock, owner: error.holder?.owner } };
      throw error;
    }
  }

  const shown = ({ fencingToken, token, slot }) => ({ fencing_token: fencingToken, token, slot });

  /** The block of `work` or `run`, and what came out of it. */
  async function block({ lease, run, end, body = null }, enter) {
    const caller = new AbortController();
    const thrown = end === 'nothing-done' ? new NothingDone('nothing was done') : new Error('of the caller');
    const finished = new Promise((finish) => blocks.set(lease ?? run, { caller, finish }));
    const cancelled = new Promise((resolve) => caller.signal.addEventListener('abort', resolve));
    let hasBegun = false;
    const inside = async () => {
      hasBegun = true;
      say({ event: 'working', lease, run });
      await Promise.race([finished, cancelled]);
      if (lease) caller.signal.throwIfAborted();
      if (end !== 'return') throw thrown;
      return body;
    };
    try {
      const value = await enter(inside, caller.signal);
      return hasBegun ? { ended: 'returned' } : { ended: 'replayed', body: value };
    } catch (error) {
      if (error === thrown) return { ended: 'threw' };
      if (error === caller.signal.reason) return { ended: 'cancelled' };
      if (error instanceof LeaseLost) return { ended: 'lost' };
      if (error instanceof Held) return { ended: 'held' };
      throw error;
    }
  }

  const commands = {
    lock: (command) => keep(command, client.lock(command.name, options(command)), shown),
    lock_set: (command) =>
      keep(command, client.lock(command.names, options(command)), ({ locks }) => ({
        fencing_tokens: Object.fromEntries(locks.map(({ name, fencingToken }) => [name, fencingToken])),
      })),
    hold: (command) => keep(command, client.hold(command.name, options(command)), shown),
    release: async ({ lease }) => ({ released: await leases.get(lease).release() }),
    lease: async ({ lease }) => ({ lost: leases.get(lease).signal.aborted }),
    ask: async ({ lease: name }) => {
      const lease = leases.get(name);
      let passed = 0;
      for (const end = performance.now() + 10_000; performance.now() < end; ) {
        const { validFor } = lease;
        try {
          lease.check();
        } catch {
          break;
        }
        if (validFor === 0) passed++;
      }
      return { passed_when_over: passed };
    },
    watch: async ({ watch, name }) => {
      const ending = new AbortController();
      watches.set(watch, ending);
      (async () => {
        for await (const { type } of client.watch(name, ending)) say({ event: 'change', watch, type });
      })().catch((error) => console.error(error));
      return {};
    },
    unwatch: async ({ watch }) => {
      watches.get(watch).abort();
      return {};
    },
    show: async ({ name }) => (await client.show(name)) ?? { held: null },
    break: async ({ name, reason, by }) => {
      await client.break(name, reason, { by });
      return {};
    },
    begin: async ({ run: name, key, ...members }) => {
      const run = await client.begin(key, onceOptions(members));
      runs.set(name, run);
      if (!run.answer) return { state: 'begun', fencing_token: run.fencingToken };
      const { status, body, bytes } = run.answer;
      const headers = Object.fromEntries(Object.entries(run.answer.headers).map(([name, value]) => [name, [value].flat()]));
      return { state: 'done', status, headers, body, ...(bytes && (await shownBytes(bytes))) };
    },
    complete: async ({ run, status, body, bytes: size }) => {
      const bytes = size === undefined ? undefined : Uint8Array.from({ length: size }, (_, at) => at % 251);
      await runs.get(run).complete({ status, body, bytes });
      return {};
    },
    abandon: async ({ run }) => {
      await runs.get(run).abandon();
      return {};
    },
    fail: async ({ run, detail }) => {
      await runs.get(run).fail(detail);
      return {};
    },
    once: async ({ key, fingerprint, body, take_ms = 0 }) => {
      let replayed = true;
      const action = async () => {
        replayed = false;
        await pause(take_ms);
        return body;
      };
      return { body: await client.once(key, action, { fingerprint, wait: 10_000 }), replayed };
    },
    work: (command) =>
      block(command, (inside, signal) =>
        client.using(command.name, { ...options(command), signal }, async (_, lease) => {
          tellLoss(command.lease, lease);
          return await inside();
        }),
      ),
    run: (command) => block(command, (inside, signal) => client.once(command.key, inside, { ...onceOptions(command), signal })),
    cancel: async ({ lease, run }) => {
      blocks.get(lease ?? run).caller.abort();
      return {};
    },
    finish: async ({ lease, run }) => {
      blocks.get(lease ?? run).finish();
      return {};
    },
    shared: async ({ name, users, take_ms, ...members }) => {
      const shared = options(members);
      let [inside, most] = [0, 0];
      const enter = () =>
        client.using(name, shared, async (_, { fencingToken }) => {
          most = Math.max(most, ++inside);
          await pause(take_ms);
          inside--;
          return fencingToken;
        });
      return { fencing_tokens: await Promise.all(Array.from({ length: users }, enter)), at_once: most };
    },
    shared_once: async ({ key, users, take_ms }) => {
      const shared = { wait: 20_000 };
      let ran = 0;
      const action = async () => {
        ran++;
        await pause(take_ms);
      };
      await Promise.all(Array.from({ length: users }, () => client.once(key, action, shared)));
      return { ran };
    },
    make_client: async ({ api_key: apiKey, url, ca }) => {
      new Client({ ...settings, ...(apiKey && { apiKey }), ...(url && { url }), ...(ca && { ca }) });
      return { made: true };
    },
  };

  return async (command) => {
    try {
      say({ id: command.id, ok: await commands[command.do](command) });
    } catch (error) {
      say({ id: command.id, error: errorOf(error) });
    }
  };
}

const pause = (span) => new Promise((resolve) => setTimeout(resolve, span));

/** Few bytes in base64, and of many the size and the digest. */
async function shownBytes(bytes) {
  if (bytes.length <= 1000) return { body_base64: btoa(String.fromCharCode(...bytes)) };
  const digest = new Uint8Array(await crypto.subtle.digest('SHA-256', bytes));
  return { size: bytes.length, sha256: [...digest].map((byte) => byte.toString(16).padStart(2, '0')).join('') };
}

function errorOf(error) {
  if (error instanceof Problem) return { kind: 'problem', code: error.code, retry: error.retry };
  if (error instanceof Unreachable) return { kind: error.sent ? 'unknown-effect' : 'unreachable' };
  if (error instanceof SettingsError) return { kind: 'settings', text: String(error.stack) };
  return { kind: String(error.stack) };
}
