//! Snapshots of locks and records: without loss, readable for ever, and refused where they are not
//! what this version wrote.
//!
//! `reached` draws commands and holds `decode(encode(state)) == state` for every state that the rules
//! reach. `golden` has the bytes of every published format in files that never change. `refused`
//! has bytes that no version may take for a state.

#![expect(clippy::expect_used, reason = "a test fails by panicking")]

mod golden;
mod reached;
mod refused;
mod states;
