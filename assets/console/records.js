// Records of idempotency keys: how the service names them, and how an unknown outcome is settled.

import { call, service, session } from './api.js';
import { h, openDialog, say } from './dom.js';

export const STATES = { unknown: 'Unknown', 'in-flight': 'In flight', done: 'Done' };

/** What a reason means, for people. */
const REASONS = {
  interrupted: 'the run was cut off',
  failed: 'the upstream responded with an error',
  panicked: 'the run failed',
  'no-answer': 'the upstream did not respond',
};

export function reasonOf({ reason, status }) {
  if (reason === 'failed' && status) return `the upstream responded with ${status}`;
  return reason ? REASONS[reason] ?? reason : '';
}

/** The page of the problem that a request with this key gets. */
export function problemOf({ state }) {
  return `${service}/problems/${state === 'unknown' ? 'outcome-unknown' : 'request-in-progress'}`;
}

/** The part of a URL that names the record. An identity's own keys have its name as their principal. */
export function scopeOf({ method, path, principal }) {
  return new URLSearchParams({ method: method ?? '', path: path ?? '', principal: principal ?? '' }).toString();
}

export function recordPath(record, rest = '') {
  return `/v1/idempotency/${encodeURIComponent(record.key)}${rest}?${scopeOf(record)}`;
}

/** The address of the record's view. */
export function viewOf(record) {
  return `#/keys/${encodeURIComponent(record.key)}?${scopeOf(record)}`;
}

export function requestOf({ method, path }) {
  return [method, path].filter(Boolean).join(' ') || 'a call of /v1/idempotency';
}

export function maySettle({ key }) {
  return session.may('keys', 'resolve', key);
}

/** How many are settled at a time. */
const AT_ONCE = 4;

/** Settles the records one after the other, and says how far it is; gives those that were refused. */
async function settleAll(records, body, progress) {
  const [waiting, refused] = [[...records], []];
  let done = 0;
  const work = async () => {
    for (let record = waiting.shift(); record; record = waiting.shift()) {
      try {
        await call('POST', recordPath(record, '/resolve'), { ...body, fencing_token: record.fencing_token });
      } catch (refusal) {
        refused.push({ record, refusal });
      }
      done += 1;
      progress(done);
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, work));
  return refused;
}

/** Asks what happened to the records, and writes it down. `done` is called once some are settled. */
export function settleDialog(records, done) {
  const many = records.length > 1;
  const radio = (value, text) => h('label', { class: 'field check' },
    h('input', { type: 'radio', name: 'outcome', value, required: true, onchange: () => { answer.hidden = form.elements.outcome.value !== 'completed'; } }), ` ${text}`);
  const status = h('input', { type: 'number', id: 'status', min: 200, max: 599, value: 200 });
  const body = h('textarea', { id: 'body', rows: 3, spellcheck: 'false' });
  const answer = h('div', { hidden: true },
    h('label', { class: 'field' }, 'HTTP status of the response that retries get', status),
    h('label', { class: 'field' }, 'Its body: JSON or text (if there is one)', body));
  const reason = h('input', { type: 'text', id: 'reason', required: true, maxlength: 256, autocomplete: 'off' });
  const by = h('input', { type: 'text', id: 'by', maxlength: 200, autocomplete: 'off' });
  const note = h('p', { class: 'note bad', role: 'alert' });
  const button = h('button', {}, many ? `Settle ${records.length} keys` : 'Settle it');
  const submit = async (event) => {
    event.preventDefault();
    button.disabled = true;
    const request = { outcome: form.elements.outcome.value, reason: reason.value };
    if (by.value) request.by = by.value;
    if (request.outcome === 'completed') request.answer = answerOf(Number(status.value), body.value);
    const refused = await settleAll(records, request, (count) => { button.textContent = `${count} of ${records.length}`; });
    const settled = records.length - refused.length;
    say(`${settled} settled, ${refused.length} refused.`);
    if (refused.length === 0) dialog.close();
    button.disabled = false;
    button.textContent = 'Try again';
    note.textContent = refused.length ? `${settled} settled, ${refused.length} not. ${refused[0].record.key}: ${refused[0].refusal.message}` : '';
    if (settled) done();
  };
  const dialog = openDialog(many ? `What happened to these ${records.length} requests?` : 'What happened to the request?', submit,
    h('p', { class: 'hint' }, 'Find out first: ask the upstream, or the bank. Retries get what you say here.'),
    h('fieldset', {}, h('legend', { class: 'unseen' }, 'What happened'),
      radio('not-executed', 'It did not happen. The key is free, and the next request runs.'),
      radio('completed', 'It succeeded. Retries get the response below, and nothing runs.')),
    answer,
    h('label', { class: 'field' }, 'How you found out', reason),
    h('label', { class: 'field' }, session.glance.identity ? `Your name, besides ${session.glance.identity} (optional)` : 'Your name (optional)', by),
    note,
    h('div', { class: 'buttons' }, button,
      h('button', { type: 'button', class: 'second', onclick: () => dialog.close() }, 'Cancel')));
  const form = dialog.firstChild;
}

function answerOf(status, text) {
  if (!text.trim()) return { status };
  try {
    return { status, json: JSON.parse(text) };
  } catch {
    return { status, headers: { 'Content-Type': 'text/plain; charset=utf-8' }, body: text };
  }
}
