//! What the program holds, one lock or several, with a [watchdog](crate::watchdog) that renews it.
//!
//! A guard that is dropped is released in the background. Invariant: what it says of the validity
//! is never later than what the service promised. Tested in `tests/api/rust_client.rs` and by the
//! scenarios of `clients/conformance`.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use keylatch_core::lock::{FencingToken, ReleaseReply, Token};
use tokio_util::sync::DropGuard;
use tokio_util::task::AbortOnDropHandle;

use crate::clock::BootInstant;
use crate::connection::Failure;
use crate::session::Session;
use crate::target::LeasedLock;
use crate::watchdog::keep;
use crate::{Error, FencedLease, Lease};

/// What is held: renewed in the background at each third of its TTL until the guard is closed,
/// dropped or lost.
///
/// Its validity is counted on a monotonic clock of this machine from the moment each request was
/// sent. It counts as lost a quarter of its TTL, and at most 10 s, *before* its validity ends, so
/// that there is time to stop; then it is not renewed any more. Its [`Lease`] says so.
///
/// Dropped, it is released in a task of its [`Client`](crate::Client), or by a thread where the
/// runtime ends first; [`Guard::close`] reports what became of that.
///
/// It is a [`LockGuard`] of one lock, or a [`SetGuard`] of several.
#[derive(Debug)]
pub struct Guard<L> {
    // The fields are dropped in this order: the watchdog does not renew what is being released.
    ending: DropGuard,
    watchdog: AbortOnDropHandle<()>,
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

    /// Larger than that of every earlier grant of the lock that this one cannot be held together
    /// with: for the resource to compare.
    pub fn fencing_token(&self) -> FencingToken {
        self.leased.fencing_token
    }

    /// Its lease, for the tasks that work under it.
    pub fn lease(&self) -> FencedLease {
        FencedLease::new(self.lease.clone(), self.fencing_token())
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
    /// Starts the watchdog of a lease that is valid until then.
    pub(crate) fn start(session: Session, leased: L, until: BootInstant) -> Self {
        let claim = Arc::clone(&session.claim);
        Self::watched(session, leased, until, |lease| async move {
            let ttl = claim.options.ttl;
            let renew = async |limit| Ok(claim.renew(ttl, limit).await?.until);
            keep(lease, renew, |problem| claim.loss(problem)).await;
        })
    }

    /// Starts what watches over a lease that is valid until then, and reports what becomes of it.
    pub(crate) fn watched<F: Future<Output = ()> + Send + 'static>(
        session: Session,
        leased: L,
        until: BootInstant,
        watch: impl FnOnce(Lease) -> F,
    ) -> Self {
        let lease = Lease::new(session.claim.text(), session.claim.options.ttl, until);
        let watchdog = AbortOnDropHandle::new(tokio::spawn(watch(lease.clone())));
        let ending = lease.closing().clone().drop_guard();
        Self { ending, watchdog, session, leased, lease }
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
    pub async fn close(self) -> Result<ReleaseReply, Error> {
        let Self { ending, watchdog, mut session, .. } = self;
        drop(ending);
        if session.claim.options.keep {
            return Ok(ReleaseReply::Released);
        }
        let reply = session.claim.release().await;
        session.parting.call = None;
        // Not before: the connection of a hold ends with its watchdog, and its lock with the
        // connection.
        drop(watchdog);
        reply
    }

    /// Stops renewing and leaves the lock held for `ttl` from now, whatever becomes of this
    /// program.
    ///
    /// # Errors
    ///
    /// The lease is lost, the service refuses the TTL, or gave no response in time. The lease then
    /// ends by itself.
    pub async fn leave_for(self, ttl: Duration) -> Result<(), Error> {
        let Self { ending, watchdog, mut session, lease, .. } = self;
        drop((ending, watchdog));
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
