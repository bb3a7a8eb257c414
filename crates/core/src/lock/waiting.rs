use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::{Acquire, Acquisition, Busy, LockError, LockService, Outcome, StoreError, Ttl};

/// How long a place in line outlives the process that keeps it.
const PLACE: Duration = Duration::from_millis(4000);
/// How often a place is kept: two times may fail.
const KEEP_PLACE: Duration = Duration::from_millis(1300);
/// The least pause before asking again when nobody said that a turn has come.
const MIN_PAUSE: Duration = Duration::from_millis(2);
/// How much later than the one before, each in line looks whether the lease is over.
const IN_TURN: Duration = Duration::from_millis(20);
/// For how long a place is kept for who may ask again when the time to wait is over, at most.
const MAY_ASK_AGAIN: Duration = Duration::from_secs(1);
/// The pause after the store could not be asked.
const AFTER_ERROR: Duration = Duration::from_millis(250);

/// How many may wait.
#[derive(Debug, Clone, Copy)]
pub struct WaiterLimits {
    /// For one lock.
    pub each: u64,
    /// In this process, for all locks.
    pub all: usize,
}

/// What asking for a lock came to.
pub(super) struct Asked {
    pub(super) found: Acquisition,
    /// How the store was asked the last time, and when.
    pub(super) ask: Arc<Acquire>,
    pub(super) asked: Instant,
}

impl LockService {
    /// Asks until the lock is had or `until` is over, and tells each time that it was not. A store
    /// that is away is waited for as well.
    ///
    /// # Errors
    ///
    /// The store could not find out the last time; or one answer was lost so late that what was not had
    /// since may yet be.
    pub(super) async fn wait(
        &self,
        ask: Acquire,
        until: Instant,
        mut tell: impl FnMut(&Busy),
    ) -> Result<Asked, LockError> {
        let _counted = self.count_waiter()?;
        let begun = Instant::now();
        let mut place = Place { service: self, last: None };
        let mut lost = None;
        loop {
            // Of an attempt whose answer was lost, what it got is taken back: the next is another.
            let next = Acquire { place: Some(PLACE), attempt: self.next_attempt(), ..ask.clone() };
            let ask = Arc::new(next);
            // Taken before asking, or a turn in between would go unheard.
            let turn = self.store.turn(&ask.name, &ask.token);
            let asked = Instant::now();
            let found = self.ask(&ask).await;
            let pause = match &found {
                Ok(Acquisition::Held(busy)) => {
                    place.last = Some(Arc::clone(&ask));
                    if busy.ahead >= self.limits.each {
                        all_is_known(lost, ask.ttl)?;
                        return Err(LockError::TooManyWaiters);
                    }
                    tell(busy);
                    pause(busy)
                }
                Ok(Acquisition::Granted(_) | Acquisition::Repeated(_)) => {
                    place.last = None;
                    return Ok(Asked { found: found?, ask, asked });
                }
                Err(error) => {
                    lost = (error.outcome() == Outcome::Unknown).then_some(asked).or(lost);
                    AFTER_ERROR
                }
            };
            if Instant::now() >= until {
                place.leave_after(begun.elapsed() / 4);
                all_is_known(lost, ask.ttl)?;
                return Ok(Asked { found: found?, ask, asked });
            }
            // A hint that does not come is made up for by asking again.
            drop(timeout_at(until.min(Instant::now() + pause), turn).await);
        }
    }

    fn count_waiter(&self) -> Result<Waiter<'_>, LockError> {
        let waiter = Waiter(&self.waiters);
        if self.waiters.fetch_add(1, Ordering::Relaxed) >= self.limits.all {
            return Err(LockError::TooManyWaiters);
        }
        Ok(waiter)
    }
}

/// Fails for an attempt that was asked at `lost` and not answered: what it may have got is taken back, and
/// not surely before its TTL is over.
fn all_is_known(lost: Option<Instant>, ttl: Ttl) -> Result<(), StoreError> {
    match lost {
        Some(asked) if asked.elapsed() < ttl.get() => {
            Err(StoreError::Lost("the answer to an earlier attempt of the same request".into()))
        }
        _ => Ok(()),
    }
}

/// For how long to wait for a hint before asking without one.
fn pause(busy: &Busy) -> Duration {
    let pause = match &busy.holder {
        // Who is first in line is told of a release, and of an expiry by nobody; and who is first
        // because those before left is not told of that. So all look, one after the other.
        Some(holder) => {
            let ahead = u32::try_from(busy.ahead).unwrap_or(u32::MAX);
            holder.expires_in.saturating_add(IN_TURN.saturating_mul(ahead)).min(KEEP_PLACE)
        }
        None => KEEP_PLACE,
    };
    pause.max(MIN_PAUSE)
}

/// One of those who wait in this process.
struct Waiter<'a>(&'a AtomicUsize);

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A place in line, which is given up at once when nobody waits in it any more.
struct Place<'a> {
    service: &'a LockService,
    /// The last attempt that kept it.
    last: Option<Arc<Acquire>>,
}

impl Place<'_> {
    /// Gives the place up a little later, unless it was asked for again meanwhile. A short wait
    /// does not hold up those behind for long.
    fn leave_after(mut self, pause: Duration) {
        if let Some(ask) = self.last.take() {
            self.service.take_back_after(pause.min(MAY_ASK_AGAIN), ask);
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if let Some(ask) = &self.last {
            self.service.take_back(ask);
        }
    }
}
