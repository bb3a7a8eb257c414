/**
 * The TypeScript client of keylatch: locks with fencing tokens, and things done once.
 *
 * @module
 */

import { Client } from './client.js';

export type { LeasedLock, LockOptions } from './claim.js';
export { Client, type UnderLock } from './client.js';
export type { Broken, HeldLock, Holder, LossReason, ProblemDocument, Retry } from './errors.js';
export { Held, KeylatchError, LeaseLost, NothingDone, Problem, SettingsError, Unreachable } from './errors.js';
export { Lease } from './lease.js';
export { type Completion, type KeptAnswer, type OnceOptions, Run } from './once.js';
export type { ClientOptions, Event, LogEntry } from './transport.js';

/** The client of the service at `KEYLATCH_URL`. */
export const keylatch: Client = /* @__PURE__ */ new Client();
