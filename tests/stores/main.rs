//! What every store promises, and what each kind of store does by itself.
//!
//! `*_conformance` and `*_rules` run on every store of the matrix; the other files are about one
//! kind. The feature `test-redis` has the tests of one Redis, and `test-engines` those of
//! PostgreSQL, etcd, ZooKeeper, Sentinel, Cluster and Redlock, which have that word in their names
//! (`postgres`): `make test-all` runs them.

#![warn(clippy::disallowed_methods)]
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

#[cfg(feature = "test-engines")]
mod cluster;
mod conditional;
mod conditional_steps;
mod contention;
mod embedded;
mod engine_clock;
mod entry_limits;
#[cfg(feature = "test-engines")]
mod etcd;
#[cfg(feature = "test-engines")]
mod etcd_faults;
#[cfg(feature = "test-engines")]
mod etcd_tls;
#[cfg(feature = "test-engines")]
mod failover;
#[cfg(feature = "test-engines")]
mod full_disk;
mod late_ends;
mod lock_conformance;
mod lock_rules;
mod lost_answers;
mod mode_conformance;
#[cfg(feature = "test-engines")]
mod postgres;
#[cfg(feature = "test-engines")]
mod postgres_faults;
#[cfg(feature = "test-engines")]
mod postgres_pooler;
#[cfg(feature = "test-engines")]
mod postgres_tls;
mod queue_conformance;
mod record_conformance;
mod record_index;
mod record_rules;
#[cfg(feature = "test-redis")]
mod redis_certificates;
#[cfg(feature = "test-redis")]
mod redis_fences;
#[cfg(feature = "test-redis")]
mod redis_queue;
#[cfg(feature = "test-redis")]
mod redis_records;
#[cfg(feature = "test-redis")]
mod redis_urls;
#[cfg(feature = "test-engines")]
mod redlock;
#[cfg(feature = "test-engines")]
mod redlock_agreement;
#[cfg(feature = "test-engines")]
mod redlock_fences;
#[cfg(feature = "test-engines")]
mod redlock_restart;
#[cfg(feature = "test-engines")]
mod redlock_service;
mod restart;
#[cfg(feature = "test-engines")]
mod sentinel;
#[cfg(feature = "test-engines")]
mod sentinel_replicas;
mod set_conformance;
#[cfg(feature = "test-engines")]
mod zookeeper;
#[cfg(feature = "test-engines")]
mod zookeeper_faults;
#[cfg(feature = "test-engines")]
mod zookeeper_tls;

use keylatch_testkit::Program;

/// The command under test.
static KEYLATCH: Program = Program::at(env!("CARGO_BIN_EXE_keylatch"));
