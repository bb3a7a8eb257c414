//! The clock by which the client counts validity.
//!
//! A lease also runs out while the machine is suspended, and the clocks of timers stand still then.
//! So validity is counted on the clock that runs on, and a sleep looks at it every second.

use std::ops::Add;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// The clock that never jumps and runs on while the machine is suspended.
#[cfg(any(target_os = "linux", target_os = "android"))]
const CLOCK: ClockId = ClockId::CLOCK_BOOTTIME;
/// The clock that never jumps. It runs on while macOS is suspended.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const CLOCK: ClockId = ClockId::CLOCK_MONOTONIC;

/// For how long a sleep trusts the clock of the timers.
const TICK: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Clock {
    /// That of the machine.
    Boot,
    /// That of the runtime, which a test can pause and move; since then.
    #[cfg(feature = "testing")]
    Runtime(tokio::time::Instant),
}

impl Clock {
    pub(crate) fn now(self) -> BootInstant {
        let since_boot = match self {
            // A clock that cannot be read would leave no lease valid, which is the safe side.
            Self::Boot => clock_gettime(CLOCK).map_or(Duration::MAX, Duration::from),
            #[cfg(feature = "testing")]
            Self::Runtime(start) => start.elapsed(),
        };
        BootInstant { since_boot, clock: self }
    }
}

/// A point in time for counting validity: the time since the machine started, suspended or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BootInstant {
    pub(crate) since_boot: Duration,
    clock: Clock,
}

impl BootInstant {
    pub(crate) fn now(self) -> Self {
        self.clock.now()
    }

    /// The moment at which the same clock has run for so long.
    pub(crate) fn at(self, since_boot: Duration) -> Self {
        Self { since_boot, ..self }
    }

    /// What is left until then; nothing once it is past.
    pub(crate) fn left(self) -> Duration {
        self.since_boot.saturating_sub(self.now().since_boot)
    }

    /// Waits until then; at most a second longer if the machine is suspended meanwhile.
    pub(crate) async fn reached(self) {
        while !self.left().is_zero() {
            tokio::time::sleep(self.left().min(TICK)).await;
        }
    }
}

impl Add<Duration> for BootInstant {
    type Output = Self;

    fn add(self, later: Duration) -> Self {
        Self { since_boot: self.since_boot.saturating_add(later), ..self }
    }
}
