// The held locks, live. The page draws the rows of one page of the list and no others.

import { curl, session } from './api.js';
import { commands, count, freeze, h, search, sortHeads, sorted, span, write } from './dom.js';
import * as feed from './feed.js';

const ROWS = 50;
/** What each column sorts by, and whether the least or the most comes first. */
const COLUMNS = [
  ['Lock', (lock) => lock.name, 1],
  ['Holder', (lock) => lock.owners[0], 1],
  ['Time left', (lock) => lock.ends, 1],
  ['Held for', (lock) => -lock.since, -1],
  ['Queue', (lock) => lock.waiting, -1],
];

/** What the user chose, kept while other views are shown. */
const choice = { prefix: null, sort: 'Held for', reversed: false, page: 0, paused: false };

export const title = 'Locks';

export function show(view) {
  choice.prefix ??= session.readable('locks');
  if (choice.prefix === null) {
    view.append(h('h1', { tabindex: -1 }, title), h('p', { class: 'note wait' }, 'You may not read locks.'));
    return () => {};
  }
  const list = new List();
  view.append(h('h1', { tabindex: -1 }, title), list.controls(), list.element, commands([
    ['The held locks', curl('GET', `/v1/locks?prefix=${encodeURIComponent(choice.prefix)}`)],
    ['The same, and what changes, as it happens', curl('GET', `/console/locks?prefix=${encodeURIComponent(choice.prefix)}`).replace('curl', 'curl -N')],
    ['What happens to one lock, as it happens', curl('GET', '/v1/locks/NAME/events')],
  ]));
  feed.follow(choice.prefix);
  list.draw();
  const forget = feed.listen(() => list.schedule());
  const timer = setInterval(() => list.tick(), 1000);
  return () => {
    forget();
    clearInterval(timer);
    list.isGone = true;
  };
}

/** The table and what is around it. */
class List {
  rows = new Map();
  isScheduled = false;
  isGone = false;
  invited = null;

  constructor() {
    this.body = h('tbody');
    this.status = h('p', { class: 'hint', id: 'locks-status' });
    this.note = h('p', { class: 'note' });
    this.empty = h('div', { class: 'empty' });
    this.previous = h('button', { type: 'button', class: 'second small', onclick: () => this.turn(-1) }, 'Previous');
    this.next = h('button', { type: 'button', class: 'second small', onclick: () => this.turn(1) }, 'Next');
    const heads = sortHeads(COLUMNS, choice, () => this.choose({ page: 0 }));
    this.element = h('section', {},
      this.note, this.status,
      this.empty,
      h('table', { class: 'list', 'aria-label': 'Held locks', 'aria-describedby': 'locks-status' }, h('thead', {}, h('tr', {}, heads)), this.body),
      h('div', { class: 'buttons' }, this.previous, this.next));
  }

  controls() {
    const prefix = search('prefix', choice.prefix, (text) => this.filter(text));
    const pause = h('input', { type: 'checkbox', id: 'pause', checked: choice.paused, onchange: () => this.choose({ paused: pause.checked }) });
    return h('form', { class: 'controls', onsubmit: (event) => { event.preventDefault(); this.filter(prefix.value); } },
      h('label', {}, 'Names that begin with ', prefix),
      h('label', { class: 'check' }, pause, ' Pause'));
  }

  filter(prefix) {
    if (this.isGone || prefix === choice.prefix) return;
    this.choose({ prefix, page: 0 });
    feed.follow(prefix);
  }

  turn(pages) {
    this.choose({ page: choice.page + pages });
  }

  choose(change) {
    Object.assign(choice, change);
    this.draw();
  }

  /** Changes come in batches; each is drawn once. */
  schedule() {
    if (this.isScheduled || choice.paused) return;
    this.isScheduled = true;
    requestAnimationFrame(() => {
      this.isScheduled = false;
      if (!this.isGone && !choice.paused) this.draw();
    });
  }

