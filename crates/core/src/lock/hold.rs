//! Holding a lock for as long as a connection reads its events.
//!
//! One task of the service acquires, renews by the schedule of `watchdog.rs` and releases. The
//! channel of events has eight places: renewals that do not fit are left out, and one place each is
//! kept for `Acquired` and for the last event, so a client that reads nothing delays nothing.
//! Invariant: the receiver reads `Lost` before the lease can be another's. The tests `hold` and
//! `hold_endings` hold it.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use super::{
    AcquireRequest, Acquisition, Break, Contention, FencingToken, Grant, GrantEnd, Lease,
    LockError, LockLoss, LockService, ReleaseReply, Renewal, Token, Validity,
};
use crate::retry::Retry;
use crate::watchdog::{LeaseSchedule, notice, retry_pause};

/// How many events may wait for their reader.
const EVENTS: usize = 8;
/// The longest time between the event that a lock is lost and its release, where its lease could
/// last.
const GRACE_MAX: Duration = Duration::from_secs(1);

/// A lock to hold for as long as a client reads its events.
#[derive(Debug)]
pub struct HoldRequest {
    /// The lock to hold, and how; other clients may hold it too, as its `limit` allows. Each
    /// renewal lets the lease last its TTL.
    pub acquire: AcquireRequest,
    /// The proof, with which it can be renewed and released by others too.
    pub token: Token,
    /// For how long it is held at most, from when it is acquired.
    pub max_hold: Duration,
    /// What hears how the hold goes.
    pub observer: Option<Arc<dyn HoldObserver>>,
}

/// What hears how a hold goes, also where no reader of events is left.
pub trait HoldObserver: fmt::Debug + Send + Sync {
    /// The lock was granted.
    fn granted(&self, lease: &Lease);
    /// The grant with this fencing token is lost, or will be in a moment.
    fn lost(&self, fencing_token: FencingToken, reason: &LossReason);
    /// The lock was released; the end of the grant, where the store says more.
    fn released(&self, end: Option<&GrantEnd>);
}

/// What happens to a lock that the service holds for as long as a client reads these events.
#[derive(Debug)]
pub enum HoldEvent {
    /// The lock is not to be had yet.
    Waiting {
        /// How many waiters are before this one.
        ahead: u64,
    },
    /// The lock is held.
    Acquired(Grant),
    /// The lease was renewed.
    Renewed {
        /// The lease.
        lease: Lease,
        /// Until when it is exclusive, counted from the arrival of the request.
        validity: Validity,
    },
    /// The lock is lost, or will be in a moment. Nothing follows.
    Lost(LossReason),
    /// The lock was never held. Nothing follows.
    Refused(HoldRefusal),
}

/// Why a lock that was held is lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LossReason {
    /// It was held for as long as it may be.
    MaxHold,
    /// The service shuts down.
    Shutdown,
    /// The client may not hold it any more.
    Revoked,
    /// No client holds it: it was released with its token, or the store forgot it.
    NotHeld,
    /// Another client holds it.
    TakenOver,
    /// The lease was broken. It may last a little, and cannot be renewed.
    Broken(Arc<Break>),
    /// It could not be renewed, and its validity is about to end.
    Unrenewed,
}

/// Why a lock was not acquired.
#[derive(Debug)]
pub enum HoldRefusal {
    /// Another client held it, or others were before, for as long as there was time to wait.
    Held {
        /// Why the lock is not to be had.
        contention: Contention,
        /// How long the client has waited.
        waited: Duration,
    },
    /// The client would have to wait behind more than it said.
    Crowded(Contention),
    /// The client holds it already, and would have to hold it alone for what it asks.
    NotAlone(Contention),
    /// As many hold it as may, or the client entered it as often as it may.
    Full,
    /// The service has no response.
    Failed(LockError),
    /// The service shuts down.
    Shutdown,
    /// The client may not wait for it any more.
    Revoked,
}

