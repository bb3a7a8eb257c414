// The shop page: buys by `submitOnce`, and shows every attempt beside the orders that came of them.

import { submitOnce } from '/assets/keylatch.js';

const byId = (id) => document.getElementById(id);
const form = byId('buy');
const GOODS = { 1250: 'Bag of beans', 3400: 'Pour-over set', 8900: 'Hand grinder' };
const BADGES = {
  'request-in-progress': 'in progress',
  'idempotency-key-reused': 'key reused',
  'outcome-unknown': 'outcome unknown',
};
const OUTCOMES = { 2: 'placed', 4: 'refused', 5: 'failed' };
const SHOWN = 40;

/** What was tried in this tab, oldest first. It outlives a reload, as the module's key does. */
let attempts = JSON.parse(sessionStorage.getItem('demo:attempts') ?? '[]');
/** What the attempt on its way has sent. */
let sent = null;
let again = 0;

// A cart is an intent. After an unknown outcome alone, the user can start a new one.
form.dataset.intent = sessionStorage.getItem('demo:cart') ?? newCart();

function newCart() {
  const cart = `cart-${Date.now()}`;
  sessionStorage.setItem('demo:cart', cart);
  return cart;
}

/** The key that the module has written down for the cart. */
function keyOfCart() {
  const name = Object.keys(sessionStorage).find(
    (name) => name.startsWith('keylatch:') && name.endsWith(` ${form.dataset.intent}`),
  );
  return name && sessionStorage.getItem(name);
}

/** What the form would send, beside its key. */
function content() {
  const fields = new URLSearchParams(new FormData(form));
  fields.delete('idempotency_key');
  return fields;
}

/** A reload empties the form; this fills it again, so that buying again is the same order. */
function restore() {
  const kept = new URLSearchParams(sessionStorage.getItem('demo:fields') ?? '');
  for (const [name, value] of kept) {
    if (form.elements[name]) form.elements[name].value = value;
  }
}

async function buy(submitter) {
  clearTimeout(again);
  const fields = String(content());
  sessionStorage.setItem('demo:fields', fields);
  const joins = sent === fields;
  const answer = submitOnce(form, submitter);
  const attempt = begin(keyOfCart(), joins);
  // The attempt that has sent the request shows the answer.
  if (joins) return answer.catch(() => {});
  sent ??= fields;
  try {
    await tell(attempt, await answer);
  } catch {
    end(attempt, 'bad', 'no answer');
    say('bad', 'No answer came, so it is not known whether the order was placed. Buy again: it is the same order.');
  } finally {
    if (sent === fields) sent = null;
  }
}

/** Ten requests with one key, past the module, which would send one. */
async function hammer() {
  clearTimeout(again);
  const body = content();
  const key = crypto.getRandomValues(new Uint32Array(4)).join('-');
  const headers = { 'Idempotency-Key': key };
  say('wait', 'Ten requests with one key are on their way.');
  const answers = Array.from({ length: 10 }, async () => {
    const attempt = begin(key, false);
    try {
      const response = await fetch(form.getAttribute('action'), { method: 'POST', headers, body });
      show(attempt, response.status, await problemOf(response), isReplay(response));
      return response.ok;
    } catch {
      end(attempt, 'bad', 'no answer');
      return false;
    }
  });
  const placed = (await Promise.all(answers)).includes(true);
  say(placed ? 'good' : 'bad', placed ? 'One of the ten ran. The others got 409, because it is in progress, or its response.' : 'None was placed.');
  refresh();
}

/** Shows what became of an attempt, and what there is to do about it. */
async function tell(attempt, response) {
  const problem = await problemOf(response);
  show(attempt, response.status, problem, isReplay(response));
  refresh();
  if (response.ok) {
    const order = await response.json();
    return say('good', `Order ${order.id} is placed.${isReplay(response) ? ' This is what the first attempt was answered.' : ''}`);
  }
  if (problem.code === 'request-in-progress') {
    const seconds = Number(response.headers.get('Retry-After')) || 1;
    again = setTimeout(() => buy(), seconds * 1000);
    return say('wait', 'The order is being placed. This page asks again in a moment.');
  }
  if (problem.code === 'idempotency-key-reused') {
    return say('bad', 'You changed the order, and the first one may have been placed: look among the orders. If you want this one too, buy again.');
  }
  if (problem.retry === 'never') {
    byId('stuck').hidden = false;
    return say('bad', `${problem.title}. The shop does not place it again under this key until you settle what happened.`);
  }
  const same = response.status >= 500 || response.status === 429;
  say('bad', `${problem.detail ?? `The shop answered ${response.status}.`} ${same ? 'Buying again is the same order.' : 'Nothing was placed.'}`);
}

