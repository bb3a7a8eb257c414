//! Everything that is tested against a whole service or a whole store, as one binary.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod architecture;
mod bad_days;
mod commands;
mod conformance;
mod crash;
mod differential;
mod embedded;
mod fences;
mod logging;
mod network;
mod secrets;
mod shutdown;
mod stores;
mod support;
