//! The clock by which the client counts validity.
//!
//! A lease also runs out while the machine is suspended, and the clocks of timers stand still then.
//! So validity is counted on the clock that runs on. On Linux a sleep has a timer of the kernel on
//! that clock, and wakes nobody before. Each takes a file descriptor, so there are a few, and all
//! other sleeps look at the clock every second.

use std::ops::Add;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// The clock that never jumps and runs on while the machine is suspended.
#[cfg(any(target_os = "linux", target_os = "android"))]
const CLOCK: ClockId = ClockId::CLOCK_BOOTTIME;
/// The clock that never jumps. It runs on while macOS is suspended.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const CLOCK: ClockId = ClockId::CLOCK_MONOTONIC;

/// For how long a sleep trusts the clock of the runtime, which stands still while the machine is
/// suspended.
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
        #[cfg(any(target_os = "linux", target_os = "android"))]
        if self.clock == Clock::Boot && !self.left().is_zero() {
            kernel::reached(self.since_boot).await;
        }
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

/// Timers of the kernel on the clock that runs on.
#[cfg(any(target_os = "linux", target_os = "android"))]
mod kernel {
    use std::io;
    use std::os::fd::OwnedFd;
    use std::time::Duration;

    use nix::sys::time::TimeSpec;
    use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
    use tokio::io::unix::AsyncFd;
    use tokio::sync::Semaphore;

    /// How many there may be at a time.
    static PLACES: Semaphore = Semaphore::const_new(16);

    /// Waits until then if a timer is to be had.
    pub(super) async fn reached(since_boot: Duration) {
        let Ok(_place) = PLACES.try_acquire() else { return };
        if let Ok(timer) = timer_at(since_boot) {
            let _ = timer.readable().await;
        }
    }

    #[expect(
        deprecated,
        reason = "what replaces it is unsafe, and one `OwnedFd` is one descriptor"
    )]
    fn timer_at(since_boot: Duration) -> io::Result<AsyncFd<OwnedFd>> {
        let flags = TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC;
        let timer = TimerFd::new(ClockId::CLOCK_BOOTTIME, flags)?;
        let at = Expiration::OneShot(TimeSpec::from_duration(since_boot));
        timer.set(at, TimerSetTimeFlags::TFD_TIMER_ABSTIME)?;
        AsyncFd::new(OwnedFd::from(timer))
    }
}
