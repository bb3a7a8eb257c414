//! What the program holds, one lock or several, with a [watchdog](crate::lease) that renews it.
//!
//! A guard that is dropped is released in the background. Invariant: what it says of the validity
//! is never later than what the service promised. Tested in `tests/api/rust_client.rs` and by the
//! scenarios of `clients/conformance`.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use keylatch_core::lock::{ReleaseReply, Token};

use crate::connection::Failure;
use crate::lease::{Watchdog, keep, watchdog};
use crate::session::Session;
use crate::target::{Grant, LeasedLock};
use crate::{Lease, Result};

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
    session: Session,
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
    /// Starts the watchdog of what is granted.
    pub(crate) fn start(session: Session, grant: &Grant, leased: L) -> Self {
        let claim = Arc::clone(&session.claim);
        Self::watched(session, grant, leased, |lease| async move {
            let ttl = claim.options.ttl;
            let renew = async |limit| Ok(claim.renew(ttl, limit).await?.until);
            keep(lease, renew, |problem| claim.loss(problem)).await;
        })
    }

    /// Starts what watches over what is granted.
    pub(crate) fn watched<F: Future<Output = ()> + Send + 'static>(
        mut session: Session,
        grant: &Grant,
        leased: L,
        watch: impl FnOnce(Lease) -> F,
    ) -> Self {
        let claim = &session.claim;
        session.parting.call = (!claim.options.keep).then(|| claim.release_call());
        let fence = grant.first.fencing_token;
        let lease = Lease::new(claim.text(), fence, claim.options.ttl, grant.until);
        Self { watchdog: watchdog(&lease, watch(lease.clone())), session, leased, lease }
    }

    /// Its lease, for the tasks that work under it.
    pub fn lease(&self) -> Lease {
        self.lease.clone()
    }

    /// The token that proves the lease, for a program that is to enter the lock again under it. It
    /// is that of all locks of a set.
    pub fn token(&self) -> &Token {
        &self.session.claim.token
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
        let Self { watchdog: (ending, watching), mut session, .. } = self;
        drop(ending);
        if session.claim.options.keep {
            return Ok(ReleaseReply::Released);
        }
        let reply = session.claim.release().await;
        session.parting.call = None;
        // Not before: the connection of a hold ends with its watchdog, and its lock with the
        // connection.
        drop(watching);
        reply
    }

    /// Stops renewing and leaves the lock held for `ttl` from now.
    ///
    /// # Errors
    ///
    /// The lease is lost, the service refuses the TTL, or gave no response in time.
    pub async fn leave_for(self, ttl: Duration) -> Result<()> {
        let Self { watchdog, mut session, lease, .. } = self;
        drop(watchdog);
        session.parting.call = None;
        let claim = &session.claim;
        let left = claim.renew(ttl, claim.connection.settings.timeout).await;
        left.map(drop).map_err(|Failure { error, .. }| {
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
