//! Everything that is tested against a whole service or a whole store, as one binary.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod bad_days;
mod conformance;
mod crash;
mod differential;
mod embedded;
mod fences;
mod stores;
mod support;
