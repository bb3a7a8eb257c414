//! Why a command has no result, and what that means for the caller.
//!
//! The distinction that matters is **not executed** or **unknown**. Only the errors of a known list
//! ([`REFUSALS`]) say that Redis did not execute a command; any other error, such as one of a proxy
//! in between, leaves it unknown.
//!
//! Invariant: no failure carries Redis's own words into a [`StoreError`]: they repeat the command,
//! and with it the name of the lock and the token's hash. Tested over servers that refuse, break
//! and fail over, by the tests of Redis's failures and of secrets.

use bb8_redis::redis::{ErrorKind, RedisError};

use keylatch_core::store::StoreError;

#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// There was no connection to send it on.
    #[error("{0}")]
    Unreachable(String),
    /// The server must not be used, and was not.
    #[error("{0}")]
    Unfit(String),
    /// It was sent to a master that was retired before it replied. A later reply comes from a
    /// server that may know nothing of the grants since.
    #[error("the server was retired before it answered")]
    Retired,
    /// It was executed, and a failover may forget it, since only so many replicas have it.
    #[error("{0} replicas have it, which are too few")]
    TooFewReplicas(u32),
    /// It was executed, and `WAIT` failed: how many replicas have it is not known.
    #[error("the replicas were not waited for: {0}")]
    Uncounted(#[source] RedisError),
    /// It was sent, and failed.
    #[error(transparent)]
    Redis(#[from] RedisError),
}

impl Failure {
    /// What a failed `WAIT` means for the command before it. That was executed, whatever the
    /// failure says of the `WAIT`: it may not be tried again, nor counted as refused.
    pub(super) fn after_execution(self) -> Self {
        match self {
            Self::Redis(error) => Self::Uncounted(error),
            other => other,
        }
    }

    /// Whether to drop the connection. That of a server that turned replica is dropped too, so that
    /// the next one inspects the server.
    pub(super) fn breaks(&self) -> bool {
        let Self::Redis(error) = self else { return false };
        error.is_io_error() || error.is_unrecoverable_error() || self.is_demotion()
    }

    /// Whether the server says that it is no master any more.
    pub(super) fn is_demotion(&self) -> bool {
        matches!(self, Self::Redis(error) if error.code() == Some("READONLY"))
    }

    /// Where a node of a cluster says that the keys are.
    pub(super) fn redirect(&self) -> Option<Redirect> {
        let Self::Redis(error) = self else { return None };
        let (host, port) = error.redirect_node()?.0.rsplit_once(':')?;
        let address = (host.to_owned(), port.parse().ok()?);
        Some(Redirect { address, asking: error.code() == Some("ASK") })
    }

    /// Whether nothing was executed, and the command may succeed elsewhere or a little later.
    pub(super) fn may_pass(&self) -> bool {
        match self {
            Self::Unreachable(_) => true,
            Self::Unfit(_) | Self::Retired | Self::TooFewReplicas(_) | Self::Uncounted(_) => false,
            Self::Redis(error) => error.code().is_some_and(|code| PASSING.contains(&code)),
        }
    }
}

pub(super) struct Redirect {
    pub(super) address: (String, u16),
    /// Whether only this command goes there, since the keys are just being moved.
    pub(super) asking: bool,
}

/// The refusals that end once all nodes know the masters.
const PASSING: [&str; 7] =
    ["ASK", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "MOVED", "READONLY", "TRYAGAIN"];

/// The errors by which Redis itself says that it did not execute a command.
const REFUSALS: [&str; 17] = [
    "ASK",
    "BUSY",
    "CLUSTERDOWN",
    "CROSSSLOT",
    "LOADING",
    "MASTERDOWN",
    "MISCONF",
    "MOVED",
    "NOAUTH",
    "NOPERM",
    "NOREPLICAS",
    "NOSCRIPT",
    "OOM",
    "READONLY",
    "TRYAGAIN",
    "UNKILLABLE",
    "WRONGTYPE",
];

impl From<Failure> for StoreError {
    /// What a failed command means, without Redis's own words.
    fn from(failure: Failure) -> Self {
        let error = match failure {
            Failure::Unreachable(cause) => return Self::Unreachable(cause.into()),
            Failure::Unfit(reason) => return Self::Refused(reason.into()),
            Failure::Retired | Failure::TooFewReplicas(_) => return Self::Lost(failure.into()),
            Failure::Uncounted(error) => {
                let code = error.code().unwrap_or("nothing");
                return Self::Lost(format!("Redis answered {code} to WAIT").into());
            }
            Failure::Redis(error) => error,
        };
        match error.code().and_then(|code| REFUSALS.iter().find(|refusal| **refusal == code)) {
            Some(code) => Self::Refused(format!("Redis answered {code}").into()),
            None if error.code().is_some() => Self::Lost("Redis answered with an error".into()),
            None if error.kind() == ErrorKind::Parse => {
                Self::Lost("the reply is not one that this service expects".into())
            }
            None => Self::Lost(error.to_string().into()),
        }
    }
}
