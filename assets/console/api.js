// The service's API as the console uses it, and who uses the console.

/** What a request was refused with: a problem document, or what stands for one. */
export class Refusal extends Error {
  constructor(status, problem) {
    super(problem.detail ?? problem.title ?? `The service answered ${status}.`);
    Object.assign(this, { status, problem, code: problem.code });
  }
}

/**
 * The URL of the service, also below a path of a proxy. It is made of its parts, because the address of the page may have a
 * password in it.
 */
export const service = location.origin + new URL('../..', import.meta.url).pathname.slice(0, -1);

/** The JSON that a request is answered with. A path begins with `/`. */
export async function call(method, path, body) {
  const init = { method, headers: { Accept: 'application/json' } };
  if (body !== undefined) {
    init.headers['Content-Type'] = 'application/json';
    init.body = JSON.stringify(body);
  }
  let response;
  try {
    response = await fetch(service + path, init);
  } catch {
    throw new Refusal(0, { title: 'No answer', detail: 'The service gives no answer.' });
  }
  const json = await response.json().catch(() => ({}));
  if (!response.ok) throw new Refusal(response.status, json);
  return json;
}

/** What is known of the service and of who uses the console, by the last glance. */
export const session = {
  glance: null,
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
