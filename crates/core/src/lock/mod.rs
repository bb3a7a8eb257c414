//! Locks: what they are, the rules they follow, and the service that keeps time for them.
//!
//! This module knows no HTTP and no store engine. [`LockState`] holds the rules as a pure
//! function, [`LockStore`] is what a store has to do, [`LockService`] is what a handler calls.

mod fence;
mod hold;
mod lease;
mod line;
mod name;
mod seen;
mod service;
mod state;
mod store;
mod token;
mod waiting;
mod watch;

pub use fence::{FencingToken, Moment};
pub use hold::{Hold, HoldEvent, Lost, Refused};
pub use lease::{
    Acquire, Acquisition, Attempt, Busy, Holder, InvalidOwner, InvalidTtl, Lease, Owner, Release,
    Renewal, Ttl,
};
pub use name::{InvalidName, LockName};
pub use service::{Acquired, Grant, LockError, LockService, Renewed, Request};
pub use state::{Command, Held, LockState, Peek, Record, Renew, Return, Withdraw};
pub use store::{
    Change, Changes, Cursor, InvalidCursor, ListLocks, LockStore, Outcome, Page, StoreError,
    StoreHealth, Tier, Turn,
};
pub use token::{InvalidToken, Token, TokenHash};
pub use waiting::WaiterLimits;
pub use watch::WatchEvent;
