/** The commands of `clients/conformance`, for every platform of this client. */

import { Client, Held, Problem, Unreachable } from './dist/index.js';

/** The function that carries a command out; `say` takes each line of the answer. */
export function program(settings, say) {
  const client = new Client(settings);
  const [leases, runs, watches] = [new Map(), new Map(), new Map()];

  const options = ({ ttl_ms, wait_ms, owner, limit, entry, token }) => ({ ttl: ttl_ms, wait: wait_ms, owner, limit, entry, token });

  async function keep({ lease: name }, getting, shown) {
    try {
      const lease = await getting;
      leases.set(name, lease);
      lease.signal.addEventListener('abort', () => say({ event: 'lost', lease: name, reason: lease.signal.reason.reason }));
      return shown(lease);
    } catch (error) {
      if (error instanceof Held) return { held: { name: error.lock, owner: error.holder?.owner } };
      throw error;
    }
  }

  const shown = ({ fencingToken, token, slot }) => ({ fencing_token: fencingToken, token, slot });

  const commands = {
    lock: (command) => keep(command, client.lock(command.name, options(command)), shown),
    lock_set: (command) =>
      keep(command, client.lock(command.names, options(command)), ({ locks }) => ({
        fencing_tokens: Object.fromEntries(locks.map(({ name, fencingToken }) => [name, fencingToken])),
      })),
    hold: (command) => keep(command, client.hold(command.name, options(command)), shown),
    release: async ({ lease }) => ({ released: await leases.get(lease).release() }),
    lease: async ({ lease }) => ({ lost: leases.get(lease).signal.aborted }),
    watch: async ({ watch, name }) => {
      const ending = new AbortController();
      watches.set(watch, ending);
      (async () => {
        for await (const { type } of client.watch(name, ending)) say({ event: 'change', watch, type });
      })();
      return {};
    },
    unwatch: async ({ watch }) => {
      watches.get(watch).abort();
      return {};
    },
    show: async ({ name }) => (await client.show(name)) ?? { held: null },
    break: async ({ name, reason }) => {
      await client.break(name, reason);
      return {};
    },
    begin: async ({ run: name, key, fingerprint, lease_ms }) => {
      const run = await client.begin(key, { fingerprint, lease: lease_ms });
      runs.set(name, run);
      if (run.answer) {
        const { status, headers, body, bytes } = run.answer;
        return { state: 'done', status, headers, body, body_base64: bytes && btoa(String.fromCharCode(...bytes)) };
      }
      return { state: 'begun', fencing_token: run.fencingToken };
    },
    complete: async ({ run, status, body }) => {
      await runs.get(run).complete({ status, body });
      return {};
    },
    abandon: async ({ run }) => {
      await runs.get(run).abandon();
      return {};
    },
    once: async ({ key, fingerprint, body, take_ms = 0 }) => {
      let replayed = true;
      const action = async () => {
        replayed = false;
        await new Promise((resolve) => setTimeout(resolve, take_ms));
        return body;
      };
      return { body: await client.once(key, action, { fingerprint, wait: 10_000 }), replayed };
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

function errorOf(error) {
  if (error instanceof Problem) return { kind: 'problem', code: error.code, retry: error.retry };
  if (error instanceof Unreachable) return { kind: error.sent ? 'unknown-effect' : 'unreachable' };
  return { kind: String(error.stack) };
}
