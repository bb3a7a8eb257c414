//! Everything that is tested against a whole service or a whole store, as one binary.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod architecture;
mod bad_bodies;
mod bad_days;
mod bad_input;
mod browser;
mod browser_keys;
mod commands;
mod conformance;
mod cors;
mod crash;
mod differential;
mod embedded;
mod expiry;
mod fences;
mod idempotency_api;
mod idempotency_crash;
mod idempotency_failures;
mod idempotency_gateway;
mod idempotency_kept;
mod idempotency_key;
mod idempotency_layer;
mod idempotency_repeats;
mod idempotency_same;
mod idempotency_sandbox;
mod line_conformance;
mod line_redis;
mod listing;
mod lock_names;
mod locks;
mod logging;
mod network;
mod once_campaign;
mod openapi;
mod record_conformance;
mod record_differential;
mod record_redis;
mod record_stores;
mod redis_urls;
mod secrets;
mod shutdown;
mod stores;
mod support;
mod system;
mod waiting;
