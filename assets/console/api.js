// The service's API as the console uses it, and who uses the console.

/** What a request was refused with: a problem document, or what stands for one. */
export class Refusal extends Error {
  constructor(status, problem) {
    super(problem.detail ?? problem.title ?? `The service responded with ${status}.`);
    Object.assign(this, { status, problem, code: problem.code });
  }
}

/**
 * The URL of the service, also below a path of a proxy. It is made of its parts, because the address of the page may have a
 * password in it.
 */
export const service = location.origin + new URL('../..', import.meta.url).pathname.slice(0, -1);

/** The API key that the user has given: this tab remembers it, and no other. */
const KEY = 'keylatch-api-key';

export const apiKey = () => sessionStorage.getItem(KEY);

export function setApiKey(key) {
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
}

/** The response to a request. A path begins with `/`. */
async function send(method, path, { body, accept, signal }) {
  const init = { method, headers: { Accept: accept }, signal };
  if (body !== undefined) {
    init.headers['Content-Type'] = 'application/json';
    init.body = JSON.stringify(body);
  }
  if (apiKey()) {
    init.headers.Authorization = `Bearer ${apiKey()}`;
    // So that the browser does not ask for a password once the service no longer knows the key.
    init.credentials = 'omit';
  }
  let response;
  try {
    response = await fetch(service + path, init);
  } catch {
    if (!signal?.aborted) session.lostAt ??= Date.now();
    throw new Refusal(0, { title: 'No response', detail: 'The service does not respond.' });
  }
  session.lostAt = null;
  if (!response.ok) throw new Refusal(response.status, await response.json().catch(() => ({})));
  return response;
}

/** The JSON that the service responds with. */
export async function call(method, path, body) {
  const response = await send(method, path, { body, accept: 'application/json' });
  return response.json().catch(() => ({}));
}

/** How long a stream that broke off waits before it is opened again. */
const PAUSE = 2000;

/**
 * Follows a stream of events until the function that this gives is called, and opens it again where it breaks off. `on`
 * has a listener for each event by its name; `open`, and `lost` where there is no connection; and `refused`.
 */
export function events(path, on) {
  const end = new AbortController();
  follow(path, on, end.signal);
  return () => end.abort();
}

async function follow(path, on, signal) {
  for (;;) {
    let refusal = null;
    try {
      const response = await send('GET', path, { accept: 'text/event-stream', signal });
      on.open?.();
      await readEvents(response.body.pipeThrough(new TextDecoderStream()), on);
    } catch (failure) {
      // A connection that breaks off in the middle is no refusal.
      if (failure instanceof Refusal && failure.status !== 0) refusal = failure;
    }
    if (signal.aborted) return;
    if (refusal) on.refused?.(refusal);
    else {
      session.lostAt ??= Date.now();
      on.lost?.();
    }
    if (refusal && refusal.status < 500) return;
    await new Promise((wake) => setTimeout(wake, PAUSE));
  }
}

/** Calls a listener for each event of a stream, whose data are one line (WHATWG HTML, 9.2.6). */
async function readEvents(stream, on) {
  let rest = '';
  for await (const text of chunks(stream)) {
    const blocks = (rest + text).split('\n\n');
    rest = blocks.pop();
    for (const block of blocks) {
      const field = (name) => block.match(new RegExp(`^${name}: ?(.*)$`, 'm'))?.[1];
      const event = field('event');
      if (event) on[event]?.(JSON.parse(field('data') ?? 'null'));
    }
  }
}

/** The parts of a stream: not every browser iterates over one. */
async function* chunks(stream) {
  const reader = stream.getReader();
  for (let part = await reader.read(); !part.done; part = await reader.read()) yield part.value;
}

/** What is known of the service and of who uses the console, by the last glance. */
export const session = {
  glance: null,
  /** Since when the service does not respond; null while it does. */
  lostAt: null,
  /** Whether the user may do this with all names that begin so. */
  may(kind, act, name) {
    const rules = this.glance?.permissions[kind] ?? [];
    return rules.some((rule) => rule.may.includes(act) && name.startsWith(rule.prefix));
  },
  /** The shortest prefix below which the user may read everything; null where there is none. */
  readable(kind) {
    const rules = this.glance?.permissions[kind] ?? [];
    const prefixes = rules.filter((rule) => rule.may.includes('read')).map((rule) => rule.prefix);
    return prefixes.sort((one, other) => one.length - other.length)[0] ?? null;
  },
};

export async function look() {
  session.glance = await call('GET', '/console/glance');
  return session.glance;
}

export function lockPath(name, rest = '') {
  return `/v1/locks/${encodeURIComponent(name)}${rest}`;
}

/** The command that sends a request, for a shell. */
export function curl(method, path, body) {
  const words = ['curl', '-sS'];
  if (method !== 'GET') words.push('-X', method);
  if (session.glance?.identity) words.push('-H "Authorization: Bearer $KEYLATCH_API_KEY"');
  if (body !== undefined) words.push('-d', quoted(JSON.stringify(body)));
  return [...words, quoted(service + path)].join(' ');
}

function quoted(text) {
  return `'${text.replaceAll("'", String.raw`'\''`)}'`;
}
