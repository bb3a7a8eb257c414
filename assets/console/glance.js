// At a glance: the store and what it promises, what is held now, and what the last minutes were like.

import { call, curl, look, session } from './api.js';
import { chart, duration, rate } from './charts.js';
import { commands, count, facts, h, redraw, write } from './dom.js';
import * as feed from './feed.js';
import { listPath } from './keys.js';

const PERIOD = 3000;
/** How many keys are counted one by one. */
const COUNTED = 1000;
/** How many samples the service keeps. */
const SLOTS = 120;

export const title = 'At a glance';

export function show(view) {
  const held = h('b', { id: 'held' }, '…');
  const [now, store, charts, keys] = [h('div'), h('div'), h('div', { class: 'charts' }), h('div')];
  view.append(
    h('h1', { tabindex: -1 }, title),
    h('div', { class: 'cards' },
      h('section', { 'aria-labelledby': 'now-title' }, h('h2', { id: 'now-title' }, 'Now'),
        h('p', { class: 'big' }, h('a', { href: '#/locks' }, held, ' held')), keys, now),
      h('section', { 'aria-labelledby': 'store-title' }, h('h2', { id: 'store-title' }, 'Store'), store)),
    h('section', { 'aria-labelledby': 'charts-title' }, h('h2', { id: 'charts-title' }, 'The last minutes'),
      h('p', { class: 'hint' }, 'Of this instance, every five seconds. An answer contains the wait for a lock; a step of the store does not.'),
      charts),
    commands([
      ['The store and its promise', curl('GET', '/v1/info')],
      ['The counters, for Prometheus', curl('GET', '/metrics')],
    ]));
  const draw = (glance) => {
    now.replaceChildren(nowOf(glance));
    store.replaceChildren(...storeOf(glance));
    charts.replaceChildren(...chartsOf(glance));
  };
  const prefix = session.readable('locks');
  const drawHeld = () => {
    const isKnown = prefix !== null && !feed.state.refusal;
    const number = !isKnown ? '?' : feed.state.is === 'connecting' ? '…' : feed.held();
    write(held, `${number} ${number === '1' ? 'lock' : 'locks'}`);
  };
  const forget = feed.listen(drawHeld);
  if (prefix !== null) feed.follow(prefix);
  drawHeld();
  draw(session.glance);
  drawKeys(keys);
  const timer = setInterval(async () => {
    if (document.hidden) return;
    try {
      draw(await look());
      drawKeys(keys);
    } catch (refusal) {
      now.replaceChildren(h('p', { class: 'note bad' }, refusal.message));
    }
  }, PERIOD);
  return () => {
    clearInterval(timer);
    forget();
  };
}

/** How many keys need a person, and how many are under way. Those that are done may be millions. */
async function drawKeys(place) {
  if (!session.glance.records || session.readable('keys') === null) return;
  const states = ['unknown', 'in-flight'];
  const pages = await Promise.all(states.map((state) => call('GET', listPath(state, '', COUNTED)).catch(() => null)));
  const [unknown, inFlight] = pages.map((page) => page && `${count(page.records.length + (page.hidden ?? 0))}${page.next_cursor ? ' and more' : ''}`);
  redraw(place,
    h('p', { class: 'big' }, h('a', { href: '#/keys', class: unknown === '0' ? '' : 'is-bad' },
      unknown === '1' ? '1 unknown outcome' : `${unknown ?? '?'} unknown outcomes`)),
    facts([['Keys in flight', inFlight ?? '?']]));
}

function nowOf({ waiters, in_flight, connections, shed, streams }) {
  return facts([
    ['Requests that wait for a lock', count(waiters)],
    ['Streams', `hold ${count(streams.hold)}, watch ${count(streams.watch)}, console ${count(streams.console)}`],
    ['Requests being answered', count(in_flight)],
    ['Connections', count(connections)],
    ['Turned away because full', shed > 0 ? h('b', { class: 'is-bad' }, count(shed)) : '0'],
  ]);
}

function storeOf({ store, version }) {
  const tier = store.tier ?? 'not reachable';
  const advice = store.advice.map((text) => h('p', { class: 'note wait' }, text));
  return [
    h('p', { class: 'big' }, store.kind, ' ', h('span', { class: `badge ${store.reachable ? 'good' : 'bad'}` }, tier)),
    h('p', {}, store.tier_means ?? 'The store gives no answer. Clients read 503 and may repeat safely.'),
    ...advice,
    facts([...Object.entries(store.facts), ['keylatch', version]]),
  ];
}

function chartsOf({ samples, sample_ms }) {
  const seconds = sample_ms / 1000;
  const each = (member) => (sample) => sample[member];
  const per = (member) => (sample) => sample[member] / seconds;
  return [
    chart('Requests', [{ name: '', kind: 'one', of: per('requests') }], samples, SLOTS, rate),
    chart('Refusals', [
      { name: '4xx ', kind: 'one', of: per('refused') },
      { name: '5xx ', kind: 'two', of: per('failed') },
    ], samples, SLOTS, rate),
    chart('Answers', [
      { name: 'p50 ', kind: 'one', of: each('p50_us') },
      { name: 'p99 ', kind: 'two', of: each('p99_us') },
    ], samples, SLOTS, duration),
    chart('Steps of the store', [
      { name: 'p50 ', kind: 'one', of: each('step_p50_us') },
      { name: 'p99 ', kind: 'two', of: each('step_p99_us') },
    ], samples, SLOTS, duration),
  ];
}
