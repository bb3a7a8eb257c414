// Elements. What clients wrote becomes text and attributes, and is never read as HTML.

import { session } from './api.js';

const SVG = 'http://www.w3.org/2000/svg';

/** An element with these attributes and children. `on…` is a listener; null and false leave an attribute out. */
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** The same for SVG. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? '' : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Writes a text where it is another one, so that nothing is drawn for nothing. */
export function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Puts other children into a place. What had the focus has it again, by its address or its label. */
export function redraw(place, ...children) {
  const focused = place.contains(document.activeElement) ? labelOf(document.activeElement) : null;
  place.replaceChildren(...children);
  if (focused === null) return;
  const all = [...place.querySelectorAll('a, button, input, summary')];
  all.find((element) => labelOf(element) === focused)?.focus({ preventScroll: true });
}

function labelOf(element) {
  return `${element.tagName} ${element.getAttribute('href') ?? element.getAttribute('aria-label') ?? element.textContent}`;
}

/** Has screen readers say it. */
export function say(text) {
  document.getElementById('said').textContent = text;
}

/** A list of names and values; a value may be an element. */
export function facts(pairs) {
  const shown = pairs.filter(([, value]) => value !== null && value !== undefined && value !== '' && value !== false);
  return h('dl', { class: 'facts' }, shown.map(([name, value]) => h('div', {}, h('dt', {}, name), h('dd', {}, value))));
}

/** The commands for what a page shows, one above the other. */
export function commands(list) {
  return h('details', { class: 'commands' },
    h('summary', {}, 'Do this with curl'),
    list.map(([title, command]) => h('div', {},
      h('p', { class: 'hint' }, title),
      h('pre', { tabindex: 0 }, h('code', {}, command)),
      copyButton(command))));
}

export function copyButton(text) {
  return h('button', { type: 'button', class: 'second small', onclick: () => copy(text) }, 'Copy');
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    say('Copied.');
  } catch {
    say('This page may not copy: select the command.');
  }
}

/** Freezes what a view shows while the service is gone or refuses a look, and says so; gives whether it does. */
export function freeze(view, note, refusal) {
  const { lostAt } = session;
  const lost = lostAt && `Connection lost at ${new Date(lostAt).toLocaleTimeString()}. This was the state then.`;
  const text = lost || refusal?.message;
  view.classList.toggle('frozen', Boolean(text));
  note.className = 'note bad';
  write(note, text || '');
  return Boolean(text);
}

/** Asks now and every `period` while the page is seen, and shows what came: the response or a refusal. */
export function poll(period, ask, show) {
  let isGone = false;
  const look = async () => {
    const found = await ask().catch((refusal) => refusal);
    if (!isGone) show(found);
  };
  const timer = setInterval(() => document.hidden || look(), period);
  const stop = () => {
    isGone = true;
    clearInterval(timer);
  };
  return { look, stop };
}

/**
 * The heads of a table that sorts by its columns. A column has a text, what it sorts by, and 1 or -1 for whether the least or
 * the most comes first; `choice` has the column that counts, and whether it is reversed.
 */
export function sortHeads(columns, choice, changed) {
  const heads = columns.map(([text]) => {
    const press = () => {
      Object.assign(choice, { reversed: choice.sort === text && !choice.reversed, sort: text });
      mark();
      changed();
    };
    return h('th', { scope: 'col' }, h('button', { type: 'button', class: 'sort', onclick: press }, text));
  });
  const mark = () => heads.forEach((head, i) => {
    const [text, , first] = columns[i];
    const order = (first > 0) === choice.reversed ? 'descending' : 'ascending';
    head.setAttribute('aria-sort', choice.sort === text ? order : 'none');
  });
  mark();
  return heads;
}

/** The rows in the order that the heads say. */
export function sorted(rows, columns, { sort, reversed }) {
  const [, of, first] = columns.find(([text]) => text === sort);
  const sign = reversed ? -first : first;
  return rows.toSorted((one, other) => (of(one) < of(other) ? -sign : of(one) > of(other) ? sign : 0));
}

/** A field to search with: `changed` gets its text once the user pauses. */
export function search(id, value, changed) {
  let timer = 0;
  const field = h('input', {
    type: 'search', id, value, autocomplete: 'off', spellcheck: 'false',
    oninput: () => {
      clearTimeout(timer);
      timer = setTimeout(() => changed(field.value), 200);
    },
  });
  return field;
}

/** Opens a dialog with a form below this heading, and gives it. */
export function openDialog(heading, onsubmit, ...children) {
  const dialog = h('dialog', { 'aria-labelledby': 'dialog-title', onclose: () => dialog.remove() },
    h('form', { method: 'dialog', onsubmit }, h('h2', { id: 'dialog-title' }, heading), children));
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

const UNITS = [[86400, 'd'], [3600, 'h'], [60, 'min'], [1, 's']];

/** A span of time for people: its largest units. */
export function span(ms, units = 2) {
  let seconds = Math.max(0, Math.floor(ms / 1000));
  const parts = [];
  for (const [size, unit] of UNITS) {
    const count = Math.floor(seconds / size);
    if (count > 0) parts.push(`${count} ${unit}`);
    seconds -= count * size;
  }
  return parts.slice(0, units).join(' ') || '0 s';
}

/** A moment as people say it, or nothing. A longer look shows it exactly. */
export function moment(text) {
  const at = Date.parse(text ?? '');
  if (Number.isNaN(at)) return '';
  const ago = Date.now() - at;
  // The clocks of the service and of this machine differ a little.
  const words = Math.abs(ago) < 2000 ? 'just now' : ago > 0 ? `${span(ago, 1)} ago` : `in ${span(-ago, 1)}`;
  return h('time', { datetime: text, title: new Date(at).toLocaleString() }, words);
}

export function count(number) {
  return number.toLocaleString('en');
}
