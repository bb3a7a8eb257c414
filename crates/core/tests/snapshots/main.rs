//! Snapshots of locks and records: without loss, and refused where they are not what this version
//! wrote.
//!
//! `reached` holds `decode(encode(state)) == state` for every record that the rules reach; the tests
//! of the modes do so for locks. `refused` has bytes that are no state.

#![expect(clippy::expect_used, reason = "a test fails by panicking")]

mod reached;
mod refused;
mod states;
