//! The one clock of the lock campaign.
//!
//! Goal: the checker can compare the times of all clients, faults and promotions.
//!
//! Method: `now` reads `CLOCK_MONOTONIC_RAW`, which no process can set, so a fault that sets the
//! wall clock of Redis never changes a time of the history. Every campaign in `mod.rs` runs on this
//! clock.

use std::future::pending;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use tokio::time::timeout;

use super::history::Micros;

/// The time on the clock that no process can set or slew.
pub(super) fn now() -> Micros {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC_RAW).expect("a clock");
    micros(Duration::from(now))
}

pub(super) fn micros(time: Duration) -> Micros {
    u64::try_from(time.as_micros()).expect("a short time")
}

/// Lets time pass: it is what leases are about.
pub(in super::super) async fn pass(time: Duration) {
    let _ = timeout(time, pending::<()>()).await;
}
