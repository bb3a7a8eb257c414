// One lock: its holders, its queue, its earlier grants; and the break of a lease, which asks twice.

import { call, curl, events, lockPath, session } from './api.js';
import { commands, count, facts, freeze, h, moment, openDialog, poll, redraw, say, span } from './dom.js';
import * as feed from './feed.js';

/** The least time between two looks, however fast the lock changes. */
const PAUSE = 400;
/** How often to look for who waits, of which no event tells. */
const PERIOD = 2000;

export const title = 'Lock';

export function show(view, name) {
  const [holders, queue, history, act] = [h('div'), h('div'), h('div'), h('div')];
  const [shell, note] = [h('div'), h('p', { class: 'note' })];
  view.append(
    h('p', {}, h('a', { href: '#/locks' }, '‹ All locks')),
    h('h1', { tabindex: -1 }, name),
    note,
    h('section', { 'aria-labelledby': 'holders' }, h('h2', { id: 'holders' }, 'Held by'), holders, act),
    h('section', { 'aria-labelledby': 'queue' }, h('h2', { id: 'queue' }, 'Queue'), queue),
    h('section', { 'aria-labelledby': 'history' }, h('h2', { id: 'history' }, 'Earlier grants'), history),
    shell);
  feed.stop();
  const page = new LockPage(name, { view, note, holders, queue, history, act, shell });
  return page.start();
}

class LockPage {
  ticking = [];

  constructor(name, parts) {
    this.name = name;
    this.parts = parts;
  }

  start() {
    const lookSoon = () => this.lookSoon();
    const changes = ['snapshot', 'acquired', 'renewed', 'broken', 'released', 'expired'].map((event) => [event, lookSoon]);
    const close = events(lockPath(this.name, '/events'), Object.fromEntries(changes));
    const looks = poll(PERIOD, () => this.request(), (found) => this.draw(found));
    const ticking = setInterval(() => this.tick(), 1000);
    this.look = looks.look;
    this.look();
    return () => {
      close();
      looks.stop();
      clearInterval(ticking);
      clearTimeout(this.timer);
    };
  }

  /** What the service has of the lock for this page alone. */
  consolePath(part) {
    return `/console/${part}?name=${encodeURIComponent(this.name)}`;
  }

  lookSoon() {
    this.timer ??= setTimeout(() => this.look(), PAUSE);
  }

  request() {
    clearTimeout(this.timer);
    const paths = [lockPath(this.name), this.consolePath('queue'), this.consolePath('history')];
    return Promise.all(paths.map((path) => call('GET', path).catch((refusal) => refusal)));
  }

  draw([lock, queue, history]) {
    this.timer = undefined;
    if (freeze(this.parts.view, this.parts.note)) return;
    this.drawHolders(lock);
    this.drawQueue(queue);
    this.drawHistory(history);
    this.drawCommands(lock.holders?.[0] ?? lock);
    this.tick();
  }

  drawCommands({ fencing_token = null }) {
    if (this.fence === fencing_token) return;
    this.fence = fencing_token;
    const isOpen = this.parts.shell.firstChild?.open;
    const command = { reason: 'REASON', fencing_token };
    redraw(this.parts.shell, commands([
      ['Who holds it, and how many wait', curl('GET', lockPath(this.name))],
      ['Who waits, in order and since when', curl('GET', this.consolePath('queue'))],
      ['What happens to it, as it happens', curl('GET', lockPath(this.name, '/events')).replace('curl', 'curl -N')],
      ['The earlier grants, with the releases of this instance', curl('GET', this.consolePath('history'))],
      ['The breaks and expiries that the store keeps', curl('GET', lockPath(this.name, '/history'))],
      fencing_token && ['Break the lease', curl('POST', lockPath(this.name, '/break'), command)],
    ].filter(Boolean)));
    this.parts.shell.firstChild.open = Boolean(isOpen);
  }

