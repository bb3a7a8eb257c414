//! Waiting for a lock in its queue, or for several in the queues of all.
//!
//! A waiter acquires, waits for a hint, and acquires again, which keeps its queue entry. The hint
//! may get lost, so it also acquires again after a while. Each round is a new attempt of the
//! request, so that the withdrawal of a lost round never takes what a later one got. Invariant: a
//! waiter whose request ends leaves the queue, at once when its client has gone and after a pause
//! when the time is over. The tests `waiting`, `leavers` and the conformance of queues hold it.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::select_all;
use tokio::time::{Instant, timeout_at};
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::service::{LastReply, WaitLimit};
use super::withdrawal::PendingAttempt;
use super::{
    AcquireCommand, AcquireReply, Attempt, Contention, LockError, LockName, LockService, LockSet,
    TokenHash, Ttl,
};
use crate::store::{Effect, Hints, StoreError, Topic};
use crate::task::with_deadline;
use crate::waiters::WaiterPlace;

/// How long a queue entry outlives the process that keeps it.
const ENTRY_LASTS: Duration = Duration::from_millis(4000);
/// How often an entry is kept: two times may fail.
const KEEP_ENTRY: Duration = Duration::from_millis(1300);
/// The least pause before acquiring again without a hint.
const PAUSE_MIN: Duration = Duration::from_millis(2);
/// How much later than the waiter before it, each waiter acquires again after the lease ends.
const STAGGER: Duration = Duration::from_millis(20);
/// How long an entry is kept at most for a client that may retry when its time is over.
const RETRY_WINDOW_MAX: Duration = Duration::from_secs(1);
/// The pause after the store gave no response.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(250);

impl LockService {
    /// Acquires until the lock is granted or the patience is over, and calls `on_busy` after each
    /// round that found it taken. A store that is away is waited for as well.
    ///
    /// # Errors
    ///
    /// The store could not find out in the last round; or one response was lost so late that the
    /// lost round may still hold the lock; or the service shuts down.
    pub(super) async fn wait(
        &self,
        request: PendingAttempt,
        WaitLimit { until, may_return }: WaitLimit,
        mut on_busy: impl FnMut(&Contention),
    ) -> Result<LastReply, LockError> {
        let mut entry = self.join_waiters(may_return)?;
        let (mut number, mut lost) = (request.command.attempt, None::<LostRound>);
        // Before the first round, or a wakeup in between would go unheard.
        let mut wakeups = self.wakeups(&request.names, &request.command.token);
        loop {
            let (attempt, sent) = (Arc::new(round(&request, number)), Instant::now());
            let reply = self.attempt(&attempt).await;
            let pause = match &reply {
                Ok(AcquireReply::Busy(contention)) => {
                    lost.iter_mut().for_each(|lost| lost.is_overtaken = true);
                    entry.last = Some(Arc::clone(&attempt));
                    if contention.most_ahead >= self.limits.each {
                        return Err(full_queue(lost, &attempt));
                    }
                    on_busy(contention);
                    pause(contention, self.until_tick(&request.names))
                }
                // A grant, or a refusal that no release changes: neither keeps an entry. But a set
                // whose wait was ended in one queue still has those in the others, which the ticket
                // withdraws.
                Ok(found) => {
                    if matches!(found, AcquireReply::Crowded(_)) {
                        // It wrote nothing, so a lost round may still be carried out.
                        check_no_doubt(lost, attempt.command.ttl)?;
                    }
                    entry.last.take_if(|_| !matches!(found, AcquireReply::WaitEnded(_)));
                    return Ok(LastReply { reply: reply?, attempt, sent });
                }
                Err(error) => {
                    lost = LostRound::after(error, sent, lost, &attempt)?;
                    PAUSE_AFTER_ERROR
                }
            };
            if Instant::now() >= until || self.leaving.is_cancelled() {
                entry.end().await;
                check_no_doubt(lost, attempt.command.ttl)?;
                let last = LastReply { reply: reply?, attempt, sent };
                return if Instant::now() < until { Err(LockError::Leaving) } else { Ok(last) };
            }
            number = number.next(entry.last.is_some());
            let rest = timeout_at(until.min(Instant::now() + pause), wakeups.next());
            // A hint that does not come is made up for by the next round.
            let _ = self.leaving.run_until_cancelled(rest).await;
        }
    }

    /// Hints that one of the locks may be free for a waiter.
    fn wakeups(&self, names: &LockSet, token: &TokenHash) -> Hints {
        let hints = |name: &LockName| self.store.subscribe(Topic::Turn(name.clone(), *token));
        match names.names() {
            [name] => hints(name),
            names => Box::pin(select_all(names.iter().map(hints))),
        }
    }

