//! What the program holds, one lock or several, and the watchdog that renews it.
//!
//! A guard that is dropped is released in the background. A lease is renewed at each third of its
//! TTL, by the schedule of the core, and its validity counts from the sending of each request.
//! Invariant: what a guard says of the validity is never later than what the service promised.
//! Tested in `tests/api/rust_client.rs` and by the scenarios of `clients/conformance`.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use keylatch_core::lock::{ReleaseReply, Token};
use keylatch_core::watchdog::LeaseSchedule;
use keylatch_wire::ProblemDocument;
use tokio_util::sync::DropGuard;
use tokio_util::task::AbortOnDropHandle;

use crate::clock::BootInstant;
use crate::connection::Failure;
use crate::session::Parting;
use crate::target::{Claim, Grant, LeasedLock};
use crate::{Lease, LossReason, Result};

const RENEWAL_LIMIT: Duration = Duration::from_secs(5);

/// What is held: renewed in the background at each third of its TTL until the guard is closed,
/// dropped or lost. It counts as lost a quarter of its TTL, and at most 10 s, *before* its validity
/// ends, so that there is time to stop. Its [`Lease`] says so.
///
/// Dropped, it is released in a task of its [`Client`](crate::Client), or by a thread where the
/// runtime ends first; [`Guard::close`] reports what became of that.
///
/// It is a [`LockGuard`] of one lock, or a [`SetGuard`] of several.
#[derive(Debug)]
pub struct Guard<L> {
    // The fields are dropped in this order: the watchdog does not renew what is being released.
    watchdog: Watchdog,
    claim: Arc<Claim>,
    parting: Parting,
    leased: L,
    lease: Lease,
}

/// A lock that is held.
pub type LockGuard = Guard<LeasedLock>;

/// Several locks that are held under one token: renewed and released together, and lost when any of
/// them is.
pub type SetGuard = Guard<Vec<LeasedLock>>;

impl Guard<LeasedLock> {
    /// The name of the lock that the guard holds.
    pub fn name(&self) -> &str {
        &self.leased.name
    }

    /// Which of the places is this guard's, from 0, where the lock was asked for with a number of
    /// them. No other holder has it as long as the lease lasts.
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
    pub fn lock(&self, name: &str) -> Option<&LeasedLock> {
        self.leased.iter().find(|lock| lock.name == name)
    }
}

impl<L> Guard<L> {
    pub(crate) fn start(claim: Arc<Claim>, parting: Parting, grant: &Grant, leased: L) -> Self {
        let kept = Arc::clone(&claim);
        Self::watched(claim, parting, grant, leased, |lease| async move {
            let renew = async |limit| Ok(kept.renew(limit).await?.until);
            keep(lease, renew, |problem| kept.loss(problem)).await;
        })
    }

    /// Starts what watches over what is granted.
    pub(crate) fn watched<F: Future<Output = ()> + Send + 'static>(
        claim: Arc<Claim>,
        mut parting: Parting,
        grant: &Grant,
        leased: L,
        watch: impl FnOnce(Lease) -> F,
    ) -> Self {
        parting.call = (!claim.options.keep).then(|| claim.release_call());
        let fence = grant.first.fencing_token;
        let lease = Lease::new(claim.text(), fence, claim.options.ttl, grant.until);
        Self { watchdog: watchdog(&lease, watch(lease.clone())), claim, parting, leased, lease }
    }

    /// Its lease, for the tasks that work under it.
    pub fn lease(&self) -> Lease {
        self.lease.clone()
    }

    /// The token that proves the lease, for a program that is to enter the lock again under it. It
    /// is that of all locks of a set.
    pub fn token(&self) -> &Token {
        &self.claim.token
    }

    /// Stops renewing and releases the lock; says whether the guard still held it. Of a set it
    /// releases all that the guard still holds, and says how the first of the others was lost. With
    /// [`AcquireOptions::keep`](crate::AcquireOptions::keep) it only stops renewing.
    ///
    /// # Errors
    ///
    /// The service gave no response within 5 s, or refuses the request. The lease then ends by
    /// itself.
    pub async fn close(self) -> Result<ReleaseReply> {
        let Self { watchdog: (ending, watching), claim, mut parting, .. } = self;
        drop(ending);
        if claim.options.keep {
            return Ok(ReleaseReply::Released);
        }
        let reply = claim.release().await;
        parting.call = None;
        // Not before: the connection of a hold ends with its watchdog, and its lock with the
        // connection.
        drop(watching);
        reply
    }

    /// Stops renewing and leaves the lock held for `ttl` from now. Retries until the service has
    /// responded or the lease is over.
    ///
    /// # Errors
    ///
    /// The lease is lost, the service refuses the TTL, or gave no response in time.
    pub async fn leave_for(self, ttl: Duration) -> Result<()> {
        let Self { watchdog, claim, mut parting, lease, .. } = self;
        drop(watchdog);
        parting.call = None;
        let left = claim.connection.done(&claim.renewal(ttl), lease.until().left()).await;
        left.map(drop).map_err(|error| {
            match error.problem().and_then(|problem| claim.loss(problem)) {
                Some(reason) => lease.lost_by(reason).into(),
                None => error.unavailable(),
            }
        })
    }
}

impl<L> Deref for Guard<L> {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.lease
    }
}

/// What watches over a lease. Dropped, it ends it, and watches no more.
pub(crate) type Watchdog = (DropGuard, AbortOnDropHandle<()>);

pub(crate) fn watchdog(
    lease: &Lease,
    watch: impl Future<Output = ()> + Send + 'static,
) -> Watchdog {
    let watch = AbortOnDropHandle::new(tokio::spawn(watch));
    (lease.closing().clone().drop_guard(), watch)
}

/// Renews a lease until it is lost, or until it is being closed. `renew` tries once, within a time,
/// and gives until when the lease is valid; `loss` says which problems are its loss.
pub(crate) async fn keep<F: Future<Output = Result<BootInstant, Failure>>>(
    lease: Lease,
    renew: impl Fn(Duration) -> F,
    loss: impl Fn(&ProblemDocument) -> Option<LossReason>,
) {
    let mut schedule = LeaseSchedule::new(lease.ttl(), lease.until().since_boot);
    let kept = async {
        loop {
            lease.until().at(schedule.next_try()).reached().await;
            let sent = lease.until().now();
            let limit = match (lease.loss(), schedule.try_limit(sent.since_boot)) {
                (None, Some(limit)) => limit,
                (loss, _) => return loss.unwrap_or(LossReason::Paused),
            };
            match renew(limit.min(RENEWAL_LIMIT)).await {
                Ok(until) => {
                    schedule.renewed(sent.since_boot, until.since_boot);
                    lease.renewed(sent.at(schedule.valid_until()));
                }
                Err(Failure { error, retry_after }) => {
                    if let Some(reason) = error.problem().and_then(&loss) {
                        return reason;
                    }
                    schedule.failed(sent.now().since_boot, retry_after.unwrap_or_default());
                    lease.failed(error.unavailable().to_string());
                }
            }
        }
    };
    if let Some(reason) = lease.closing().run_until_cancelled(kept).await {
        lease.lose(reason);
    }
}