impl LockService {
    /// Acquires a lock, renews it at each third of its TTL, and releases it when the receiver is
    /// dropped, when `leaving` is cancelled or `revoked` ends, or when it was held for long enough.
    ///
    /// A task of the service does all of it. A reader that is slow may miss that the lease was
    /// renewed, but not that it was acquired or lost.
    pub fn hold(
        self: &Arc<Self>,
        hold: HoldRequest,
        leaving: CancellationToken,
        revoked: impl Future<Output = ()> + Send + 'static,
    ) -> mpsc::Receiver<HoldEvent> {
        let arrived = Instant::now();
        let (events, receiver) = mpsc::channel(EVENTS);
        let HoldRequest { acquire, token, max_hold, observer } = hold;
        let request = AcquireRequest { token: Some(token.clone()), ..acquire };
        let service = Arc::clone(self);
        let task =
            HoldTask { service, request, token, max_hold, arrived, events, leaving, observer };
        self.streams.spawn(task.run(revoked));
        receiver
    }
}

/// The task behind one [`HoldRequest`].
struct HoldTask {
    service: Arc<LockService>,
    /// Its entry ends with the hold; without one, all end.
    request: AcquireRequest,
    token: Token,
    max_hold: Duration,
    /// When the request arrived: the schedule counts from here.
    arrived: Instant,
    events: mpsc::Sender<HoldEvent>,
    leaving: CancellationToken,
    observer: Option<Arc<dyn HoldObserver>>,
}

impl HoldTask {
    async fn run(self, revoked: impl Future<Output = ()>) {
        let mut revoked = pin!(revoked);
        // There is room for the last event whatever was not read.
        let Ok(last) = self.events.clone().reserve_owned().await else { return };
        let grant = match self.acquire(revoked.as_mut()).await {
            None => return,
            Some(Err(refused)) => {
                last.send(HoldEvent::Refused(refused));
                return;
            }
            Some(Ok(grant)) => grant,
        };
        let valid_until = self.since_arrival(grant.validity.until);
        let schedule = LeaseSchedule::new(self.request.ttl.get(), valid_until);
        let fencing_token = grant.lease().fencing_token;
        self.send(HoldEvent::Acquired(grant));
        let lost = tokio::select! {
            biased;
            () = self.events.closed() => None,
            () = self.leaving.cancelled() => Some(LossReason::Shutdown),
            () = revoked => Some(LossReason::Revoked),
            () = sleep(self.max_hold) => Some(LossReason::MaxHold),
            lost = self.renew_until_lost(schedule) => Some(lost),
        };
        if let Some(lost) = lost {
            let grace = self.grace(&lost);
            if let Some(observer) = &self.observer {
                observer.lost(fencing_token, &lost);
            }
            last.send(HoldEvent::Lost(lost));
            let Some(grace) = grace else { return };
            // The reader needs a moment to stop, and may close the connection when it has.
            let _ = timeout(grace, self.events.closed()).await;
        }
        self.release().await;
    }

    /// The lock, if it is to be had; `None` if the client has gone. The service withdraws what is
    /// dropped here, be it the lock or a queue entry.
    async fn acquire(
        &self,
        revoked: impl Future<Output = ()>,
    ) -> Option<Result<Grant, HoldRefusal>> {
        let mut reported = None;
        let report = |contention: &Contention| {
            // One place is for the event that the lock is acquired.
            if reported != Some(contention.ahead) && self.events.capacity() > 1 {
                reported = Some(contention.ahead);
                self.send(HoldEvent::Waiting { ahead: contention.ahead });
            }
        };
        let acquired = tokio::select! {
            biased;
            () = self.events.closed() => return None,
            () = self.leaving.cancelled() => return Some(Err(HoldRefusal::Shutdown)),
            () = revoked => return Some(Err(HoldRefusal::Revoked)),
            acquired = self.service.acquire_and_report(self.request.clone(), report) => acquired,
        };
        if let (Ok(Acquisition::New(grant)), Some(observer)) = (&acquired, &self.observer) {
            observer.granted(grant.lease());
        }
        Some(match acquired {
            Ok(Acquisition::New(grant) | Acquisition::Again(grant)) => {
                let validity = Validity { arrived: self.arrived, ..grant.validity };
                Ok(Grant { validity, ..grant })
            }
            Ok(Acquisition::Held { contention, waited }) => {
                Err(HoldRefusal::Held { contention, waited })
            }
            Ok(Acquisition::Crowded(contention)) => Err(HoldRefusal::Crowded(contention)),
            Ok(Acquisition::NotAlone(contention)) => Err(HoldRefusal::NotAlone(contention)),
            Ok(Acquisition::Full) => Err(HoldRefusal::Full),
            Err(error) => Err(HoldRefusal::Failed(error)),
        })
    }

