/** The `fetch` of browsers, and of what is like them: its settings are those of the platform. */

import { KeylatchError, SettingsError } from './errors.js';
import type { PlatformOptions } from './transport.js';

export function platformFetch(options: PlatformOptions, _patience: number): typeof fetch {
  const setting = Object.entries(options).find(([, value]) => value !== undefined);
  if (setting) throw new SettingsError(`this platform has no ${setting[0]} for requests`);
  return (input, init) => {
    const path = new URL(String(input), globalThis.location?.href).pathname;
    // A `URL` takes `%2E%2E` for a step up, so that another route would be asked.
    if (!String(input).split('?')[0]!.endsWith(path)) throw new KeylatchError('this platform has no path to the name . or ..');
    return fetch(input, init);
  };
}

export function platformOwner(): undefined {}
