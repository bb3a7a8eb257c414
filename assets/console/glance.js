// At a glance: the store and what it promises, what is held now, and what the last minutes were like.

import { curl, look, session } from './api.js';
import { chart, duration, rate } from './charts.js';
import { commands, count, facts, h, redraw, write } from './dom.js';
import * as feed from './feed.js';

const PERIOD = 3000;
/** How many samples the service keeps. */
const SLOTS = 120;

export const title = 'At a glance';

export function show(view) {
  const held = h('b', { id: 'held' }, '…');
  const [now, store, charts, keys, observed] = [h('div'), h('div'), h('div', { class: 'charts' }), h('div'), h('div')];
  view.append(
    h('h1', { tabindex: -1 }, title),
    h('div', { class: 'cards' },
      h('section', { 'aria-labelledby': 'now-title' }, h('h2', { id: 'now-title' }, 'Now'),
        h('p', { class: 'big' }, h('a', { href: '#/locks' }, held, ' held')), keys, observed, now),
      h('section', { 'aria-labelledby': 'store-title' }, h('h2', { id: 'store-title' }, 'Store'), store)),
    h('section', { 'aria-labelledby': 'charts-title' }, h('h2', { id: 'charts-title' }, 'The last minutes'),
      h('p', { class: 'hint' }, 'Of this instance, every five seconds. An answer contains the wait for a lock; a step of the store does not.'),
      charts),
    commands([
      ['The store and its promise', curl('GET', '/v1/info')],
      ['All of this view, with the last minutes', curl('GET', '/console/glance')],
      ['The counters, for Prometheus', curl('GET', '/metrics')],
    ]));
  const draw = (glance) => {
    redraw(keys, ...keysOf(glance));
    observed.replaceChildren(...observedOf(glance));
    now.replaceChildren(...nowOf(glance));
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
  const timer = setInterval(async () => {
    if (document.hidden) return;
    try {
      draw(await look());
    } catch (refusal) {
      now.replaceChildren(h('p', { class: 'note bad' }, refusal.message));
    }
  }, PERIOD);
  return () => {
    clearInterval(timer);
    forget();
  };
}

/** How many keys need a person, and how many do not. */
function keysOf({ records }) {
  if (!records || session.readable('keys') === null) return [];
  const many = (number) => (number === null ? '?' : `${count(number)}${number === records.counted_to ? ' and more' : ''}`);
  return [
    h('p', { class: 'big' }, h('a', { href: '#/keys', class: records.unknown === 0 ? '' : 'is-bad' },
      records.unknown === 1 ? '1 unknown outcome' : `${many(records.unknown)} unknown outcomes`)),
    facts([
      ['Keys in flight', many(records.in_flight)],
      ['Keys done', records.done === null ? 'not counted by this store' : count(records.done)],
    ]),
  ];
}

/** What the guards that only observe would have done. */
function observedOf({ observed }) {
  const guards = Object.entries(observed);
  if (guards.length === 0) return [];
  return [h('p', { class: 'hint' }, 'Guards that only observe, at the instance that answers:'), facts(guards)];
}

/** What this instance does, whichever others share the store. */
function nowOf({ waiters, in_flight, connections, shed, streams }) {
  return [
    h('p', { class: 'hint' }, 'At the instance that answers:'),
    facts([
      ['Requests that wait for a lock', count(waiters)],
      ['Streams', `hold ${count(streams.hold)}, watch ${count(streams.watch)}, console ${count(streams.console)}`],
      ['Requests under way', count(in_flight)],
      ['Connections', count(connections)],
      ['Turned away because full', shed > 0 ? h('b', { class: 'is-bad' }, count(shed)) : '0'],
    ]),
  ];
}

function storeOf({ store, version }) {
  const { instances, ...others } = store.facts;
  const tier = store.tier ?? 'not reachable';
  const advice = store.advice.map((text) => h('p', { class: 'note wait' }, text));
  return [
    h('p', { class: 'big' }, store.kind, ' ', h('span', { class: `badge ${store.reachable ? 'good' : 'bad'}` }, tier)),
    h('p', {}, store.tier_means ?? 'The store gives no answer. Clients read 503 and may repeat safely.'),
    ...advice,
    facts([['Instances that share it', instances ?? 'not known'], ...Object.entries(others), ['keylatch', version]]),
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
