//! Why the client does not have what it asked for.
//!
//! [`Error::retry`] says what to do next, by the service's own table of problems. `Unreachable`
//! means that nothing was sent, `Unanswered` that something was, and may be carried out. Tested in
//! `tests/api/rust_client.rs`.

use std::error::Error as StdError;
use std::io;
use std::time::Duration;

use keylatch_wire::{Code, Holder, ProblemDocument, Retry};

use crate::LeaseLost;

/// An error of any kind.
pub type BoxError = Box<dyn StdError + Send + Sync>;

/// Why the client does not have what it asked for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The text is not the URL of a service.
    #[error("the URL of the service {0}")]
    Url(&'static str),
    /// The text is not the URL of a proxy.
    #[error("the URL of a proxy must begin with http:// and have a host")]
    Proxy,
    /// The text is not an API key.
    #[error("the API key has characters that no key has, or is empty")]
    ApiKey,
    /// The certificates by which the client knows a service with `https`, or its own, are of no
    /// use.
    #[error("the certificates cannot be used: {0}")]
    Certificates(io::Error),
    /// The options ask for what cannot be.
    #[error("the options {0}")]
    Options(&'static str),
    /// The operating system has no random bytes for a token.
    #[error("no random bytes: {0}")]
    Random(#[from] getrandom::Error),
    /// Others held the lock until the wait was over.
    #[error("{0}")]
    Held(Box<Held>),
    /// The lease was lost before the work was done.
    #[error(transparent)]
    Lost(#[from] LeaseLost),
    /// The work of [`Client::once`](crate::Client::once) failed: its own error.
    #[error(transparent)]
    Work(BoxError),
    /// Nothing was sent: no connection to the service was made.
    #[error("the service cannot be reached: {0}")]
    Unreachable(String),
    /// No URL was reached but one that leads to another store than the one before, where others may
    /// hold the same lock.
    #[error("a URL leads to another store: {0}")]
    OtherStore(String),
    /// No response came within the time for it to a request that was sent: the service may have
    /// carried it out.
    #[error("the service gave no response: {0}")]
    Unanswered(String),
    /// The service, or something before it, answered that it cannot do its work now.
    #[error("the service cannot answer: {0}")]
    Unavailable(String),
    /// The service does not accept the request, and says why: `code` is a stable word.
    #[error("the service refuses: {}: {}", .0.status, .0.detail)]
    Problem(Box<ProblemDocument>),
    /// Something else than keylatch does not accept the request, or a response is not one of
    /// keylatch.
    #[error("the service refuses: {0}")]
    Refused(String),
}

/// Who holds a lock that was not acquired.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// The lock; of several the first that was not to be had.
    pub name: String,
    /// Its holder, of several the one whose lease ends first. `None` where the lock was free then,
    /// for a waiter that was before.
    pub holder: Option<Holder>,
    /// How many wait before this client.
    pub ahead: u64,
}

impl std::fmt::Display for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Some(holder) = &self.holder else {
            return write!(f, "others wait for `{}`", self.name);
        };
        let owner = holder.owner.as_deref().unwrap_or("a client without a label");
        let left = Duration::from_millis(holder.expires_in_ms).as_secs_f64();
        write!(f, "`{}` is held by {owner}, for {left:.1} s unless renewed", self.name)?;
        match self.ahead {
            0 => Ok(()),
            1 => f.write_str(", and 1 waits for it"),
            several => write!(f, ", and {several} wait for it"),
        }
    }
}

impl Error {
    /// The time for a response is over.
    pub(crate) fn late() -> Self {
        Self::Unanswered("no response came in time".to_owned())
    }

    /// The time is over before there was a connection.
    pub(crate) fn unconnected() -> Self {
        Self::Unreachable("no connection was made in time".to_owned())
    }

    /// The same, where an earlier try may have been carried out.
    pub(crate) fn in_doubt(self) -> Self {
        match self {
            Self::Unreachable(why) => Self::Unanswered(why),
            error => error,
        }
    }

    /// Whether no request was sent.
    pub(crate) fn is_unsent(&self) -> bool {
        matches!(self, Self::Unreachable(_) | Self::OtherStore(_))
    }

    /// Whether the service has said no, so that the same request is of no use.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(self, Self::Problem(_) | Self::Refused(_))
    }

    /// What to do next: [`Retry::SameKey`] where the same call may succeed later,
    /// [`Retry::NewKey`] where the call has to be another one, [`Retry::Never`] where the machine,
    /// the URL or the options have to change first, or what was begun has to be looked after.
    pub fn retry(&self) -> Retry {
        match self {
            Self::Held(_) | Self::Unreachable(_) | Self::Unanswered(_) | Self::Unavailable(_) => {
                Retry::SameKey
            }
            Self::Problem(problem) => {
                let by_table = || problem.known_code().map_or(Retry::NewKey, Code::retry);
                problem.retry.unwrap_or_else(by_table)
            }
            Self::Refused(_) => Retry::NewKey,
            _ => Retry::Never,
        }
    }
}

/// The response has a status that keylatch does not give to such a request, or says something else.
pub(crate) fn not_keylatch() -> Error {
    Error::Refused("the answer is not one of keylatch".to_owned())
}

/// The response is about something else: a proxy, or a connection that two processes share, has
/// mixed two up.
pub(crate) fn not_of_this_request() -> Error {
    Error::Unanswered("the response is not one of keylatch for this request".to_owned())
}
