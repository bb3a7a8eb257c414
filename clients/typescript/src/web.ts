/** The `fetch` of browsers, and of what is like them: its settings are those of the platform. */

import type { PlatformOptions } from './transport.js';

export function platformFetch(options: PlatformOptions): typeof fetch {
  const setting = Object.entries(options).find(([, value]) => value !== undefined);
  if (setting) throw new TypeError(`this platform has no ${setting[0]} for requests`);
  return (input, init) => fetch(input, init);
}
