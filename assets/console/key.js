// One key: how its record stands, why its outcome is unknown, what its response was; and the settling.

import { call, curl } from './api.js';
import { commands, facts, freeze, h, moment, poll, span } from './dom.js';
import { maySettle, problemOf, reasonOf, recordPath, requestOf, scopeOf, settleDialog } from './records.js';

const PERIOD = 5000;
const KINDS = { unknown: 'bad', 'in-flight': 'wait', done: 'good' };

export const title = 'Key';

export function show(view, key, query) {
  const scope = Object.fromEntries(new URLSearchParams(query ?? ''));
  const record = { key, ...scope };
  const [state, answer, act, note] = [h('div'), h('div'), h('div'), h('p', { class: 'note' })];
  view.append(
    h('p', {}, h('a', { href: '#/keys' }, '‹ All keys')),
    h('h1', { tabindex: -1 }, key),
    note,
    h('section', { 'aria-label': 'The record' }, state, act),
    answer,
    commands([
      ['How the record stands', curl('GET', recordPath(record))],
      ['The same, with the headers of its response', curl('GET', `/console/keys/${encodeURIComponent(key)}?${scopeOf(record)}`)],
      ['It did not happen: the next request runs', curl('POST', recordPath(record, '/resolve'), { outcome: 'not-executed', reason: 'HOW YOU FOUND OUT', by: 'WHO' })],
      ['It succeeded: retries get this response', curl('POST', recordPath(record, '/resolve'), { outcome: 'completed', answer: { status: 201 }, reason: 'HOW YOU FOUND OUT', by: 'WHO' })],
    ]));
  const draw = (found) => {
    const isRefused = found instanceof Error;
    if (freeze(view, note)) return;
    const isFree = found.code === 'no-record';
    state.replaceChildren(...(isRefused
      ? [h('p', { class: `note ${isFree ? 'good' : 'bad'}` }, isFree ? 'There is no record of this key: the next request under it runs.' : found.message)]
      : stateOf(record, found)));
    answer.replaceChildren(answerOf(found));
    offer(act, { ...record, ...found }, looks.look);
  };
  const looks = poll(PERIOD, () => call('GET', `/console/keys/${encodeURIComponent(key)}?${scopeOf(record)}`), draw);
  looks.look();
  return looks.stop;
}

function stateOf(record, found) {
  const isUnknown = found.state === 'unknown';
  return [
    h('p', { class: 'big' }, requestOf(record), ' ', h('span', { class: `badge ${KINDS[found.state] ?? ''}` }, found.state)),
    isUnknown && h('p', { class: 'note bad' },
      `It is not known whether this was done: ${reasonOf(found)}. It does not run again before it is settled.`),
    facts([
      ['User', record.principal || 'none'],
      ['Attempts', String(found.attempts)],
      ['Fencing token of the last run', String(found.fencing_token)],
      ['Begun', moment(found.begun_at)],
      [isUnknown ? 'Unknown since' : 'Done', moment(found.ended_at)],
      ['Status that the upstream gave', isUnknown && found.status ? String(found.status) : ''],
      ['Request id, here and at the upstream', found.request_id],
      ['Problem that clients get', found.state !== 'done' && h('a', { href: problemOf(found) }, problemOf(found).split('/').pop())],
      ['The lease of the run ends in', found.lease_expires_in_ms === undefined ? '' : span(found.lease_expires_in_ms)],
      ['The key is remembered for', span(found.expires_in_ms)],
    ]),
  ].filter(Boolean);
}

/** The status and the headers of the response. The body may be anything, and is for the client alone. */
function answerOf({ state, status, headers, answer_kept, settled }) {
  if (state !== 'done') return '';
  const pairs = Object.entries(headers ?? {}).flatMap(([name, values]) => values.map((value) => [name, value]));
  return h('section', { 'aria-label': 'The response' }, h('h2', {}, 'The response that retries get'),
    settled && h('p', { class: 'note good' }, `Settled by ${settled.by ?? 'an operator'}${settled.reason ? `: ${settled.reason}` : ''}`),
    facts([['Status', String(status)], ['Body', answer_kept ? 'kept' : 'not kept'], ...pairs]));
}

function offer(place, record, done) {
  const may = record.state === 'unknown' && maySettle(record);
  if (may === Boolean(place.firstChild)) return;
  place.replaceChildren(...(may ? [h('div', { class: 'buttons' },
    h('button', { type: 'button', onclick: () => settleDialog([record], done) }, 'Settle it…'))] : []));
}