  drawHolders(lock) {
    if (lock instanceof Error) {
      this.drawn = null;
      this.ticking = [];
      const isFree = lock.code === 'lock-not-held';
      this.parts.holders.replaceChildren(h('p', { class: isFree ? 'empty' : 'note bad' }, isFree ? 'No client holds the lock.' : lock.message));
      return this.offer(null);
    }
    const holders = lock.holders ?? [lock];
    this.ends = holders.map((holder) => performance.now() + holder.expires_in_ms);
    // What a user is about to press stays where it is until a holder changes.
    const drawn = JSON.stringify(holders.map(({ owner, slot, fencing_token, broken }) => [owner, slot, fencing_token, broken]));
    if (this.drawn === drawn) return;
    this.drawn = drawn;
    this.ticking = [];
    const rest = (lock.holding ?? 1) - holders.length;
    redraw(this.parts.holders,
      lock.holders ? this.table(lock) : this.holder(lock),
      rest > 0 ? h('p', { class: 'hint' }, `and ${count(rest)} more`) : '');
    this.offer(lock.holders || lock.broken ? null : lock);
  }

  /** Several holders, a row each. */
  table({ holders, limit }) {
    const may = this.mayBreak();
    const heads = ['Holder', 'Slot', 'Time left', 'Held for', 'Fencing token'].map((text) => h('th', { scope: 'col' }, text));
    const row = (holder, i) => {
      const { left, age } = this.clocks(holder, i);
      const cell = (label, child) => h('td', { 'data-label': label }, child);
      return h('tr', { class: 'holder' },
        h('th', { scope: 'row' }, ownerOf(holder), brokenNote(holder)),
        cell('Slot', String(holder.slot)),
        cell('Time left', left),
        cell('Held for', age),
        cell('Fencing token', String(holder.fencing_token)),
        may && h('td', {}, !holder.broken && h('button', {
          type: 'button', class: 'second small', 'aria-label': `Break the lease of ${ownerOf(holder)}, slot ${holder.slot}`, onclick: () => this.ask(holder),
        }, 'Break…')));
    };
    return h('div', {},
      h('p', { class: 'hint' }, `Shared${limit ? `, by at most ${limit}` : ''}.`),
      h('table', { class: 'list', 'aria-label': 'Holders' },
        h('thead', {}, h('tr', {}, heads, may && h('td'))),
        h('tbody', {}, holders.map(row))));
  }

  /** How long the lease of a holder lasts and has lasted, each second. */
  clocks(holder, i) {
    const [left, age] = [h('span'), h('span')];
    const since = Date.parse(holder.acquired_at);
    this.ticking.push(() => {
      left.textContent = span(this.ends[i] - performance.now() + 500);
      age.textContent = span(Date.now() - since);
    });
    return { left, age };
  }

  mayBreak() {
    return session.glance.breaks && session.may('locks', 'break', this.name);
  }

  holder(lock) {
    const { left, age } = this.clocks(lock, 0);
    return h('div', { class: 'holder' },
      h('p', { class: 'big' }, ownerOf(lock)),
      brokenNote(lock),
      facts([
        ['Time left', left],
        ['Held for', age],
        ['Since', new Date(lock.acquired_at).toLocaleString()],
        ['Fencing token', String(lock.fencing_token)],
        ['Mode', lock.mode ?? 'exclusive'],
      ]));
  }

  /** The button to break the one lease, where there is one and the user may. */
  offer(holder) {
    const buttons = holder && this.mayBreak() && h('div', { class: 'buttons' },
      h('button', { type: 'button', class: 'second', onclick: () => this.ask(holder) }, 'Break the lease…'));
    this.parts.act.replaceChildren(...[buttons].filter(Boolean));
  }

  ask(holder) {
    openBreak(this.name, holder, async (body) => {
      const done = await call('POST', lockPath(this.name, '/break'), body);
      say(`The lease is broken, and ends in ${span(done.ends_in_ms)} at the latest.`);
      this.look();
    });
  }

  drawQueue(queue) {
    if (queue instanceof Error) {
      const text = queue.code === 'not-supported' ? 'This store keeps no queue: clients wait in no order.' : queue.message;
      return this.parts.queue.replaceChildren(h('p', { class: 'note wait' }, text));
    }
    const row = (waiter) => h('li', {}, h('b', {}, ownerOf(waiter)), ' ', since(waiter),
      `${waiter.mode ? `, ${waiter.mode}` : ''}${waiter.limit ? `, at most ${waiter.limit} together` : ''}`);
    const { waiting } = queue;
    this.parts.queue.replaceChildren(
      waiting.length ? h('ol', { class: 'queue' }, waiting.map(row)) : h('p', { class: 'empty' }, 'No client waits.'));
  }

