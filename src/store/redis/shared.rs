use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bb8_redis::redis::aio::MultiplexedConnection;
use bb8_redis::redis::{ErrorKind, RedisError, RedisResult};

use crate::lock::StoreError;

/// A connection that may be cloned and used by many at once.
#[derive(Clone)]
pub(super) struct Shared {
    pub(super) connection: MultiplexedConnection,
    pub(super) state: State,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("state", &self.state).finish_non_exhaustive()
    }
}

/// What is known of a connection by all who use it.
#[derive(Debug, Clone, Default)]
pub(super) struct State {
    broken: Arc<AtomicBool>,
}

impl State {
    /// The result of a command, with what it says of the connection taken note of.
    pub(super) async fn note<T>(
        &self,
        command: impl Future<Output = RedisResult<T>>,
    ) -> Result<T, Failure> {
        command.await.map_err(|error| {
            // A server that turned replica is left, so that the next connection asks who it is.
            if error.is_io_error()
                || error.is_unrecoverable_error()
                || error.code() == Some("READONLY")
            {
                self.give_up();
            }
            Failure::Redis(error)
        })
    }

    /// Nobody begins a command on the connection any more.
    pub(super) fn give_up(&self) {
        self.broken.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }
}

/// Why a command has no result.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// There was no connection to send it on.
    #[error("no connection: {0}")]
    Unreachable(String),
    /// The server must not be used, and was not.
    #[error("{0}")]
    Unfit(String),
    /// It was sent, and came to this.
    #[error(transparent)]
    Redis(#[from] RedisError),
}

/// The errors by which Redis itself says that a command was not carried out. Of any other, such as
/// one of a proxy in between, nobody knows.
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
    /// What a failed command means. Redis's own words stay out of it: they repeat the command, and
    /// with it the name and the token's hash.
    fn from(failure: Failure) -> Self {
        let error = match failure {
            Failure::Unreachable(cause) => return Self::Unreachable(cause.into()),
            Failure::Unfit(reason) => return Self::Refused(reason.into()),
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
