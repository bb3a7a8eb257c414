//! What every store promises, and what each kind of store does by itself.
//!
//! `*_conformance` and `*_rules` run on every store of the matrix; the other files are about one kind.
//! Tests of PostgreSQL, etcd, ZooKeeper, Sentinel, Cluster and Redlock have that word in their names (`postgres`): `make
//! test` leaves them to `make test-all`.

#![warn(clippy::disallowed_methods)]
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod cluster;
mod conditional;
mod conditional_steps;
mod contention;
mod embedded;
mod engine_clock;
mod entry_limits;
mod etcd;
mod etcd_faults;
mod etcd_tls;
mod failover;
mod full_disk;
mod lock_conformance;
mod lock_rules;
mod mode_conformance;
mod postgres;
mod postgres_faults;
mod postgres_pooler;
mod postgres_tls;
mod queue_conformance;
mod record_conformance;
mod record_index;
mod record_rules;
mod redis_certificates;
mod redis_fences;
mod redis_queue;
mod redis_records;
mod redis_tls;
mod redis_urls;
mod redlock;
mod redlock_agreement;
mod redlock_fences;
mod redlock_restart;
mod redlock_service;
mod restart;
mod sentinel;
mod sentinel_replicas;
mod set_conformance;
mod zookeeper;
mod zookeeper_faults;
mod zookeeper_tls;

use keylatch_testkit::Program;

/// The command under test.
static KEYLATCH: Program = Program::at(env!("CARGO_BIN_EXE_keylatch"));