    /// How long until the waiters of a lock keep their entries: all of this process at once, so
    /// that a store can keep them with one write. Locks have their ticks at different times.
    fn until_tick(&self, names: &LockSet) -> Duration {
        let bucket = names.names().iter().map(LockName::bucket).min().unwrap_or_default();
        let offset = KEEP_ENTRY * u32::from(bucket) / 256;
        let since_tick = (self.started.elapsed() + offset).as_nanos() % KEEP_ENTRY.as_nanos();
        KEEP_ENTRY - Duration::from_nanos(u64::try_from(since_tick).unwrap_or_default())
    }

    /// Counts one more waiter, which has no queue entry yet.
    fn join_waiters(&self, may_return: bool) -> Result<QueueTicket<'_>, LockError> {
        let place = self.waiter_room.enter().ok_or(LockError::TooManyWaiters)?;
        let (count, begun) = (self.waiters.token(), Instant::now());
        Ok(QueueTicket {
            service: self,
            _place: place,
            _count: count,
            begun,
            may_return,
            last: None,
        })
    }
}

/// A round of a request: a new attempt, which keeps a queue entry.
fn round(request: &PendingAttempt, attempt: Attempt) -> PendingAttempt {
    let command = AcquireCommand { queue: Some(ENTRY_LASTS), attempt, ..request.command.clone() };
    PendingAttempt { names: request.names.clone(), command }
}

/// An earlier round whose response was lost.
struct LostRound {
    sent: Instant,
    /// A later round has written the row, so the engine carries this one out no more.
    is_overtaken: bool,
}

impl LostRound {
    /// The round that is in doubt after one that failed, unless the next would fail as well.
    fn after(
        error: &StoreError,
        sent: Instant,
        before: Option<Self>,
        attempt: &PendingAttempt,
    ) -> Result<Option<Self>, LockError> {
        match error {
            StoreError::Unsupported => Err(StoreError::Unsupported.into()),
            // Nothing but its queue makes a lock so large.
            StoreError::TooLarge { .. } => Err(full_queue(before, attempt)),
            error if error.effect() == Effect::Unknown => {
                Ok(Some(Self { sent, is_overtaken: false }))
            }
            _ => Ok(before),
        }
    }
}

/// What a client reads that finds the queue full, unless an earlier round may have got the lock.
fn full_queue(lost: Option<LostRound>, attempt: &PendingAttempt) -> LockError {
    check_no_doubt(lost, attempt.command.ttl)
        .map_or_else(Into::into, |()| LockError::TooManyWaiters)
}

/// Returns `Lost` while an earlier round may hold the lock, or may come to hold it: its grant is
/// withdrawn in the background. The TTL alone ends no doubt, because an engine that tells no time
/// begins the lease when it carries the round out.
fn check_no_doubt(lost: Option<LostRound>, ttl: Ttl) -> Result<(), StoreError> {
    match lost {
        Some(lost) if !lost.is_overtaken || lost.sent.elapsed() < ttl.get() => {
            Err(StoreError::Lost("the answer to an earlier attempt of the same request".into()))
        }
        _ => Ok(()),
    }
}

/// How long to wait for a hint before acquiring without one, if entries are kept after
/// `until_tick`.
fn pause(contention: &Contention, until_tick: Duration) -> Duration {
    let pause = match &contention.holding {
        // A release wakes the first waiter, an expiry wakes none; and a waiter that becomes the
        // first because others left is not woken either. So all acquire again, one after another.
        Some(holding) => {
            let ahead = u32::try_from(contention.ahead).unwrap_or(u32::MAX);
            holding.first.expires_in.saturating_add(STAGGER.saturating_mul(ahead)).min(until_tick)
        }
        None => until_tick,
    };
    pause.max(PAUSE_MIN)
}

/// The queue entry of one request, which is withdrawn at once when the request is dropped.
struct QueueTicket<'a> {
    service: &'a LockService,
    _place: WaiterPlace,
    _count: TaskTrackerToken,
    begun: Instant,
    may_return: bool,
    /// The last round that kept the entry.
    last: Option<Arc<PendingAttempt>>,
}

impl QueueTicket<'_> {
    /// Withdraws the entry of a client that cannot return. Another client gets the time to do so:
    /// after a short wait little, so that it does not hold up the waiters behind for long. When the
    /// service shuts down its entry stays as long as it lasts, because it has to find another
    /// instance.
    async fn end(mut self) {
        let Some(PendingAttempt { names, command }) = self.last.as_deref() else { return };
        if !self.may_return {
            let step = self.service.store.withdraw(names, &command.token, command.attempt);
            // Else a task of the service withdraws it when this is dropped.
            if with_deadline(self.service.deadline, step).await.is_ok() {
                self.last = None;
            }
        } else if let Some(attempt) = self.last.take()
            && !self.service.leaving.is_cancelled()
        {
            let pause = self.begun.elapsed() / 4;
            self.service.withdraw_after(pause.min(RETRY_WINDOW_MAX), attempt);
        }
    }
}

impl Drop for QueueTicket<'_> {
    fn drop(&mut self) {
        if let Some(attempt) = &self.last {
            self.service.withdraw(attempt);
        }
    }
}
