// One key: how its record stands, why its outcome is unknown, what its response was; and the settling.

import { call, curl } from './api.js';
import { commands, facts, freeze, h, moment, span } from './dom.js';
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
  let [isGone, lostAt] = [false, null];
  const read = async () => {
    let found;
    try {
      found = await call('GET', `/console/keys/${encodeURIComponent(key)}?${scopeOf(record)}`);
    } catch (refusal) {
      found = refusal;
    }
    if (isGone) return;
    lostAt = found.status === 0 && found instanceof Error ? lostAt ?? Date.now() : null;
    freeze(view, note, lostAt);
    if (lostAt !== null) return;
    note.textContent = '';
    if (found instanceof Error) {
      const isFree = found.code === 'no-record';
      state.replaceChildren(h('p', { class: `note ${isFree ? 'good' : 'bad'}` }, isFree ? 'There is no record of this key: the next request under it runs.' : found.message));
      act.replaceChildren();
      answer.replaceChildren();
      return;
    }
    state.replaceChildren(...stateOf(record, found));
    answer.replaceChildren(answerOf(found));
    offer(act, { ...record, ...found }, read);
  };
  read();
  const timer = setInterval(() => document.hidden || read(), PERIOD);
  return () => {
    isGone = true;
    clearInterval(timer);
  };
}

function stateOf(record, found) {
  const since = found.ended_at && Date.now() - Date.parse(found.ended_at);
  return [
    h('p', { class: 'big' }, requestOf(record), ' ', h('span', { class: `badge ${KINDS[found.state] ?? ''}` }, found.state)),
    found.state === 'unknown' && h('p', { class: 'note bad' },
      `It is not known whether this was done: ${reasonOf(found)}. It does not run again before it is settled. `,
      h('a', { href: problemOf(found) }, 'What clients get')),
    facts([
      ['User', record.principal || 'none'],
      ['Attempts', String(found.attempts)],
      ['Fencing token of the last run', String(found.fencing_token)],
      ['Begun', moment(found.begun_at)],
      [found.state === 'done' ? 'Done' : 'Unknown since', moment(found.ended_at)],
      ['For', found.state === 'unknown' && since ? span(since) : ''],
      ['The lease of the run ends in', found.lease_expires_in_ms === undefined ? '' : span(found.lease_expires_in_ms)],
      ['The key is remembered for', span(found.expires_in_ms)],
    ]),
  ].filter(Boolean);
}

/** The status and the headers of the response. The body may be anything, and is for the client alone. */
function answerOf({ status, headers, answer_kept, settled }) {
  if (status === undefined) return '';
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
