//! The task of a store that removes what has expired.
//!
//! A store starts it and owns it, so that it ends with the store. Invariant: the task keeps no core
//! busy, however many entries there are. Tested below, and in the file of each store.

use std::time::Duration;

use keylatch_core::store::{StoreError, chain};
use tokio::time::{Instant, sleep};
use tokio_util::task::AbortOnDropHandle;

/// The pause before expired locks are removed again, at the least.
const LOCK_SWEEP_PERIOD: Duration = Duration::from_secs(5);
/// The pause for each entry that was looked at: some forty times as long as the look takes, so that
/// sweeps keep no more than a fortieth of a core busy, however many entries there are.
const PAUSE_PER_LOOK: Duration = Duration::from_micros(10);
/// How many sweeps of the locks there are to one of the records.
const SWEEPS_PER_RECORD_SWEEP: u32 = 6;

/// What removes the expired entries of a store. It may outlive the store by a moment, and does not
/// keep its file open.
pub(crate) trait Sweeper: Send + 'static {
    /// Removes expired locks, and expired records as well where that is due. Gives how many entries
    /// it looked at in this process.
    fn sweep(&mut self, records: bool) -> impl Future<Output = Result<usize, StoreError>> + Send;
}

/// Sweeps until the handle is dropped; it has to be called within a tokio runtime.
pub(crate) fn start(mut sweeper: impl Sweeper) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(async move {
        let mut pause = LOCK_SWEEP_PERIOD;
        let mut failures = Failures { count: 0, since: Instant::now() };
        for sweep in 1_u32.. {
            sleep(pause).await;
            let records = sweep.is_multiple_of(SWEEPS_PER_RECORD_SWEEP);
            let swept = sweeper.sweep(records).await;
            let is_news = failures.note(swept.is_err());
            let for_s = failures.since.elapsed().as_secs();
            match &swept {
                Err(error) if is_news => {
                    tracing::warn!(error = chain(error), for_s, "what has expired is not removed");
                }
                Ok(_) if is_news => tracing::info!(for_s, "what has expired is removed again"),
                _ => {}
            }
            pause = pause_after(swept.unwrap_or_default());
        }
    }))
}

/// Sweeps that failed one after the other.
struct Failures {
    count: u32,
    since: Instant,
}

impl Failures {
    /// Counts a sweep, and gives whether the log says so: of the first that failed, the second, the
    /// fourth, the eighth and so on, and of the first that did not fail after them.
    fn note(&mut self, has_failed: bool) -> bool {
        let before = self.count;
        if before == 0 {
            self.since = Instant::now();
        }
        self.count = if has_failed { before + 1 } else { 0 };
        if has_failed { self.count.is_power_of_two() } else { before > 0 }
    }
}

/// The pause after a sweep that looked at so many entries.
fn pause_after(looks: usize) -> Duration {
    let looks = u32::try_from(looks).unwrap_or(u32::MAX);
    LOCK_SWEEP_PERIOD.max(PAUSE_PER_LOOK.saturating_mul(looks))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failing_sweeps_are_told_less_and_less_often() {
        let mut failures = Failures { count: 0, since: Instant::now() };
        assert!(!failures.note(false));
        let told: Vec<_> = (1..=20).filter(|_| failures.note(true)).collect();
        assert_eq!(told, [1, 2, 4, 8, 16]);
        assert_eq!([failures.note(false), failures.note(false)], [true, false]);
    }

    #[test]
    fn sweeper_rests_for_longer_after_more_entries() {
        for (looks, seconds) in [(0, 5), (500_000, 5), (10_000_000, 100)] {
            assert_eq!(pause_after(looks).as_secs(), seconds, "after {looks}");
        }
    }
}
