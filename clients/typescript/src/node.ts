/**
 * The `fetch` of Node: with settings of TLS, and for Unix sockets.
 *
 * It is not the global one, which of Node 20 waits for ever where a server closes a connection as soon as it is open.
 */

import { readFileSync } from 'node:fs';
import * as http from 'node:http';
import * as https from 'node:https';
import { Readable } from 'node:stream';

import type { PlatformOptions } from './transport.js';

/** A `fetch` with these settings, and else those of the environment. */
export function platformFetch(options: PlatformOptions): typeof fetch {
  const { env } = process;
  const read = (file?: string) => (file === undefined ? {} : readFileSync(file));
  const [ca, cert, key] = [
    options.ca ?? env['KEYLATCH_CA'],
    options.cert ?? env['KEYLATCH_CLIENT_CERT'],
    options.key ?? env['KEYLATCH_CLIENT_KEY'],
  ];
  const tls = { ...(ca && { ca: read(ca) }), ...(cert && { cert: read(cert) }), ...(key && { key: read(key) }) };
  const agent = { keepAlive: true, timeout: 120_000 };
  const [clear, secure] = [new http.Agent(agent), new https.Agent({ ...agent, ...(tls as https.AgentOptions) })];
  return (input, init = {}) =>
    new Promise((resolve, reject) => {
      const url = new URL(String(input));
      const isSecure = url.protocol === 'https:';
      const request = (isSecure ? https : http).request(url, {
        method: init.method ?? 'GET',
        headers: init.headers as http.OutgoingHttpHeaders,
        agent: isSecure ? secure : clear,
        ...(options.socketPath !== undefined && { socketPath: options.socketPath }),
        ...(init.signal && { signal: init.signal }),
      });
      request.on('error', reject).on('response', (answer) => resolve(responseOf(answer)));
      request.end(init.body ?? undefined);
    });
}

function responseOf(answer: http.IncomingMessage): Response {
  const status = answer.statusCode ?? 0;
  const headers = Object.entries(answer.headers).map(([name, value]): [string, string] => [name, String(value)]);
  const isEmpty = status === 204 || status === 304;
  if (isEmpty) answer.resume();
  return new Response(isEmpty ? null : (Readable.toWeb(answer) as ReadableStream), { status, headers });
}