/** Frees the key, for a user that knows that the shop has not placed the order. */
async function settle() {
  const url = `/v1/idempotency/${keyOfCart()}/resolve?method=POST&path=/v1/orders`;
  const body = JSON.stringify({ outcome: 'not-executed' });
  const headers = { 'Content-Type': 'application/json' };
  const response = await fetch(url, { method: 'POST', headers, body }).catch(() => null);
  byId('stuck').hidden = Boolean(response?.ok);
  say(response?.ok ? 'good' : 'bad', response?.ok ? 'Settled. Buy again: the shop tries it again under the same key.' : 'That could not be settled.');
}

function newOrder() {
  form.dataset.intent = newCart();
  byId('stuck').hidden = true;
  say('good', 'This is a new order, under a new key.');
}

async function problemOf(response) {
  const is = response.headers.get('Content-Type')?.startsWith('application/problem+json');
  return is ? response.clone().json() : {};
}

function isReplay(response) {
  return response.headers.get('Idempotent-Replayed') === 'true';
}

function begin(key, joins) {
  const number = (attempts.at(-1)?.number ?? 0) + 1;
  const attempt = { number, key, at: Date.now(), amount: new FormData(form).get('amount') };
  attempts = [...attempts, attempt].slice(-SHOWN);
  if (joins) end(attempt, '', 'joined, not sent');
  else end(attempt, 'wait', 'on its way');
  if (!joins) say('wait', 'The order is on its way. Buy again, or reload the page.');
  return attempt;
}

function show(attempt, status, problem, replayed) {
  const what = BADGES[problem.code] ?? problem.code ?? OUTCOMES[Math.floor(status / 100)];
  const kind = status < 300 ? 'good' : problem.code === 'request-in-progress' ? 'wait' : 'bad';
  end(attempt, kind, `${status} ${replayed ? `${what}, replayed` : what}`);
}

function end(attempt, kind, state) {
  Object.assign(attempt, { kind, state });
  sessionStorage.setItem('demo:attempts', JSON.stringify(attempts));
  render();
}

function say(kind, text) {
  byId('answer').className = `note ${kind}`;
  byId('answer').textContent = text;
}

function render() {
  byId('attempts-count').textContent = attempts.at(-1)?.number ?? 0;
  byId('attempts').replaceChildren(...attempts.toReversed().map((attempt) => line(
    `${attempt.number}. ${GOODS[attempt.amount]}`,
    attempt.state,
    attempt.kind,
    `${time(attempt.at)} · key ${attempt.key ? `${attempt.key.slice(0, 10)}…` : 'none'}`,
  )));
}

async function refresh() {
  const response = await fetch('/v1/orders').catch(() => null);
  if (!response?.ok) return;
  const { orders } = await response.json();
  byId('orders-count').textContent = orders.length;
  byId('orders').replaceChildren(...orders.map((order) => line(
    GOODS[order.amount] ?? order.items[0]?.name ?? 'Something',
    `${(order.amount / 100).toFixed(2)} ${order.currency}`,
    '',
    `${time(order.created_at)} · ${order.id}`,
  )));
}

function line(title, badge, kind, detail) {
  const item = document.createElement('li');
  const top = item.appendChild(document.createElement('div'));
  top.className = 'line';
  top.appendChild(document.createElement('span')).textContent = title;
  const mark = top.appendChild(document.createElement('span'));
  mark.className = `badge ${kind}`;
  mark.textContent = badge;
  const below = item.appendChild(document.createElement('div'));
  below.className = 'detail';
  below.textContent = detail;
  return item;
}

function time(at) {
  return new Date(at).toLocaleTimeString();
}

form.addEventListener('submit', (event) => {
  event.preventDefault();
  buy(event.submitter);
});
// What is asked again by itself is what was sent, and nothing else.
form.addEventListener('change', () => clearTimeout(again));
byId('hammer').addEventListener('click', hammer);
byId('settle').addEventListener('click', settle);
byId('new-order').addEventListener('click', newOrder);
restore();
for (const part of document.querySelectorAll('section[hidden], #hammer')) part.hidden = false;

addEventListener('pageshow', () => {
  // What was on its way when the page was left may never be answered.
  sent = null;
  for (const attempt of attempts.filter(({ state }) => state === 'on its way')) {
    end(attempt, 'bad', 'left without an answer');
    say('wait', 'You left the page before an answer came. Buy again: it is the same order.');
  }
  render();
  refresh();
});
setInterval(() => document.hidden || refresh(), 2000);
