// Keys for those who do not want the mouse: `/` searches, `j` and `k` move in a list, `?` says so.

import { h, openDialog } from './dom.js';

const HELP = [
  ['/', 'search in this view'],
  ['j, k', 'next row, previous row'],
  ['Enter', 'open the row'],
  ['?', 'this help'],
  ['Esc', 'close'],
];

export function listenToKeys(view) {
  addEventListener('keydown', (event) => {
    const isTyping = event.target.closest('input, textarea, select, dialog');
    if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
    const act = { '/': () => view.querySelector('[type=search]'), j: () => row(view, 1), k: () => row(view, -1) }[event.key];
    const place = act?.();
    if (event.key === '?') help();
    if (!place) return;
    event.preventDefault();
    place.focus();
  });
}

/** The link of the row that is so many further than the one that has the focus. */
function row(view, step) {
  const links = [...view.querySelectorAll('tbody th a')];
  const at = links.indexOf(document.activeElement);
  return at < 0 ? links[0] : links[Math.min(Math.max(at + step, 0), links.length - 1)];
}

function help() {
  openDialog('Keyboard', null,
    h('dl', { class: 'facts' }, HELP.map(([keys, does]) => h('div', {}, h('dt', {}, h('kbd', {}, keys)), h('dd', {}, does)))),
    h('div', { class: 'buttons' }, h('button', {}, 'Close')));
}
