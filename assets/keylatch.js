// Every try of one intent has the same Idempotency-Key, in sessionStorage before the first byte is
// sent and until the last word has arrived. See keylatch.d.ts.

/** The requests on their way, by the name of their intent. */
const flights = new Map();
/** Where sessionStorage is full or forbidden. */
const memory = new Map();
/** Refusals that may pass. */
const PASSING = [401, 403, 407, 408, 421, 425, 426, 429];
/** Bytes of two files that are compared at a time. */
const SLICE = 1 << 20;

/** Like `fetch`. Method, URL and `init.intent` name the intent. */
export async function fetchOnce(url, init = {}) {
  const request = new Request(url, init);
  const name = `keylatch:${request.method} ${request.url} ${init.intent ?? ''}`;
  const key = recall(name) ?? remember(name, init.key || newKey());
  const fields = [headersOf(request, url, init), ...fieldsOf(init.body ?? request)];
  request.headers.set('Idempotency-Key', `"${key}"`);
  let flight = flights.get(name);
  // Other content under a key in use is for the service to refuse.
  if (flight && !(await areSame(flight.fields, fields))) return fetch(request);
  if (!flight) {
    flight = { fields, answer: send(request, name, key) };
    flights.set(name, flight);
    const landed = () => flights.get(name) === flight && flights.delete(name);
    flight.answer.then(landed, landed);
  }
  return (await flight.answer).clone();
}

/** `fetchOnce` of what the browser would send. The form's place names the intent. */
export async function submitOnce(form, submitter) {
  const attribute = (name) => submitter?.getAttribute(`form${name}`) || form.getAttribute(name);
  const data = new FormData(form, submitter);
  // The field is for pages without JavaScript, or has an issued key.
  const field = data.get('idempotency_key');
  data.delete('idempotency_key');
  const multipart = attribute('enctype')?.toLowerCase() === 'multipart/form-data';
  // Not `form.id`, which a field may be named.
  const place = form.getAttribute('id') || [...document.forms].indexOf(form);
  form.setAttribute('aria-busy', 'true');
  try {
    return await fetchOnce(new URL(attribute('action') || location, document.baseURI), {
      method: attribute('method') ?? 'get',
      // Of a file, an urlencoded form has the name.
      body: multipart
        ? data
        : new URLSearchParams([...data].map(([name, value]) => [name, value.name ?? value])),
      key: isIssued(field) && field,
      intent: form.dataset.intent ?? `${location.pathname}${location.search}#${place}`,
    });
  } finally {
    form.removeAttribute('aria-busy');
  }
}

async function send(request, name, key) {
  const response = await fetch(request);
  // An answer that breaks off is none: the next try reads it again.
  await response.clone().arrayBuffer();
  if ((await isLastWord(response)) && recall(name) === key) forget(name);
  return response;
}

/** Whether what comes next is a new intent. */
async function isLastWord(response) {
  if (response.headers.get('Content-Type')?.startsWith('application/problem+json')) {
    const problem = await response.clone().json().catch(() => null);
    // The service says itself which key is next.
    if (problem?.retry) return problem.retry === 'new-key';
  }
  return response.status < 500 && !PASSING.includes(response.status);
}

/** The headers as a field. The browser gives the parts of a form another boundary each time. */
function headersOf(request, url, init) {
  const isForm = init.body instanceof FormData;
  const headers = isForm ? new Headers(init.headers ?? url.headers) : request.headers;
  return [JSON.stringify([...headers]), ''];
}

/** A body as it is now, field by field. No file is read. */
function fieldsOf(body) {
  if (body instanceof FormData) return [...body];
  if (body instanceof Request) return [['', body.clone()]];
  const stays = body instanceof Blob || body instanceof ReadableStream;
  return [['', stays ? body : new Blob([body])]];
}

async function areSame(some, others) {
  if (some.length !== others.length) return false;
  for (const [i, [name, value]] of some.entries()) {
    const isOther = name !== others[i][0] || !(await isSame(value, others[i][1]).catch(() => 0));
    if (isOther) return false;
  }
  return true;
}

/** Byte by byte: pages on plain HTTP have no digests. */
async function isSame(one, other) {
  if (one === other) return true;
  if (one instanceof Request) one = await one.clone().blob();
  if (other instanceof Request) other = await other.clone().blob();
  const differs = (property) => one[property] !== other[property];
  // A stream can be read only once.
  if (!(one instanceof Blob) || ['constructor', 'name', 'type', 'size'].some(differs)) return false;
  for (let at = 0; at < one.size; at += SLICE) {
    const bytes = async (blob) => new Uint8Array(await blob.slice(at, at + SLICE).arrayBuffer());
    const [some, others] = await Promise.all([bytes(one), bytes(other)]);
    if (some.some((byte, i) => byte !== others[i])) return false;
  }
  return true;
}

/** Only the service makes such a key. */
const isIssued = (key) => `${key}`.startsWith('issued-');

// Not `randomUUID`: pages on plain HTTP do not have it.
function newKey() {
  return crypto.getRandomValues(new Uint32Array(4)).join('-');
}

function recall(name) {
  try {
    return sessionStorage.getItem(name) ?? memory.get(name);
  } catch {
    return memory.get(name);
  }
}

function remember(name, key) {
  try {
    sessionStorage.setItem(name, key);
  } catch {
    memory.set(name, key);
  }
  return key;
}

function forget(name) {
  memory.delete(name);
  try {
    sessionStorage.removeItem(name);
  } catch {}
}

// To a page that was left, what was on its way may never arrive; its forms' keys may be used.
addEventListener('pageshow', ({ persisted }) => {
  if (!persisted) return;
  flights.clear();
  for (const field of document.getElementsByName('idempotency_key')) {
    if (!isIssued(field.value)) field.value = newKey();
  }
});
