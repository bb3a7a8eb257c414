// The console: which view is shown for which address, and who is there.

import { apiKey, look, session, setApiKey } from './api.js';
import { h } from './dom.js';
import * as glance from './glance.js';
import * as key from './key.js';
import * as keys from './keys.js';
import * as lock from './lock.js';
import * as locks from './locks.js';
import * as observed from './observed.js';
import { listenToKeys } from './shortcuts.js';

const VIEWS = [
  [/^$/, glance],
  [/^locks$/, locks],
  [/^locks\/(.+)$/, lock],
  [/^keys$/, keys],
  [/^observed$/, observed],
  [/^keys\/([^?]+)(?:\?(.*))?$/, key],
];

const view = document.getElementById('view');
let leave = () => {};
let isFirst = true;

/** Shows the view that the address names. An address with another kind of hash is a place in the page. */
async function route() {
  const hash = location.hash.slice(1);
  if (hash && !hash.startsWith('/')) return;
  const path = hash.slice(1);
  leave();
  leave = () => {};
  view.replaceChildren();
  view.className = '';
  if (!session.glance && !(await enter())) return;
  const [pattern, module] = VIEWS.find(([known]) => known.test(path)) ?? VIEWS[0];
  // The name is encoded as a whole, and a query behind it part by part.
  const [name, query] = (pattern.exec(path) ?? []).slice(1);
  const args = [decode(name), query];
  leave = module.show(view, ...args);
  document.title = `${args[0] || module.title} · keylatch`;
  mark(path);
  // A screen reader begins where the view does, and not at the top of a page that was only just opened.
  if (!isFirst) view.querySelector('h1')?.focus();
  isFirst = false;
}

function decode(part) {
  try {
    return decodeURIComponent(part ?? '');
  } catch {
    return part;
  }
}

/** Marks the link of the view. */
function mark(path) {
  for (const link of document.querySelectorAll('nav a[href^="#"]')) {
    link.ariaCurrent = link.getAttribute('href') === `#/${path.split(/[/?]/)[0]}` ? 'page' : null;
  }
}

/** Finds out who is there, and says what is in the way. */
async function enter() {
  try {
    showWho(await look());
    return true;
  } catch (refusal) {
    view.replaceChildren(refusal.status === 401 ? signIn() : h('section', {},
      h('h1', { tabindex: -1 }, 'keylatch does not respond'),
      h('p', { class: 'note bad' }, refusal.message),
      h('p', { class: 'buttons' }, h('button', { type: 'button', onclick: route }, 'Try again'))));
    return false;
  }
}

/** A card that takes an API key. A key that was given already is not known, or no longer. */
function signIn() {
  const key = h('input', { type: 'password', id: 'api-key', required: true, autocomplete: 'off', spellcheck: 'false' });
  const submit = (event) => {
    event.preventDefault();
    setApiKey(key.value.trim());
    route();
  };
  return h('form', { class: 'sign-in', onsubmit: submit },
    h('h1', { tabindex: -1 }, 'Sign in'),
    h('p', { class: 'hint' }, 'Paste an API key. This tab remembers it until you close it or sign out.'),
    apiKey() && h('p', { class: 'note bad', role: 'alert' }, 'This API key is not valid.'),
    h('label', { class: 'field' }, 'API key', key),
    h('div', { class: 'buttons' }, h('button', {}, 'Sign in')));
}

function signOut() {
  setApiKey(null);
  location.hash = '#/';
  location.reload();
}

/** Who one is, and what one may do. */
function showWho({ identity, permissions, observed: guards }) {
  document.getElementById('observed-link').hidden = Object.keys(guards).length === 0;
  if (!identity) return;
  const rules = Object.entries(permissions).flatMap(([kind, list]) =>
    list.map(({ prefix, may }) => h('li', {}, `${may.join(', ')} ${kind}${prefix ? ` that begin with ${prefix}` : ''}`)));
  document.getElementById('who').replaceChildren(h('details', {},
    h('summary', {}, identity),
    h('div', { class: 'who' },
      h('p', {}, 'You may:'),
      h('ul', {}, rules.length ? rules : h('li', {}, 'do nothing here')),
      apiKey() && h('button', { type: 'button', class: 'second small', onclick: signOut }, 'Sign out'))));
}

addEventListener('hashchange', route);
listenToKeys(view);
route();
