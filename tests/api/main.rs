//! The service over HTTP, as clients see it. The part of `make test` to begin with.
//!
//! A test with `#[store_test(service)]` runs on memory, the embedded store and, by feature, one
//! Redis and the other engines. Where the store has no part in what is tested, or `tests/stores`
//! holds each store to it, a test uses memory. Each file begins with its goal and its method.

#![warn(clippy::disallowed_methods)]
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod access_matrix;
mod audit;
mod audit_files;
mod backup;
mod breaks;
mod client_certificates;
mod coded_bodies;
mod connections;
mod console;
mod console_keys;
mod cors;
mod derived_keys;
mod derived_properties;
mod encrypted_responses;
mod ended_waits;
mod erasure;
mod error_pages;
mod expiry;
mod fencing_sql;
mod fencing_tokens;
mod foreign_pages;
mod gateway_headers;
mod gateway_lengths;
mod gateway_methods;
mod gateway_paths;
mod gateway_upgrades;
mod gone_clients;
mod guard_settings;
mod hold;
mod hold_endings;
mod hosts;
mod http2;
mod http2_floods;
mod idempotency_begin;
mod idempotency_crashes;
mod idempotency_failures;
mod idempotency_fingerprint;
mod idempotency_framing;
mod idempotency_gateway;
mod idempotency_key;
mod idempotency_layer;
mod idempotency_records;
mod idempotency_repeats;
mod idempotency_responses;
mod identities;
mod invalid_bodies;
mod invalid_input;
mod issued_keys;
mod json;
mod kept_bytes;
mod kept_responses;
mod key_sources;
mod lenient_readers;
mod listener;
mod listeners;
mod listing;
mod lock_names;
mod locks;
mod logging;
mod max_ahead;
mod metrics_page;
mod observed_guards;
mod open_ends;
mod openapi;
mod openapi_rules;
mod opening;
mod pass_through;
mod permissions;
mod principals;
mod queue_across_instances;
mod quotas;
mod record_list;
mod room;
mod rust_client;
mod rust_client_ends;
mod rust_client_members;
mod rust_client_proxy;
mod rust_client_sets;
mod sandbox;
mod sandbox_orders;
mod secrets;
mod sets;
mod settling;
mod shared_locks;
mod shared_origins;
mod shutdown;
mod slow_readers;
#[cfg(feature = "test-redis")]
mod store_failures;
mod system;
mod tls;
mod tokens;
mod waiting;
mod watch;

use keylatch_testkit::Program;

/// The command under test.
static KEYLATCH: Program = Program::at(env!("CARGO_BIN_EXE_keylatch"));
