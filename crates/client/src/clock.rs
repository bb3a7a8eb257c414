//! The clock by which the client counts validity.
//!
//! A lease also runs out while the machine is suspended, and the clocks of timers stand still then.
//! So validity is counted on the clock that runs on, and a sleep looks at it every second.

use std::ops::{Add, Sub};
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// The clock that never jumps and runs on while the machine is suspended.
#[cfg(any(target_os = "linux", target_os = "android"))]
const CLOCK: ClockId = ClockId::CLOCK_BOOTTIME;
/// The clock that never jumps. It runs on while macOS is suspended.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const CLOCK: ClockId = ClockId::CLOCK_MONOTONIC;

/// For how long a sleep trusts the clock of the timers, which stands still while the machine is
/// suspended.
const TICK: Duration = Duration::from_secs(1);

/// A point in time for counting validity: the time since the machine started, suspended or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BootInstant(Duration);

impl BootInstant {
    pub(crate) fn now() -> Self {
        // A clock that cannot be read would leave no lease valid, which is the safe side.
        Self(clock_gettime(CLOCK).map_or(Duration::MAX, Duration::from))
    }

    /// The moment at which this machine has run for so long.
    pub(crate) fn at(since_boot: Duration) -> Self {
        Self(since_boot)
    }

    /// How long the machine had run then.
    pub(crate) fn since_boot(self) -> Duration {
        self.0
    }

    /// What is left until then; nothing once it is past.
    pub(crate) fn left(self) -> Duration {
        self - Self::now()
    }

    /// Waits until then; at most a second longer if the machine is suspended meanwhile.
    pub(crate) async fn reached(self) {
        loop {
            let left = self.left();
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left.min(TICK)).await;
        }
    }
}

impl Add<Duration> for BootInstant {
    type Output = Self;

    fn add(self, later: Duration) -> Self {
        Self(self.0.saturating_add(later))
    }
}

impl Sub<Duration> for BootInstant {
    type Output = Self;

    fn sub(self, earlier: Duration) -> Self {
        Self(self.0.saturating_sub(earlier))
    }
}

impl Sub for BootInstant {
    type Output = Duration;

    /// The time since `earlier`; none if it is later.
    fn sub(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}
