//! Snapshots of locks and records: without loss, and refused where they are not what this version
//! wrote.
//!
//! `reached` draws commands and holds `decode(encode(state)) == state` for every state that the
//! rules reach. `refused` has bytes that are no state.

#![expect(clippy::expect_used, reason = "a test fails by panicking")]

mod reached;
mod refused;
mod states;
