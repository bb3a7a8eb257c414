/**
 * The `fetch` of Node: with settings of TLS, and for Unix sockets.
 *
 * It is not the global one, which of Node 20 waits for ever where a server closes a connection as soon as it is open.
 */

import { readFileSync } from 'node:fs';
import * as http from 'node:http';
import * as https from 'node:https';
import { hostname } from 'node:os';
import { Readable } from 'node:stream';
import type { TLSSocket } from 'node:tls';

import { SettingsError } from './errors.js';
import type { PlatformOptions } from './transport.js';

/** In step with package.json, which `exports.mjs` checks. */
const USER_AGENT = 'keylatch-typescript/0.1.0';

/** Who holds a lock, unless the program says it. Deno would ask its user whether it may tell the host. */
export const platformOwner = () => ('Deno' in globalThis ? undefined : `${hostname()}/${process.pid}`);

/** A `fetch` with these settings, and else those of the environment, that waits so long for a connection. */
export function platformFetch(options: PlatformOptions, patience: number): typeof fetch {
  const { env } = process;
  const { ca = env['KEYLATCH_CA'], cert = env['KEYLATCH_CLIENT_CERT'], key = env['KEYLATCH_CLIENT_KEY'] } = options;
  const tls = { ...(ca && { ca: readPem('ca', ca) }), ...(cert && { cert: readPem('cert', cert) }), ...(key && { key: readPem('key', key) }) };
  const isNode = !('Deno' in globalThis || 'Bun' in globalThis);
  // Deno repeats a request by itself whose kept connection is cut, and says nothing of the first.
  const agent = { keepAlive: !('Deno' in globalThis), timeout: 120_000 };
  const [clear, secure] = [new http.Agent(agent), new https.Agent({ ...agent, ...tls })];
  return (input, init = {}) =>
    new Promise((resolve, reject) => {
      const { origin, path } = partsOf(String(input));
      const isSecure = origin.protocol === 'https:';
      const request = (isSecure ? https : http).request(origin, {
        path,
        method: init.method ?? 'GET',
        headers: { 'user-agent': USER_AGENT, ...(init.headers as http.OutgoingHttpHeaders) },
        agent: (options.agent as http.Agent | undefined) ?? (isSecure ? secure : clear),
        ...(options.socketPath !== undefined && { socketPath: options.socketPath }),
      });
      const fail = (error: Error): void => {
        // Of another platform's socket it is not known.
        const { connecting, secureConnecting } = (request.socket ?? { connecting: isNode }) as Partial<TLSSocket> & { secureConnecting?: boolean };
        reject(connecting || (isSecure && secureConnecting) ? Object.assign(error, { isUnsent: true }) : error);
      };
      const leave = (): void => {
        const error = new Error('The request was given up.');
        // Deno emits no error of a request that is destroyed.
        fail(error);
        request.destroy(error);
      };
      init.signal?.addEventListener('abort', leave);
      if (init.signal?.aborted) leave();
      request
        .on('error', fail)
        .on('close', () => init.signal?.removeEventListener('abort', leave))
        .on('socket', (socket) => {
          if (!socket.connecting) return;
          const error = Object.assign(new Error('it takes no connection'), { isUnsent: true });
          const late = setTimeout(() => request.destroy(error), patience);
          for (const event of ['connect', 'close']) socket.once(event, () => clearTimeout(late));
        })
        .on('response', (answer) => {
          const made = (async () => responseOf(answer))();
          made.catch(() => answer.destroy());
          resolve(made);
        });
      request.end(init.body ?? undefined);
    });
}

function readPem(option: string, file: string): string {
  if (/-----|\n/.test(file)) throw new SettingsError(`${option} has to be the name of a file, and it is a text`);
  try {
    const text = readFileSync(file, 'utf8');
    if (text.includes('-----BEGIN ')) return text;
    throw new Error('it has nothing in PEM');
  } catch (cause) {
    throw new SettingsError(`${file} cannot be read: ${(cause as Error).message}`, { cause });
  }
}

/** The path is that of the text: a `URL` would take the key `%2E%2E` for a step up. */
function partsOf(url: string): { origin: URL; path: string } {
  const at = url.indexOf('/', url.indexOf('://') + 3);
  return at < 0 ? { origin: new URL(url), path: '/' } : { origin: new URL(url.slice(0, at)), path: url.slice(at) };
}

function responseOf(answer: http.IncomingMessage): Response {
  const status = answer.statusCode ?? 0;
  const headers = Object.entries(answer.headers).map(([name, value]): [string, string] => [name, String(value)]);
  const isEmpty = status === 204 || status === 304;
  if (isEmpty) answer.resume();
  return new Response(isEmpty ? null : (Readable.toWeb(answer) as ReadableStream), { status, headers });
}
