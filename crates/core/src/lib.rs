//! The rules of keylatch and the services that keep time for them.
//!
//! [`lock`] has names, tokens, fencing tokens, the rules of a lock and its service;
//! [`idempotency`] has the same for work that is to be done once. [`store`] is the port: a
//! [`Store`](store::Store) executes commands as data. This crate knows no HTTP, no engine and no
//! configuration.

pub mod idempotency;
pub mod lock;
pub mod retry;
pub mod snapshot;
pub mod store;
pub mod task;
pub mod time;
pub mod waiters;
pub mod watchdog;