  drawHistory(history) {
    if (history instanceof Error) {
      return this.parts.history.replaceChildren(h('p', { class: 'note wait' }, history.message));
    }
    const ends = history.ends.toReversed();
    this.parts.history.replaceChildren(
      ends.length ? h('ul', { class: 'ends' }, ends.map(endRow)) : h('p', { class: 'empty' }, 'No earlier grant is remembered.'),
      h('p', { class: 'hint' }, 'Breaks and expiries come from the store; releases only from this instance, which started ', moment(history.releases_since), '.'));
  }

  tick() {
    if (session.lostAt !== null) return;
    for (const tick of this.ticking) tick();
  }
}

function ownerOf({ owner }) {
  return owner ?? 'a client without a label';
}

function brokenNote({ broken }) {
  return broken && h('p', { class: 'note bad' }, `Broken${broken.by ? ` by ${broken.by}` : ''}: ${broken.reason}`);
}

/** For how long a client has waited; the moment since when shows on a longer look. */
function since(waiter) {
  const began = new Date(Date.now() - waiter.waiting_for_ms);
  return h('time', { datetime: began.toISOString(), title: `since ${began.toLocaleString()}` }, `for ${span(waiter.waiting_for_ms)}`);
}

const BADGES = { broken: 'bad', expired: 'wait', released: 'good' };

/** How one grant ended. */
function endRow(end) {
  const held = Date.parse(end.ended_at) - Date.parse(end.acquired_at);
  return h('li', {},
    h('span', { class: `badge ${BADGES[end.how] ?? ''}` }, end.how), ' ',
    h('b', {}, ownerOf(end)), ' ', moment(end.ended_at),
    h('span', { class: 'detail' },
      ` held for ${held < 1000 ? `${Math.max(0, held)} ms` : span(held)} since ${new Date(end.acquired_at).toLocaleString()}, fencing token ${end.fencing_token}${end.by ? `, by ${end.by}` : ''}`),
    end.reason && h('div', {}, end.reason));
}

/** Asks for a reason, and then whether that is meant. */
function openBreak(name, holder, send) {
  const reason = h('input', { type: 'text', id: 'reason', required: true, maxlength: 256, autocomplete: 'off' });
  const by = h('input', { type: 'text', id: 'by', maxlength: 200, autocomplete: 'off' });
  const soon = h('input', { type: 'checkbox', id: 'at-once' });
  const note = h('p', { class: 'note bad', role: 'alert' });
  const button = h('button', { class: 'danger' }, 'Break the lease');
  const owner = ownerOf(holder);
  let isSure = false;
  const submit = async (event) => {
    event.preventDefault();
    if (!isSure) {
      isSure = true;
      note.textContent = `${owner} loses ${name}, and may still be at work. Press again if that is meant.`;
      button.textContent = 'Yes, break it';
      return;
    }
    const body = { reason: reason.value, fencing_token: holder.fencing_token };
    if (holder.slot !== undefined) body.slot = holder.slot;
    if (by.value) body.by = by.value;
    if (soon.checked) body.grace_ms = 0;
    try {
      await send(body);
      dialog.close();
    } catch (refusal) {
      note.textContent = refusal.message;
    }
  };
  const dialog = openDialog(`Break the lease of ${owner}?`, submit,
    h('p', { class: 'hint' }, 'The holder can no longer renew, and gets your reason. It keeps the lock until the lease expires.'),
    h('label', { class: 'field' }, 'Why (the holder and the history show it)', reason),
    h('label', { class: 'field' }, session.glance.identity ? `Your name, besides ${session.glance.identity} (optional)` : 'Your name (optional)', by),
    h('label', { class: 'field check' }, soon, ' End it now (the holder may still be working)'),
    note,
    h('div', { class: 'buttons' }, button,
      h('button', { type: 'button', class: 'second', onclick: () => dialog.close() }, 'Keep it')));
}
