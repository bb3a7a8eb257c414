//! The service's requests for several locks at once: the deadlines, the validity and the waiting of one lock,
//! for all of a set together.
//!
//! A set is one atomic step of the store, so there is one attempt, one deadline and one withdrawal for it. Invariant: a
//! caller holds all locks of the set, or none by this request. Tested in `tests/api/sets.rs`.

use tokio::time::Instant;

use super::{
    AcquireRequest, Acquisition, Lease, LockError, LockService, LockSet, LostLock, Renewal,
    SetContention, SetRelease, Token, Ttl,
};
use crate::store::StoreError;
use crate::task::with_deadline;

/// What a client reads that asked for several locks.
pub type SetAcquisition = Acquisition<Vec<Lease>, SetContention>;

/// What became of a renewal of several locks.
pub type SetRenewal = Renewal<Vec<Lease>, Vec<LostLock>>;

impl LockService {
    /// Acquires all locks of a set or none, and waits for them as long as the request says.
    ///
    /// When the caller drops this future, what the store granted or queued is withdrawn as for one lock.
    ///
    /// # Errors
    ///
    /// The store could not find out, found out too late, or takes no step on several locks.
    pub async fn acquire_set(
        &self,
        request: AcquireRequest<LockSet>,
    ) -> Result<SetAcquisition, LockError> {
        self.acquire_and_report(request, |_| ()).await
    }

    /// Lets all leases of a set last `ttl` from now, or none.
    ///
    /// # Errors
    ///
    /// As of [`LockService::acquire_set`].
    pub async fn renew_set(
        &self,
        set: &LockSet,
        token: &Token,
        ttl: Ttl,
    ) -> Result<SetRenewal, LockError> {
        let (sent, token) = (Instant::now(), token.hash());
        let reply = with_deadline(self.deadline, self.store.renew_set(set, &token, ttl)).await?;
        Renewal::of(reply, Vec::as_slice, sent)
    }

    /// Ends all leases of a token in a set.
    ///
    /// # Errors
    ///
    /// The store could not find out, or takes no step on several locks.
    pub async fn release_set(
        &self,
        set: &LockSet,
        token: &Token,
    ) -> Result<SetRelease, StoreError> {
        with_deadline(self.deadline, self.store.release_set(set, &token.hash())).await
    }
}
