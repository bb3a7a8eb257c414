//! The service's requests for several locks at once: the deadlines, the validity and the waiting of one lock,
//! for all of a set together.
//!
//! A set is one atomic step of the store, so there is one attempt, one deadline and one withdrawal for it. Invariant: a
//! caller holds all locks of the set, or none by this request. Tested in `tests/api/sets.rs`.

use std::time::Duration;

use tokio::time::Instant;

use super::service::validity;
use super::withdrawal::PendingAttempt;
use super::{
    AcquireCommand, Acquisition, Lease, Limit, LockError, LockService, LockSet, LostLock, Owner,
    SetContention, SetRelease, SetRenewReply, Token, Ttl, Validity,
};
use crate::store::StoreError;
use crate::task::with_deadline;

/// What a client sends to acquire several locks at once.
#[derive(Debug)]
pub struct SetAcquireRequest {
    /// The locks.
    pub set: LockSet,
    /// The client's own token, or none for the service to make one. It is that of all the locks.
    pub token: Option<Token>,
    /// How long the leases are to last.
    pub ttl: Ttl,
    /// A label for people.
    pub owner: Option<Owner>,
    /// How long to wait for all of them.
    pub wait: Duration,
    /// How many may hold each lock together with the client.
    pub limit: Limit,
}

/// What a client reads that asked for several locks.
pub type SetAcquisition = Acquisition<Vec<Lease>, SetContention>;

/// What became of a renewal of several locks.
#[derive(Debug)]
pub enum SetRenewal {
    /// All leases last a full TTL from now.
    Renewed {
        /// The leases, in the order of the names.
        leases: Vec<Lease>,
        /// Until when all of them are exclusive.
        validity: Validity,
    },
    /// None was renewed, because these are lost.
    Lost(Vec<LostLock>),
}

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
        request: SetAcquireRequest,
    ) -> Result<SetAcquisition, LockError> {
        let SetAcquireRequest { set, token, ttl, owner, wait, limit } = request;
        let may_return = token.is_some();
        let token = token.map_or_else(Token::generate, Ok)?;
        let command = AcquireCommand::new(token.hash(), ttl, self.next_attempt());
        let command = AcquireCommand { owner, limit, ..command };
        self.obtain(PendingAttempt { target: set, command }, token, (wait, may_return), |_| ())
            .await
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
        let renewing = self.store.renew_set(set, &token, ttl);
        Ok(match with_deadline(self.deadline, renewing).await? {
            SetRenewReply::Renewed(leases) => {
                let validity = validity(&leases, sent, sent).ok_or(LockError::TooLate)?;
                SetRenewal::Renewed { leases, validity }
            }
            SetRenewReply::Lost(lost) => SetRenewal::Lost(lost),
        })
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
