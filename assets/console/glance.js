// At a glance: the store and what it promises, what is held now, and what the last minutes were like.

import { curl, look, session } from './api.js';
import { chart, duration, rate } from './charts.js';
import { commands, count, facts, freeze, h, poll, redraw, write } from './dom.js';
import * as feed from './feed.js';

const PERIOD = 3000;
/** How many samples the service keeps. */
const SLOTS = 120;
const OBSERVED_TITLE = 'What observing guards would have done';

export const title = 'At a glance';

export function show(view) {
  const held = h('b', { id: 'held' }, '…');
  const [now, store, charts, keys, observed] = [h('div'), h('div'), h('div', { class: 'charts' }), h('div'), h('div')];
  const [note, banner] = [h('p', { class: 'note' }), h('div')];
  view.append(
    h('h1', { tabindex: -1 }, title),
    note, banner,
    h('div', { class: 'cards' },
      h('section', { 'aria-labelledby': 'now-title' }, h('h2', { id: 'now-title' }, 'Now'),
        h('p', { class: 'big' }, h('a', { href: '#/locks' }, held, ' held')), keys, observed, now),
      h('section', { 'aria-labelledby': 'store-title' }, h('h2', { id: 'store-title' }, 'Store'), store)),
    h('section', { 'aria-labelledby': 'charts-title' }, h('h2', { id: 'charts-title' }, 'The last minutes'),
      h('p', { class: 'hint' }, 'Of this instance, every five seconds. “Responses” include the time that a request waits for a lock; “Store” does not.'),
      charts),
    commands([
      ['The store and its promise', curl('GET', '/v1/info')],
      ['All of this view, with the last minutes', curl('GET', '/console/glance')],
      ['The counters, for Prometheus', curl('GET', '/metrics')],
    ]));
  const draw = (glance) => {
    redraw(banner, ...bannerOf(glance));
    keys.replaceChildren(...keysOf(glance));
    observed.replaceChildren(...observedOf(glance));
    now.replaceChildren(...nowOf(glance));
    store.replaceChildren(...storeOf(glance));
    // What someone points at stays.
    if (!charts.matches(':hover')) charts.replaceChildren(...chartsOf(glance));
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
  const looks = poll(PERIOD, look, (found) => freeze(view, note, found instanceof Error && found) || draw(found));
  return () => {
    looks.stop();
    forget();
  };
}

function many(number, records) {
  return number === null ? '?' : `${count(number)}${number === records.counted_to ? ' and more' : ''}`;
}

/** The one thing that needs a person. */
function bannerOf({ records }) {
  if (!records?.unknown || session.readable('keys') === null) return [];
  const number = many(records.unknown, records);
  return [h('p', { class: 'banner bad' },
    h('span', {}, records.unknown === 1 ? '1 unknown outcome needs a person.' : `${number} unknown outcomes need a person.`),
    h('a', { class: 'button', href: '#/keys' }, `Review ${number}`))];
}

/** How many keys there are in each state. */
function keysOf({ records }) {
  if (!records || session.readable('keys') === null) return [];
  const of = (number) => many(number, records);
  return [
    facts([
      ['Unknown outcomes', records.unknown === 0 ? '✓ none' : of(records.unknown)],
      ['Keys in flight', of(records.in_flight)],
      ['Keys done', records.done === null ? 'not counted by this store' : count(records.done)],
    ]),
  ];
}

/** A way to what the guards that only observe would have done. */
function observedOf({ observed }) {
  if (Object.keys(observed).length === 0) return [];
  return [h('p', {}, h('a', { href: '#/observed' }, OBSERVED_TITLE))];
}

/** What this instance does, whichever others share the store. */
function nowOf({ waiters, in_flight, connections, shed, streams }) {
  return [
    h('p', { class: 'hint' }, 'This instance:'),
    facts([
      ['Requests that wait for a lock', count(waiters)],
      ['Streams', `hold ${count(streams.hold)}, watch ${count(streams.watch)}, console ${count(streams.console)}`],
      ['Requests under way', count(in_flight)],
      ['Connections', count(connections)],
      ['Rejected (overloaded)', shed > 0 ? h('b', { class: 'is-bad' }, count(shed)) : '0'],
    ]),
  ];
}

function storeOf({ store, version }) {
  const { instances, ...others } = store.facts;
  const tier = store.tier ?? 'not reachable';
  const advice = store.advice.map((text) => h('p', { class: 'note wait' }, text));
  return [
    h('p', { class: 'big' }, store.kind, ' ', h('span', { class: `badge ${store.reachable ? 'good' : 'bad'}` }, tier)),
    h('p', {}, store.tier_means ?? 'The store does not respond. Clients get 503 and can retry safely.'),
    ...advice,
    facts([['Instances that share it', instances ?? 'not known'], ...Object.entries(others), ['keylatch', version]]),
  ];
}

function chartsOf(glance) {
  const seconds = glance.sample_ms / 1000;
  const line = (name, kind, member, per = 1) => ({ name, kind, of: (sample) => (sample[member] === null ? null : sample[member] / per) });
  const draw = (title, format, ...lines) => chart(title, lines, glance, SLOTS, format);
  return [
    draw('Requests', rate, line('', 'one', 'requests', seconds)),
    draw('Refusals', rate, line('4xx', 'one', 'refused', seconds), line('5xx', 'two', 'failed', seconds)),
    draw('Responses', duration, line('p50', 'one', 'p50_us'), line('p99', 'two', 'p99_us')),
    draw('Store', duration, line('p50', 'one', 'step_p50_us'), line('p99', 'two', 'step_p99_us')),
  ];
}
