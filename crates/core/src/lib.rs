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
//! [snapshots](entry::Entry::encode). Commands are values, so a decorator is short:
//!
//! ```
//! use std::sync::Arc;
//!
//! use async_trait::async_trait;
//! use keylatch_core::idempotency::RecordSummary;
//! use keylatch_core::lock::Holding;
//! use keylatch_core::store::{
//!     Backup, Command, Hints, ListLocks, ListRecords, Page, Reply, Store, StoreError, StoreGauges,
//!     StoreHealth, StoreProfile, Topic,
//! };
//!
//! /// Writes down each command before it runs.
//! #[derive(Debug)]
//! struct LoggedStore {
//!     inner: Arc<dyn Store>,
//! }
//!
//! #[async_trait]
//! impl Store for LoggedStore {
//!     async fn execute(&self, command: Command) -> Result<Reply, StoreError> {
//!         println!("{command:?}");
//!         self.inner.execute(command).await
//!     }
//!
//!     async fn list_locks(&self, query: &ListLocks) -> Result<Option<Page<Holding>>, StoreError> {
//!         self.inner.list_locks(query).await
//!     }
//!
//!     async fn list_records(
//!         &self,
//!         query: &ListRecords,
//!     ) -> Result<Option<Page<RecordSummary>>, StoreError> {
//!         self.inner.list_records(query).await
//!     }
//!
//!     async fn back_up(&self) -> Result<Backup, StoreError> {
//!         self.inner.back_up().await
//!     }
//!
//!     fn subscribe(&self, topic: Topic) -> Hints {
//!         self.inner.subscribe(topic)
//!     }
//!
//!     async fn health(&self) -> Result<StoreHealth, StoreError> {
//!         self.inner.health().await
//!     }
//!
//!     fn profile(&self) -> StoreProfile {
//!         self.inner.profile()
//!     }
//!
//!     fn gauges(&self) -> StoreGauges {
//!         self.inner.gauges()
//!     }
//! }
//! ```
//!
//! # Where the primitives are
//!
//! Each of these exists once: [`retry`] until an end, [`watchdog`] schedules of leases, the
//! registry of [`waiters`], and [`task::DetachOnDrop`] for steps whose caller went away.

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