  draw() {
    const all = sorted([...feed.locks.values()], COLUMNS, choice);
    const pages = Math.max(1, Math.ceil(all.length / ROWS));
    choice.page = Math.min(Math.max(0, choice.page), pages - 1);
    const from = choice.page * ROWS;
    this.place(all.slice(from, from + ROWS));
    const shown = all.length > ROWS ? `, ${count(from + 1)} to ${count(Math.min(from + ROWS, all.length))} shown` : '';
    write(this.status, feed.state.is === 'connecting' && !all.length ? 'Connecting…' : `${feed.held()} held${shown}`);
    this.invite(all.length === 0 && feed.state.is === 'live');
    this.previous.disabled = choice.page === 0;
    this.next.disabled = choice.page >= pages - 1;
    this.previous.parentElement.hidden = pages === 1;
    this.warn();
  }

  /** What to type where there is nothing to see. */
  invite(isEmpty) {
    this.element.querySelector('table').hidden = isEmpty;
    const invited = isEmpty ? choice.prefix : null;
    if (invited === this.invited) return;
    this.invited = invited;
    const command = curl('POST', '/v1/locks/deploy', { owner: 'me', ttl_ms: 60000 });
    this.empty.replaceChildren(...(isEmpty ? [
      h('p', {}, choice.prefix ? `No lock whose name begins with “${choice.prefix}” is held.` : 'No lock is held. Take one, and it is here within a second:'),
      !choice.prefix && h('pre', { tabindex: 0 }, h('code', {}, command)),
    ].filter(Boolean) : []));
  }

  warn() {
    const { is, more, refusal } = feed.state;
    if (freeze(this.element, this.note, refusal)) return;
    this.note.className = 'note wait';
    write(this.note, is === 'trouble' ? 'The store does not respond: what is shown may be old.'
      : more ? 'There are more locks than this page shows: type the beginning of a name.' : '');
  }

  /** Puts the rows of these locks into the table, and leaves alone what is there already. */
  place(locks) {
    const focused = document.activeElement;
    const before = this.rows;
    this.rows = new Map(locks.map((lock) => [lock.name, before.get(lock.name) ?? new Row(lock.name)]));
    for (const [name, row] of before) if (!this.rows.has(name)) row.element.remove();
    let i = 0;
    for (const lock of locks) {
      const row = this.rows.get(lock.name);
      const there = this.body.children[i];
      if (there !== row.element) this.body.insertBefore(row.element, there ?? null);
      row.draw(lock);
      i += 1;
    }
    // A row that moved takes the focus along.
    if (focused !== document.activeElement && focused?.isConnected) focused.focus({ preventScroll: true });
  }

  tick() {
    if (session.lostAt !== null) return;
    for (const row of this.rows.values()) row.tick();
  }
}

class Row {
  constructor(name) {
    const cell = (label, ...children) => h('td', { 'data-label': label }, ...children);
    this.owner = h('span', { class: 'owner' });
    this.mark = h('span', { class: 'badge' });
    this.inner = h('span');
    this.left = h('span', { class: 'left' });
    this.age = h('span');
    this.waiting = h('span');
    this.element = h('tr', {},
      h('th', { scope: 'row' }, h('a', { href: `#/locks/${encodeURIComponent(name)}` }, name)),
      h('td', { 'data-label': 'Holder', class: 'words' }, this.owner, ' ', this.mark),
      cell('Time left', h('span', { class: 'bar', 'aria-hidden': 'true' }, this.inner), this.left),
      cell('Held for', this.age),
      cell('Queue', this.waiting));
  }

  draw(lock) {
    this.lock = lock;
    const others = lock.holding > 1 ? ` and ${count(lock.holding - 1)} more` : '';
    write(this.owner, `${lock.owners[0]}${others}`);
    write(this.mark, lock.broken ? 'broken' : lock.shared ? 'shared' : '');
    this.mark.className = `badge ${lock.broken ? 'bad' : ''}`;
    write(this.waiting, lock.waiting ? count(lock.waiting) : '–');
    if (session.lostAt === null) this.tick();
  }

  tick() {
    const left = Math.max(0, this.lock.ends - performance.now());
    write(this.left, span(left + 500));
    this.inner.style.transform = `scaleX(${(left / this.lock.full).toFixed(3)})`;
    this.inner.className = left < 0.15 * this.lock.full ? 'low' : '';
    write(this.age, span(Date.now() - this.lock.since));
  }
}
