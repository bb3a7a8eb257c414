//! The rules of keylatch and the services that keep time for them.
//!
//! [`lock`] has names, tokens, fencing tokens, the rules of a lock and its service;
//! [`idempotency`] has the same for work that is to be done once. This crate knows no HTTP, no
//! engine and no configuration: a store implements [`lock::LockStore`] and
//! [`idempotency::RecordStore`], and a handler calls [`lock::LockService`] or
//! [`idempotency::Idempotency`].

pub mod idempotency;
pub mod lock;
pub mod task;
