//! The rules of keylatch and the services that keep time for them.
//!
//! [`lock`] has names, tokens, fencing tokens, the rules of a lock and its service;
//! [`idempotency`] has the same for work that is to be done once. [`store`] is the port: a
//! [`Store`](store::Store) executes commands as data. This crate knows no HTTP, no engine and no
//! configuration.
//!
//! # A store of your own
//!
//! A store runs a command on a record, or on one lock or several, as one atomic step that is safe
//! to repeat. The rules are pure functions, so a store that can run Rust on its entries calls
//! [`Entry::step`](entry::Entry::step) and keeps the states that come of it, whole, as their
//! [snapshots](entry::Entry::encode). Commands are values, so a decorator of a store is short.
//!
//! # Where the primitives are
//!
//! Each of these exists once: [`retry`] until an end, [`watchdog`] schedules of leases, the
//! registry of [`waiters`], and the [`task`] for a step whose caller went away.

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod digest;
pub mod entry;
pub mod idempotency;
pub mod lock;
pub mod retry;
pub mod snapshot;
pub mod store;
pub mod task;
pub mod time;
pub mod waiters;
pub mod watchdog;