    /// Renews a lease by its schedule, and says why it cannot be renewed any more.
    async fn renew_until_lost(&self, mut schedule: LeaseSchedule) -> LossReason {
        let AcquireRequest { names, ttl, .. } = &self.request;
        loop {
            sleep_until(self.arrived + schedule.next_try()).await;
            let sent = Instant::now();
            let Some(limit) = schedule.try_limit(self.since_arrival(sent)) else {
                return LossReason::Unrenewed;
            };
            let renewal = self.service.renew(names, &self.token, *ttl);
            match timeout_at(sent + limit, renewal).await {
                Ok(Ok(Renewal::Renewed { leases, validity })) => {
                    let until = self.since_arrival(validity.until);
                    schedule.renewed(self.since_arrival(sent), until);
                    let until = self.arrived + schedule.valid_until();
                    let validity = Validity { arrived: self.arrived, until };
                    if let Some(lease) = leases.into_iter().next() {
                        self.send(HoldEvent::Renewed { lease, validity });
                    }
                    continue;
                }
                Ok(Ok(Renewal::Lost(lost))) => {
                    return match lost.into_iter().next().map(|lost| lost.loss) {
                        None | Some(LockLoss::NotHeld) => LossReason::NotHeld,
                        Some(LockLoss::Mismatch) => LossReason::TakenOver,
                        Some(LockLoss::Broken(why)) => LossReason::Broken(why),
                    };
                }
                Ok(Err(error)) => tracing::debug!(%error, "a held lock is not yet renewed"),
                Err(_) => tracing::debug!("the renewal of a held lock got no answer"),
            }
            schedule.failed(self.since_arrival(Instant::now()), Duration::ZERO);
        }
    }

    /// How long the reader has to stop before the lock is released; `None` where it is lost
    /// already. The notice of a lease that could not be renewed is all that is left of its
    /// validity.
    fn grace(&self, lost: &LossReason) -> Option<Duration> {
        let notice = notice(self.request.ttl.get());
        match lost {
            LossReason::NotHeld | LossReason::TakenOver => None,
            LossReason::Unrenewed => Some(notice),
            LossReason::MaxHold
            | LossReason::Shutdown
            | LossReason::Revoked
            | LossReason::Broken(_) => Some(notice.min(GRACE_MAX)),
        }
    }

    /// Sends an event that need not be read.
    fn send(&self, event: HoldEvent) {
        // A full channel has a reader that is slow, and misses a renewal.
        let _ = self.events.try_send(event);
    }

    /// Releases the lock, trying until the lease has expired by itself. The events end with the
    /// first try, whatever comes of it.
    async fn release(self) {
        let Self { service, request, token, events, observer, .. } = self;
        let AcquireRequest { names, entry, ttl, .. } = request;
        let ttl = ttl.get();
        let step = || service.leave(&names, &token, entry.clone());
        let first = step().await;
        drop(events);
        let retry = Retry { try_limit: ttl, pause: retry_pause(ttl), limit: ttl };
        let released = match first {
            Ok(released) => Some(released),
            Err(_) => retry.run("the release of a held lock", step).await,
        };
        let Some(released) = released else {
            tracing::warn!("a held lock could not be released and was left to expire");
            return;
        };
        for (reply, end) in released {
            if let (ReleaseReply::Released, Some(observer)) = (reply, &observer) {
                observer.released(end.as_ref());
            }
        }
    }

    fn since_arrival(&self, moment: Instant) -> Duration {
        moment.saturating_duration_since(self.arrived)
    }
}
