//! What the program holds, one lock or several, and the watchdog that renews it.
//!
//! The watchdog renews at each third of the TTL. It counts the validity from the sending of each
//! request, on [`BootInstant`], and gives the lease up a quarter of the TTL (at most 10 s) before
//! the validity ends, so that the program stops before another client can have the lock.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use keylatch_core::lock::{FencingToken, LockName, ReleaseReply, Token, Ttl};
use keylatch_core::watchdog::LeaseSchedule;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::Error;
use crate::clock::BootInstant;
use crate::session::{ANSWER_TIMEOUT, Claim, RenewalError, Session};
use crate::target::LeasedLock;

/// What is held: renewed in the background at each third of its TTL until the guard is closed,
/// dropped or lost.
///
/// Its validity is counted on a monotonic clock of this machine from the moment each request was
/// sent. It counts as lost a quarter of its TTL, and at most 10 s, *before* its validity ends, so
/// that there is time to stop; then it is not renewed any more.
///
/// Dropped, it is released in a task of its [`Client`](crate::Client); [`Guard::close`]
/// reports what became of that.
///
/// It is a [`LockGuard`] of one lock, or a [`SetGuard`] of several.
#[derive(Debug)]
pub struct Guard<L> {
    // The fields are dropped in this order: the watchdog does not renew what is being released.
    watchdog: AbortOnDropHandle<()>,
    session: Session,
    leased: L,
    until: watch::Receiver<BootInstant>,
    status: watch::Receiver<LeaseStatus>,
    lost: CancellationToken,
    closing: CancellationToken,
}

/// A lock that is held.
pub type LockGuard = Guard<LeasedLock>;

/// Several locks that are held under one token: renewed and released together, and lost when any of
/// them is.
pub type SetGuard = Guard<Vec<LeasedLock>>;

impl Guard<LeasedLock> {
    /// The name of the lock that the guard holds.
    pub fn name(&self) -> &LockName {
        &self.leased.name
    }

    /// Larger than that of every earlier grant of the lock that this one cannot be held together with: for
    /// the resource to compare.
    pub fn fencing_token(&self) -> FencingToken {
        self.leased.fencing_token
    }

    /// Which of the places is this guard's, from 0, where the lock was asked for with a number of them. No
    /// other holder has it as long as the lease lasts.
    pub fn slot(&self) -> Option<u32> {
        self.leased.slot
    }
}

impl Guard<Vec<LeasedLock>> {
    /// The locks, in the order of the set: each with its own fencing token and slot.
    pub fn locks(&self) -> &[LeasedLock] {
        &self.leased
    }

    /// One of the locks; `None` if it is not of the set.
    pub fn lock(&self, name: &LockName) -> Option<&LeasedLock> {
        self.leased.iter().find(|lock| lock.name == *name)
    }
}

impl<L> Guard<L> {
    /// Starts the watchdog of a lease that is valid until `until`.
    pub(crate) fn start(session: Session, ttl: Ttl, leased: L, until: BootInstant) -> Self {
        let claim = Arc::clone(session.claim());
        Self::watched(session, leased, until, |report| Watchdog { claim, ttl, report }.run())
    }

    /// Starts what watches over a lease that is valid until `until`, and reports what becomes of it.
    pub(crate) fn watched<F>(
        session: Session,
        leased: L,
        until: BootInstant,
        watch: impl FnOnce(LeaseReport) -> F,
    ) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (until, valid) = watch::channel(until);
        let (sender, status) = watch::channel(LeaseStatus::Held);
        let (lost, closing) = (CancellationToken::new(), CancellationToken::new());
        let report =
            LeaseReport { until, status: sender, lost: lost.clone(), closing: closing.clone() };
        let watchdog = AbortOnDropHandle::new(tokio::spawn(watch(report)));
        Self { watchdog, session, leased, until: valid, status, lost, closing }
    }

    /// The token that proves the lease, for a program that is to enter the lock again under it. It is
    /// that of all locks of a set.
    pub fn token(&self) -> &Token {
        self.session.claim().token()
    }

    /// For how long the lock, or all of the set, is exclusively this guard's from now on, unless it is
    /// renewed. Zero once that is over.
    pub fn valid_for(&self) -> Duration {
        self.until.borrow().left()
    }

    /// Is cancelled when the lock or any of the set is lost, or the validity is about to end unrenewed.
    pub fn lost(&self) -> CancellationToken {
        self.lost.clone()
    }

    /// Whether the lease is held, and why it is lost if it is.
    pub fn status(&self) -> LeaseStatus {
        self.status.borrow().clone()
    }

    /// The status as a channel, for a task that waits for a change of it.
    pub fn watch(&self) -> watch::Receiver<LeaseStatus> {
        self.status.clone()
    }

    /// Stops renewing and releases the lock; says whether the guard still held it. Of a set it releases
    /// all that the guard still holds, and says how the first of the others was lost. With
    /// [`AcquireOptions::keep`](crate::AcquireOptions::keep) it only stops renewing.
    ///
    /// # Errors
    ///
    /// The service gave no answer within 5 s, or refuses the request. The lease then ends by
    /// itself.
    pub async fn close(self) -> Result<ReleaseReply, Error> {
        let Self { watchdog, session, closing, .. } = self;
        closing.cancel();
        let reply = session.close().await;
        // Not before: the connection of a hold ends with its watchdog, and its lock with the connection.
        drop(watchdog);
        reply
    }
}

