//! Locks of every kind by one rule: what the rules answer, against a model written in another way.
//!
//! `oracle` is the model, and `properties` holds after every step of a random history. `corners`
//! has what no reply shows; `tests/stores/mode_conformance.rs` has what each rule means for a
//! client.

#![expect(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod corners;
mod oracle;
mod properties;
mod sets;
