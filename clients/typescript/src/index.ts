/**
 * The TypeScript client of keylatch: locks with fencing tokens, and things done once.
 *
 * @module
 */

import { Client } from './client.js';

export type { HoldOptions, LeasedLock, LockOptions } from './claim.js';
export { type BreakOptions, Client } from './client.js';
export { type Broken, Held, type HeldLock, type Holder, KeylatchError, LeaseLost, type LossReason, NothingDone, Problem, type ProblemDocument, type Retry, SettingsError, Unreachable } from './errors.js';
export type { Event } from './events.js';
export { Lease } from './lease.js';
export { type Completion, type DescribedRequest, type KeptAnswer, type OnceOptions, Run, type Scope } from './once.js';
export type { ClientOptions, LogEntry } from './transport.js';

/** The client of the service at `KEYLATCH_URL`. */
export const keylatch: Client = /* @__PURE__ */ new Client();