/// Whether a lease is held.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum LeaseStatus {
    /// It is held, and renewed as it should be.
    Held,
    /// It is lost, or will be before it can be renewed.
    Lost(LossReason),
}

/// Why a lease is lost.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum LossReason {
    /// The service says that no client holds the lock.
    NotHeld,
    /// The service says that another client holds the lock.
    TakenOver,
    /// Another client broke the lease, for this reason.
    Broken(String),
    /// It could not be renewed, and its validity is about to end. Says why, if there was an answer.
    Unrenewed(String),
    /// This process was paused, and the validity ended meanwhile.
    Paused,
    /// The service says that one lock of a set is lost, and so the set is. It is the first that is
    /// lost; the others may still be held until the guard is closed.
    OneOfSet {
        /// The name of the first lock that is lost.
        name: LockName,
        /// How it was lost.
        reason: Box<LossReason>,
    },
}

impl fmt::Display for LeaseStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Held => f.write_str("the lock is held"),
            Self::Lost(reason) => reason.fmt(f),
        }
    }
}

impl fmt::Display for LossReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotHeld => f.write_str("the lease has ended: no client holds the lock"),
            Self::TakenOver => f.write_str("the lease has ended: another client holds the lock"),
            Self::Broken(why) => write!(f, "the lease was broken: {why}"),
            Self::Unrenewed(why) => write!(f, "the lease could not be renewed in time: {why}"),
            Self::Paused => f.write_str("the lease ended while this process was paused"),
            Self::OneOfSet { name, reason } => write!(f, "`{name}`: {reason}"),
        }
    }
}

/// What a guard reads of its lease.
pub(crate) struct LeaseReport {
    /// When the validity ends.
    until: watch::Sender<BootInstant>,
    status: watch::Sender<LeaseStatus>,
    lost: CancellationToken,
    /// The guard is being closed: what ends now is not lost.
    closing: CancellationToken,
}

impl LeaseReport {
    pub(crate) fn until(&self) -> BootInstant {
        *self.until.borrow()
    }

    pub(crate) fn renewed(&self, until: BootInstant) {
        self.until.send_replace(until);
    }

    pub(crate) fn lose(&self, reason: LossReason) {
        if self.closing.is_cancelled() {
            return;
        }
        self.status.send_replace(LeaseStatus::Lost(reason));
        self.lost.cancel();
    }
}

/// The task that renews a lease at each third of its TTL.
struct Watchdog {
    claim: Arc<Claim>,
    ttl: Ttl,
    report: LeaseReport,
}

impl Watchdog {
    /// Renews until the lease is lost, and reports that, or until the guard is being closed.
    async fn run(self) {
        let lost = self.report.closing.run_until_cancelled(self.renew_until_lost()).await;
        if let Some(reason) = lost {
            self.report.lose(reason);
        }
    }

    async fn renew_until_lost(&self) -> LossReason {
        let until = self.report.until().since_boot();
        let (mut schedule, mut failure) = (LeaseSchedule::new(self.ttl.get(), until), None);
        loop {
            BootInstant::at(schedule.next_try()).reached().await;
            let sent = BootInstant::now().since_boot();
            if sent >= schedule.valid_until() {
                return failure.map_or(LossReason::Paused, LossReason::Unrenewed);
            }
            let Some(limit) = schedule.try_limit(sent) else {
                let why = failure.unwrap_or_else(|| "there was no time".to_owned());
                return LossReason::Unrenewed(why);
            };
            match self.claim.renew(self.ttl, limit.min(ANSWER_TIMEOUT)).await {
                Ok(grant) => {
                    schedule.renewed(sent, sent.saturating_add(grant.valid_from_sending));
                    self.report.renewed(BootInstant::at(schedule.valid_until()));
                    failure = None;
                }
                Err(RenewalError::Lost(reason)) => return reason,
                Err(RenewalError::Failed { after, error }) => {
                    let now = BootInstant::now().since_boot();
                    schedule.failed(now, after.unwrap_or_default());
                    failure = Some(error.to_string());
                }
            }
        }
    }
}
