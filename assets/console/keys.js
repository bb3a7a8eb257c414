// The keys by state: first those that need a person, oldest first; and the settling of many at once.

import { call, curl, session } from './api.js';
import { commands, count, freeze, h, moment, redraw, search, sortHeads, sorted, write } from './dom.js';
import { STATES, maySettle, reasonOf, recordPath, requestOf, settleDialog, viewOf } from './records.js';

/** How many rows the table has until the user wants more. */
const PAGE = 200;
/** How many unknown outcomes are read, so that the oldest are the first of all. */
const UNKNOWN_MAX = 5000;
/** How many requests a look makes at most: a search may find little in each. */
const REQUESTS = 50;
/** How often the list is read again while no row is selected. */
const PERIOD = 5000;

/** What each column sorts by, and whether the least or the most comes first. */
const COLUMNS = [
  ['Key', (record) => record.key, 1],
  ['Request', requestOf, 1],
  ['User', (record) => record.principal, 1],
  ['Attempts', (record) => record.attempts, -1],
  ['When', (record) => Date.parse(record.ended_at ?? record.begun_at ?? '') || 0, 1],
  ['Result', endOf, 1],
];

/** What the user chose, kept while other views are shown. */
const choice = { state: 'unknown', key: '', prefix: '', sort: 'When', reversed: false };

export const title = 'Keys';

export function show(view) {
  if (!session.glance.records || session.readable('keys') === null) {
    const why = session.glance.records ? 'You may not read keys.' : 'This store keeps no records of idempotency keys.';
    view.append(h('h1', { tabindex: -1 }, title), h('p', { class: 'note wait' }, why));
    return () => {};
  }
  const list = new List();
  view.append(h('h1', { tabindex: -1 }, title), list.controls(), list.element, list.shell);
  list.read();
  const timer = setInterval(() => list.isIdle() && list.read(), PERIOD);
  return () => {
    clearInterval(timer);
    list.isGone = true;
  };
}

/** The path of the list of what the user chose. */
function listPath(limit, cursor) {
  const query = new URLSearchParams({ state: choice.state, limit });
  if (choice.key) query.set('key_prefix', choice.key);
  if (choice.prefix) query.set('prefix', choice.prefix);
  if (cursor) query.set('cursor', cursor);
  return `/v1/idempotency?${query}`;
}

function canSettle(record) {
  return record.is_whole && maySettle(record);
}

function endOf(record) {
  return record.state === 'done' ? `status ${record.status}` : reasonOf(record);
}

/** A record whose scope is not known as a whole has no address. */
function nameOf(record) {
  if (record.is_whole) return h('a', { href: viewOf(record) }, record.key);
  return `${record.key} (its path is too long to find it by)`;
}

class List {
  /** What was read, the oldest first; and how many rows of it the table has. */
  records = [];
  rows = PAGE;
  selected = new Set();
  cursor = null;
  hidden = 0;
  reads = 0;
  isGone = false;

  constructor() {
    this.body = h('tbody');
    this.status = h('p', { class: 'hint', id: 'keys-status' });
    this.note = h('p', { class: 'note bad' });
    this.all = h('input', { type: 'checkbox', onchange: () => this.selectAll(this.all.checked) });
    this.selector = h('label', { class: 'select-all' }, this.all, 'Select all that are shown');
    this.settle = h('button', { type: 'button', onclick: () => this.settleSelected() });
    this.more = h('button', { type: 'button', class: 'second small', onclick: () => this.showMore() }, 'Show more');
    this.bar = h('div', { class: 'buttons' }, this.settle, this.more);
    this.shell = h('div');
    const heads = sortHeads(COLUMNS, choice, () => this.draw());
    this.element = h('section', {}, this.note, this.status, this.selector,
      h('table', { class: 'list', 'aria-label': 'Keys', 'aria-describedby': 'keys-status' },
        h('thead', {}, h('tr', {}, h('td'), heads)),
        this.body),
      this.bar);
  }

  controls() {
    const tab = ([state, text]) => h('label', { class: 'check' },
      h('input', { type: 'radio', name: 'state', value: state, checked: state === choice.state, onchange: () => this.choose({ state }) }), ` ${text}`);
    return h('form', { class: 'controls', onsubmit: (event) => event.preventDefault() },
      h('fieldset', { class: 'states' }, h('legend', {}, 'Status'), Object.entries(STATES).map(tab)),
      h('label', {}, 'Keys that begin with', search('key-prefix', choice.key, (key) => this.choose({ key }))),
      h('label', {}, 'Paths that begin with', search('path-prefix', choice.prefix, (prefix) => this.choose({ prefix }))));
  }

  choose(change) {
    if (this.isGone) return;
    Object.assign(choice, change);
    this.selected.clear();
    Object.assign(this, { records: [], rows: PAGE });
    this.read();
  }

