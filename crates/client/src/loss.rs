//! Whether a lease is held, and why it is lost.
//!
//! A lease counts as lost a quarter of its TTL before another client can have the lock, so that the program can stop in
//! time. Tested in `tests/api/rust_client.rs`.

use std::fmt;

use keylatch_core::lock::LockName;

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
