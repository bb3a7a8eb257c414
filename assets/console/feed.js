// The held locks, live: one stream of the service, which sends what changed twice a second at most.

import { events, session } from './api.js';

/** The lengths that a bar begins with, in seconds: the first of them that a lease fits into. */
const SPANS = [1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 600, 1800, 3600, 6 * 3600, 86400];

/** The locks by name. Each has what a row shows, and when its first lease `ends` on this page's clock. */
export const locks = new Map();
/**
 * How the stream is: `connecting`, `live`, `trouble` (the store does not respond), `lost`, or `closed`; and what it
 * was refused with.
 */
export const state = { is: 'closed', prefix: null, more: false, refusal: null };

const listeners = new Set();
let close = null;

/** Calls `listener` after each change, until the function that this gives is called. */
export function listen(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** Follows the locks below a prefix; nothing happens where it does so already. */
export function follow(prefix) {
  if (close && state.prefix === prefix) return;
  stop();
  Object.assign(state, { is: 'connecting', prefix, more: false, refusal: null });
  let isFirst = true;
  close = events(`/console/locks?prefix=${encodeURIComponent(prefix)}`, {
    // A stream that comes back begins with all locks again.
    open: () => { isFirst = true; },
    changes: (changes) => {
      if (isFirst) locks.clear();
      isFirst = false;
      take(changes);
    },
    trouble: () => tell({ is: 'trouble' }),
    lost: () => tell({ is: 'lost' }),
    refused: (refusal) => tell({ is: 'closed', refusal }),
  });
  tell({});
}

export function stop() {
  close?.();
  close = null;
  locks.clear();
  Object.assign(state, { is: 'closed', prefix: null });
}

/** How many there are, and whether there are more. */
export function held() {
  return `${locks.size.toLocaleString('en')}${state.more ? ' and more' : ''}`;
}

function take({ held, gone, more }) {
  const now = performance.now();
  for (const name of gone) locks.delete(name);
  for (const lock of held) locks.set(lock.name, row(lock, locks.get(lock.name), now));
  tell({ is: 'live', more, refusal: null });
}

/** What a row shows of a lock, be it held by one or by several. */
function row(lock, before, now) {
  const holders = lock.holders ?? [lock];
  const left = Math.min(...holders.map((holder) => holder.expires_in_ms));
  const ends = now + left;
  const fence = holders[0].fencing_token;
  // The bar is full when the lease has just been renewed, as far as this page has seen.
  const known = before?.fence === fence ? before.full : 0;
  return {
    name: lock.name,
    owners: holders.map((holder) => holder.owner ?? 'without a label'),
    holding: lock.holding ?? 1,
    shared: Boolean(lock.holders),
    since: Math.min(...holders.map((holder) => Date.parse(holder.acquired_at))),
    waiting: lock.waiting,
    broken: holders.some((holder) => holder.broken),
    fence,
    ends,
    full: Math.max(known, span(left)),
  };
}

function span(left) {
  return 1000 * (SPANS.find((seconds) => left <= seconds * 1000) ?? left / 1000);
}

function tell(change) {
  Object.assign(state, change);
  for (const listener of listeners) listener();
}

// A page that no one looks at costs the service nothing.
addEventListener('visibilitychange', () => {
  const prefix = state.prefix;
  if (document.hidden) {
    close?.();
    close = null;
  } else if (prefix !== null && session.glance) follow(prefix);
});
