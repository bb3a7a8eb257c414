//! The time that a test's store has, where a test moves the clock of a server.
//!
//! A store dates what people read by its own wall clock, so an assertion of a date has to know how
//! far the test moved it. Invariant: each test runs on a thread of its own, and what passed is
//! noted there.

use std::cell::Cell;
use std::time::{Duration, SystemTime};

thread_local! {
    /// What has passed for the store of the test that runs on this thread.
    static PASSED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// The time since 1970 by the wall clock of the test's store: where a test moves the clock of a
/// server, also that by which it dates what people read.
pub fn store_time() -> Duration {
    SystemTime::UNIX_EPOCH.elapsed().expect("a clock after 1970") + PASSED.get()
}

/// Notes that a test moved the clock of its store.
pub(crate) fn pass_for_store(by: Duration) {
    PASSED.set(PASSED.get() + by);
}
