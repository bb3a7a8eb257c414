//! Locks of every kind by one rule: what the rules answer, against a model written in another way.
//!
//! `oracle` is the model, and `properties` holds after every step of a random history. What each rule
//! means for a client is in `corners`.

#![expect(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod corners;
mod oracle;
mod properties;
mod sets;
