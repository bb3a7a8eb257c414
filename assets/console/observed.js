// What enforcing would have changed, for each guard that only observes.

import { curl, look, session } from './api.js';
import { commands, freeze, h, poll } from './dom.js';

const PERIOD = 5000;

export const title = 'Observed';

export function show(view) {
  const [note, list] = [h('p', { class: 'note' }), h('section')];
  view.append(
    h('h1', { tabindex: -1 }, title),
    h('p', { class: 'lead' }, 'A guard with mode = "observe" passes every request on and refuses nothing. This is what it would have done, of the requests that this instance has seen.'),
    note, list,
    commands([['The same, for a script', curl('GET', '/v1/info')]]));
  draw(list);
  return poll(PERIOD, look, (found) => freeze(view, note, found instanceof Error && found) || draw(list)).stop;
}

function draw(list) {
  const guards = Object.entries(session.glance.observed);
  const row = ([guard, words]) => h('tr', {}, h('th', { scope: 'row' }, guard), h('td', { 'data-label': 'Enforcing would have changed', class: 'words' }, words));
  list.replaceChildren(guards.length === 0
    ? h('p', { class: 'empty' }, 'No guard observes. Set mode = "observe" in a [[guard]] to see here what it would do.')
    : h('table', { class: 'list', 'aria-label': title },
      h('thead', {}, h('tr', {}, ['Guard', 'Enforcing would have changed'].map((text) => h('th', { scope: 'col' }, text)))),
      h('tbody', {}, guards.map(row))));
}