  showMore() {
    this.rows += PAGE;
    if (this.cursor) this.read(true);
    else this.draw();
  }

  /** Whether reading again takes nothing away from a user who is at work. */
  isIdle() {
    return !document.hidden && this.selected.size === 0 && this.rows === PAGE && this.records.length <= PAGE && !document.querySelector('dialog');
  }

  async read(isMore = false) {
    this.reads += 1;
    const read = this.reads;
    const [limit, wanted] = choice.state === 'unknown' ? [1000, UNKNOWN_MAX] : [PAGE, this.rows];
    let refusal = null;
    try {
      let records = isMore ? this.records : [];
      let cursor = isMore ? this.cursor : null;
      let hidden = isMore ? this.hidden : 0;
      // A page may have fewer than asked for, or none, although more follow.
      for (let requests = 0; requests === 0 || (cursor && records.length < wanted && requests < REQUESTS); requests += 1) {
        const page = await call('GET', listPath(limit, cursor));
        if (read !== this.reads || this.isGone) return;
        records = [...records, ...page.records];
        cursor = page.next_cursor ?? null;
        hidden += page.hidden ?? 0;
      }
      Object.assign(this, { records, cursor, hidden });
    } catch (caught) {
      refusal = caught;
    }
    if (read === this.reads && !this.isGone && !freeze(this.element, this.note, refusal)) this.draw();
  }

  /** The records that the table shows. */
  shown() {
    return sorted(this.records, COLUMNS, choice).slice(0, this.rows);
  }

  draw() {
    const isUnknown = choice.state === 'unknown';
    const records = this.shown();
    redraw(this.body, ...records.map((record) => this.row(record)));
    const others = this.hidden ? ` ${count(this.hidden)} more that you may not read.` : '';
    write(this.status, this.summary(records.length, isUnknown && !others) + others);
    this.more.hidden = !this.cursor && records.length === this.records.length;
    this.drawCommand(curl('GET', listPath(100)));
    this.drawSelection();
  }

  /** How many are shown of how many. Only of a list that was read as a whole is it known which are the oldest. */
  summary(shown, isAllOfUnknown) {
    const isSearch = choice.key || choice.prefix;
    if (shown === 0 && this.cursor) return 'None is found yet.';
    if (shown === 0 && isAllOfUnknown && !isSearch) return 'No outcome is unknown. Nothing needs you.';
    if (shown === 0) return isSearch ? 'There is none. Type less of the beginning, or choose another status.' : 'There is none. Choose another status.';
    if (this.cursor) return `${count(shown)} and more shown, in no order.`;
    const all = shown < this.records.length ? ` of ${count(this.records.length)}` : '';
    const order = choice.sort === 'When' && !choice.reversed ? ', the oldest first' : '';
    return `${count(shown)}${all} shown${order}.`;
  }

  /** The command changes with what the user chooses, and is left alone otherwise: it may be open. */
  drawCommand(command) {
    if (this.command === command) return;
    this.command = command;
    this.shell.replaceChildren(commands([['This list', command]]));
  }

  row(record) {
    const cell = (label, ...children) => h('td', { 'data-label': label }, ...children);
    const box = choice.state === 'unknown' && canSettle(record) && h('input', {
      type: 'checkbox', 'aria-label': `Select ${record.key}`, checked: this.isSelected(record),
      onchange: ({ target }) => this.select(record, target.checked),
    });
    return h('tr', {},
      h('td', {}, box),
      h('th', { scope: 'row' }, nameOf(record)),
      h('td', { 'data-label': 'Request', class: 'words' }, requestOf(record)),
      cell('User', record.principal || '–'),
      cell('Attempts', String(record.attempts)),
      cell('When', moment(record.ended_at ?? record.begun_at)),
      h('td', { 'data-label': 'Result', class: 'words' }, endOf(record) || '–'));
  }

  isSelected(record) {
    return this.selected.has(recordPath(record));
  }

  select(record, isSelected) {
    if (isSelected) this.selected.add(recordPath(record));
    else this.selected.delete(recordPath(record));
    this.drawSelection();
  }

  selectAll(isSelected) {
    this.selected.clear();
    for (const record of isSelected ? this.shown().filter(canSettle) : []) this.selected.add(recordPath(record));
    for (const box of this.body.querySelectorAll('input')) box.checked = isSelected;
    this.drawSelection();
  }

  drawSelection() {
    const size = this.selected.size;
    this.selector.hidden = choice.state !== 'unknown' || !this.body.querySelector('input');
    this.all.checked = size > 0 && size === this.body.querySelectorAll('input').length;
    this.settle.hidden = size === 0;
    write(this.settle, `Settle the ${size === 1 ? 'key that is' : `${count(size)} keys that are`} selected…`);
  }

  settleSelected() {
    const records = this.records.filter((record) => this.isSelected(record));
    settleDialog(records, () => {
      this.selected.clear();
      this.read();
    });
  }
}
