/** Server-sent events of a watch or a hold (WHATWG HTML, section 9.2). */

import type { HeldLock } from './errors.js';
import type { Request, Transport } from './transport.js';

/** What the service says on a stream: `type` is a word such as `acquired`, and `data` has the members of that type. */
export interface Event {
  type: string;
  data: Partial<HeldLock> & { held?: boolean; ahead?: number; reason?: string; detail?: string; [member: string]: unknown };
}

export async function* events(transport: Transport, request: Request): AsyncGenerator<Event> {
  let [type, data] = ['', ''];
  for await (const line of transport.lines(request)) {
    if (line.startsWith('event:')) type = line.slice(6).trim();
    else if (line.startsWith('data:')) data += line.slice(5).trim();
    else if (line.trim() === '' && type) {
      yield { type, data: JSON.parse(data || '{}') };
      [type, data] = ['', ''];
    }
  }
}
