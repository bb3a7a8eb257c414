//! Whether a lease is held, for how long, and why it is lost.
//!
//! A lease counts as lost a quarter of its TTL (at most 10 s) before another client can have what
//! it is about, so that the program can stop in time. Invariant: every question compares with the
//! clock first, so a blocked runtime or a paused process hides no loss; the watchdog only tells it
//! sooner. Tested in `tests/api/rust_client_ends.rs`.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use keylatch_core::lock::FencingToken;
use keylatch_core::watchdog::notice;
use tokio_util::sync::CancellationToken;

use crate::clock::BootInstant;

/// Why a lease is lost.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LossReason {
    /// The service says that no client holds it.
    #[error("the lease has ended: no client holds the lock")]
    NotHeld,
    /// The service says that another client holds it.
    #[error("the lease has ended: another client holds the lock")]
    TakenOver,
    /// Another client broke the lease: why, and the label of that client.
    #[error("the lease was broken{}: {reason}", .by.as_ref().map(|by| format!(" by {by}")).unwrap_or_default())]
    #[expect(missing_docs, reason = "the variant says it")]
    Broken { reason: String, by: Option<String> },
    /// It could not be renewed, and its validity is about to end. Says why, if there was a
    /// response.
    #[error("the lease could not be renewed in time: {0}")]
    Unrenewed(String),
    /// This process was paused or its runtime blocked, and the validity ended meanwhile.
    #[error("the lease ended while this process was paused")]
    Paused,
    /// This program ended it.
    #[error("this program has ended the lease")]
    Ended,
    /// The service says that one lock of a set is lost, and so the set is. It is the first that is
    /// lost; the others may still be held until the guard is closed.
    #[error("`{name}`: {reason}")]
    #[expect(missing_docs, reason = "the variant says it")]
    OneOfSet { name: String, reason: Box<LossReason> },
}

/// A lease was lost.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} is lost: {reason}")]
#[non_exhaustive]
pub struct LeaseLost {
    /// The locks, or the run, as a message names them.
    pub what: String,
    /// How it was lost.
    pub reason: LossReason,
}

/// The lease of a guard or of a run. Clones are of the same lease.
#[derive(Debug, Clone)]
pub struct Lease(Arc<State>);

#[derive(Debug)]
struct State {
    what: String,
    fencing_token: FencingToken,
    ttl: Duration,
    validity: Mutex<Validity>,
    lost: CancellationToken,
    /// What ends now is not lost.
    closing: CancellationToken,
}

#[derive(Debug)]
struct Validity {
    until: BootInstant,
    /// Why the last try to renew failed.
    failure: Option<String>,
    loss: Option<LossReason>,
}

impl Lease {
    pub(crate) fn new(
        what: String,
        fencing_token: FencingToken,
        ttl: Duration,
        until: BootInstant,
    ) -> Self {
        let validity = Mutex::new(Validity { until, failure: None, loss: None });
        let closing = CancellationToken::new();
        let lost = closing.child_token();
        Self(Arc::new(State { what, fencing_token, ttl, validity, lost, closing }))
    }

    /// Larger than that of every earlier grant that this one cannot be held together with, of
    /// several locks that of the first: for the resource to compare.
    #[must_use]
    pub fn fencing_token(&self) -> FencingToken {
        self.0.fencing_token
    }

    /// Fails once the lease is lost: call it before each step that must not happen without the
    /// lease. It compares with the clock, and so needs no task of the runtime to have run.
    ///
    /// # Errors
    ///
    /// The lease is lost, or its validity is about to end unrenewed.
    pub fn check(&self) -> Result<(), LeaseLost> {
        self.loss().map_or(Ok(()), |reason| Err(self.lost_by(reason)))
    }

    pub(crate) fn lost_by(&self, reason: LossReason) -> LeaseLost {
        LeaseLost { what: self.0.what.clone(), reason }
    }

    /// Why the lease is lost; `None` while it is held. It compares with the clock, as
    /// [`check`](Self::check).
    #[must_use]
    pub fn loss(&self) -> Option<LossReason> {
        self.look();
        let loss = self.validity().loss.clone();
        loss.or_else(|| self.0.closing.is_cancelled().then_some(LossReason::Ended))
    }

    /// Is cancelled when the lease is lost, its validity is about to end unrenewed, or the program
    /// has ended it. A task that polls nothing meanwhile asks [`check`](Self::check).
    #[must_use]
    pub fn lost(&self) -> CancellationToken {
        self.look();
        self.0.lost.child_token()
    }

    /// For how long what is leased is exclusively this program's from now on, unless the lease is
    /// renewed. Zero once that is over.
    #[must_use]
    pub fn valid_for(&self) -> Duration {
        self.look();
        self.until().left()
    }

    pub(crate) fn give_up(&self) -> BootInstant {
        let until = self.until();
        until.at(until.since_boot.saturating_sub(notice(self.0.ttl)))
    }

    pub(crate) fn ttl(&self) -> Duration {
        self.0.ttl
    }

    pub(crate) fn until(&self) -> BootInstant {
        self.validity().until
    }

    pub(crate) fn renewed(&self, until: BootInstant) {
        let mut validity = self.validity();
        // What was told as lost is not held again.
        if validity.loss.is_none() {
            (validity.until, validity.failure) = (until, None);
        }
    }

    pub(crate) fn failed(&self, why: String) {
        tracing::debug!(what = self.0.what, why, "a renewal failed");
        self.validity().failure = Some(why);
    }

    /// Makes a loss known that the clock alone shows.
    fn look(&self) {
        let (left, why) = (self.until().left(), self.validity().failure.clone());
        self.lose(match why {
            _ if left > notice(self.0.ttl) => return,
            None if left.is_zero() => LossReason::Paused,
            why => LossReason::Unrenewed(why.unwrap_or("there was no time".to_owned())),
        });
    }

    /// The first loss counts.
    pub(crate) fn lose(&self, reason: LossReason) {
        if !self.0.closing.is_cancelled() {
            let mut validity = self.validity();
            if validity.loss.is_none() {
                tracing::warn!(what = self.0.what, %reason, "a lease is lost");
                validity.loss = Some(reason);
            }
            self.0.lost.cancel();
        }
    }

    pub(crate) fn closing(&self) -> &CancellationToken {
        &self.0.closing
    }

    fn validity(&self) -> MutexGuard<'_, Validity> {
        self.0.validity.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
