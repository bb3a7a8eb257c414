//! Whether a lease is held, for how long, and why it is lost.
//!
//! A lease counts as lost a quarter of its TTL before another client can have what it is about, so that the program can
//! stop in time. Invariant: every question compares with the clock first, so a blocked runtime or a paused process hides no
//! loss; the [watchdog](crate::watchdog) only tells it sooner. Tested in `tests/api/rust_client_ends.rs`.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use keylatch_core::lock::FencingToken;
use keylatch_core::watchdog::notice;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::clock::BootInstant;

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
    /// The service says that no client holds it.
    NotHeld,
    /// The service says that another client holds it.
    TakenOver,
    /// Another client broke the lease.
    Broken {
        /// Why.
        reason: String,
        /// The label of the one who broke it.
        by: Option<String>,
    },
    /// It could not be renewed, and its validity is about to end. Says why, if there was a response.
    Unrenewed(String),
    /// This process was paused or its runtime blocked, and the validity ended meanwhile.
    Paused,
    /// This program ended it.
    Ended,
    /// The service says that one lock of a set is lost, and so the set is. It is the first that is
    /// lost; the others may still be held until the guard is closed.
    OneOfSet {
        /// The name of the first lock that is lost.
        name: String,
        /// How it was lost.
        reason: Box<LossReason>,
    },
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

/// The lease of one lock or of a run, with its fencing token: for the tasks that work under it.
#[derive(Debug, Clone)]
pub struct FencedLease {
    lease: Lease,
    fencing_token: FencingToken,
}

impl FencedLease {
    pub(crate) fn new(lease: Lease, fencing_token: FencingToken) -> Self {
        Self { lease, fencing_token }
    }

    /// Larger than that of every earlier lease that this one cannot be held together with: for the resource to compare.
    pub fn fencing_token(&self) -> FencingToken {
        self.fencing_token
    }
}

impl Deref for FencedLease {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.lease
    }
}

#[derive(Debug)]
struct State {
    what: String,
    notice: Duration,
    validity: Mutex<Validity>,
    status: watch::Sender<LeaseStatus>,
    lost: CancellationToken,
    /// What ends now is not lost.
    closing: CancellationToken,
}

#[derive(Debug)]
struct Validity {
    until: BootInstant,
    /// Why the last try to renew failed.
    failure: Option<String>,
}

impl Lease {
    /// The lease of `what` for a TTL, which is valid until then.
    pub(crate) fn new(what: String, ttl: Duration, until: BootInstant) -> Self {
        Self(Arc::new(State {
            what,
            notice: notice(ttl),
            validity: Mutex::new(Validity { until, failure: None }),
            status: watch::Sender::new(LeaseStatus::Held),
            lost: CancellationToken::new(),
            closing: CancellationToken::new(),
        }))
    }

    /// Fails once the lease is lost: call it before each step that must not happen without the lease. It compares with
    /// the clock, and so needs no task of the runtime to have run.
    ///
    /// # Errors
    ///
    /// The lease is lost, or its validity is about to end unrenewed.
    pub fn check(&self) -> Result<(), LeaseLost> {
        match self.status() {
            LeaseStatus::Held => Ok(()),
            LeaseStatus::Lost(reason) => Err(LeaseLost { what: self.0.what.clone(), reason }),
        }
    }

    /// Whether the lease is held, and why it is lost if it is: as [`check`](Self::check).
    pub fn status(&self) -> LeaseStatus {
        if self.0.closing.is_cancelled() {
            return LeaseStatus::Lost(LossReason::Ended);
        }
        if let Some(reason) = self.overdue() {
            self.lose(reason);
        }
        self.0.status.borrow().clone()
    }

    /// Is cancelled when the lease is lost, or its validity is about to end unrenewed. A task that polls nothing
    /// meanwhile asks [`check`](Self::check).
    pub fn lost(&self) -> CancellationToken {
        self.status();
        self.0.lost.clone()
    }

    /// For how long what is leased is exclusively this program's from now on, unless the lease is renewed. Zero once
    /// that is over.
    pub fn valid_for(&self) -> Duration {
        self.status();
        self.until().left()
    }

    /// The status as a channel, for a task that waits for a change of it.
    pub fn watch(&self) -> watch::Receiver<LeaseStatus> {
        self.0.status.subscribe()
    }

    pub(crate) fn until(&self) -> BootInstant {
        self.validity().until
    }

    pub(crate) fn renewed(&self, until: BootInstant) {
        *self.validity() = Validity { until, failure: None };
    }

    pub(crate) fn failed(&self, why: String) {
        self.validity().failure = Some(why);
    }

    /// Why the lease counts as lost by the clock alone, if it does.
    pub(crate) fn overdue(&self) -> Option<LossReason> {
        let Validity { until, failure } = &*self.validity();
        let left = until.left();
        if left > self.0.notice {
            return None;
        }
        Some(match failure {
            Some(why) => LossReason::Unrenewed(why.clone()),
            None if left.is_zero() => LossReason::Paused,
            None => LossReason::Unrenewed("there was no time".to_owned()),
        })
    }

    /// The first loss counts.
    pub(crate) fn lose(&self, reason: LossReason) {
        let is_news = !self.0.closing.is_cancelled()
            && self.0.status.send_if_modified(|status| {
                let is_held = *status == LeaseStatus::Held;
                if is_held {
                    *status = LeaseStatus::Lost(reason);
                }
                is_held
            });
        if is_news {
            self.0.lost.cancel();
        }
    }

    /// Is cancelled when the program ends the lease.
    pub(crate) fn closing(&self) -> &CancellationToken {
        &self.0.closing
    }

    fn validity(&self) -> MutexGuard<'_, Validity> {
        self.0.validity.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
            Self::Broken { reason, by: None } => write!(f, "the lease was broken: {reason}"),
            Self::Broken { reason, by: Some(by) } => {
                write!(f, "the lease was broken by {by}: {reason}")
            }
            Self::Unrenewed(why) => write!(f, "the lease could not be renewed in time: {why}"),
            Self::Paused => f.write_str("the lease ended while this process was paused"),
            Self::Ended => f.write_str("this program has ended the lease"),
            Self::OneOfSet { name, reason } => write!(f, "`{name}`: {reason}"),
        }
    }
}
