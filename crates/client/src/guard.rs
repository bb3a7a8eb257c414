use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::Error;
use crate::claim::Claim;
use crate::clock::Moment;
use crate::renewing::{Renewing, Standing};
use keylatch_core::lock::{FencingToken, LockName, ReleaseReply, Ttl};

/// A lock that is held: renewed in the background at each third of its TTL until the guard is
/// closed, dropped or lost.
///
/// Its validity is counted on a monotonic clock of this machine from the moment each request was
/// sent. It counts as lost a quarter of its TTL, and at most 10 s, *before* its validity ends, so
/// that there is time to stop; then it is not renewed any more.
///
/// Dropped, it is released in a task of its [`Client`](crate::Client); [`Guard::close`] says what
/// became of that.
#[derive(Debug)]
pub struct Guard {
    // The fields are dropped in this order: nothing renews what is being released.
    _renewing: AbortOnDropHandle<()>,
    claim: Claim,
    fence: FencingToken,
    until: watch::Receiver<Moment>,
    standing: watch::Receiver<Standing>,
    lost: CancellationToken,
}

impl Guard {
    pub(crate) fn start(claim: Claim, ttl: Ttl, fence: FencingToken, until: Moment) -> Self {
        let (until, valid) = watch::channel(until);
        let (sender, standing) = watch::channel(Standing::Held);
        let lost = CancellationToken::new();
        let renewing = Renewing {
            shared: Arc::clone(claim.shared()),
            key: Arc::clone(claim.key()),
            ttl,
            until,
            standing: sender,
            lost: lost.clone(),
        };
        let renewing = AbortOnDropHandle::new(tokio::spawn(renewing.run()));
        Self { _renewing: renewing, claim, fence, until: valid, standing, lost }
    }

    /// The lock.
    pub fn name(&self) -> &LockName {
        &self.claim.key().name
    }

    /// Larger than that of every earlier grant of the lock: for the resource to compare.
    pub fn fencing_token(&self) -> FencingToken {
        self.fence
    }

    /// For how long the lock is exclusively this guard's from now on, unless it is renewed. Zero
    /// once that is over.
    pub fn valid_for(&self) -> Duration {
        self.until.borrow().left()
    }

    /// Is cancelled when the lock is lost, or its validity is about to end unrenewed.
    pub fn lost(&self) -> CancellationToken {
        self.lost.clone()
    }

    /// How the lease stands, and why it is lost if it is.
    pub fn standing(&self) -> Standing {
        self.standing.borrow().clone()
    }

    /// The same as a channel, for those who wait for a change of it.
    pub fn watch(&self) -> watch::Receiver<Standing> {
        self.standing.clone()
    }

    /// Stops renewing and gives the lock back; says whether the guard still held it.
    ///
    /// # Errors
    ///
    /// The service could not be asked within 5 s, or refuses the request. The lease then ends by
    /// itself.
    pub async fn close(self) -> Result<ReleaseReply, Error> {
        let Self { _renewing: renewing, claim, .. } = self;
        renewing.abort();
        claim.release().await
    }
}
