// The console: which view is shown for which address, and who is there.

import { look, session } from './api.js';
import { h } from './dom.js';
import * as glance from './glance.js';
import * as key from './key.js';
import * as keys from './keys.js';
import * as lock from './lock.js';
import * as locks from './locks.js';

const VIEWS = [
  [/^$/, glance],
  [/^locks$/, locks],
  [/^locks\/(.+)$/, lock],
  [/^keys$/, keys],
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
    const is = link.getAttribute('href') === `#/${path.split(/[/?]/)[0]}`;
    if (is) link.setAttribute('aria-current', 'page');
    else link.removeAttribute('aria-current');
  }
}

/** Finds out who is there, and says what is in the way. */
async function enter() {
  try {
    const { identity } = await look();
    if (identity) document.getElementById('who').textContent = `· ${identity}`;
    return true;
  } catch (refusal) {
    view.replaceChildren(h('section', {},
      h('h1', { tabindex: -1 }, refusal.status === 401 ? 'Who are you?' : 'keylatch gives no answer'),
      h('p', { class: 'note bad' }, refusal.message),
      refusal.status === 401 && h('p', {}, 'Your browser asks for a name and a password: the password is your API key, the name is any.'),
      h('p', { class: 'buttons' }, refusal.status === 401
        ? h('a', { class: 'button', href: 'console/sign-in' }, 'Sign in')
        : h('button', { type: 'button', onclick: route }, 'Try again'))));
    return false;
  }
}

addEventListener('hashchange', route);
route();
