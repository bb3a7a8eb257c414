//! Long runs of many clients while processes, stores and networks fail (`make test-all`).
//!
//! `KEYLATCH_TEST_SCALE` makes them longer (`make test-long`), `KEYLATCH_TEST_SEED` decides the
//! faults.

#![warn(clippy::disallowed_methods)]
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod jobs;
mod lateness;
mod leavers;
mod locks;
mod once;

use keylatch_testkit::Program;

/// The command under test.
static KEYLATCH: Program = Program::at(env!("CARGO_BIN_EXE_keylatch"));
