//! Why the client does not have what it asked for, and whether the service may have done it.
//!
//! [`Error::retry`] says what to do next, by the service's own table of problems. Tested in
//! `tests/api/rust_client.rs` and `tests/api/rust_client_ends.rs`.

use std::error::Error as StdError;
use std::io;
use std::time::Duration;

use hyper::StatusCode;
use keylatch_wire::{Code, Effect, Holder, ProblemDocument, Retry, in_words};

use crate::LeaseLost;

/// An error of any kind.
pub type BoxError = Box<dyn StdError + Send + Sync>;

/// What a call of the client comes to.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why the client does not have what it asked for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A URL or a key cannot be right.
    #[error("{0}")]
    Settings(&'static str),
    /// The certificates by which the client knows a service with `https`, or its own, are of no
    /// use.
    #[error("the certificates cannot be used: {0}")]
    Certificates(io::Error),
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
        let left = in_words(holder.expires_in_ms);
        write!(f, "`{}` is held by {owner}, for {left} unless renewed", self.name)?;
        match self.ahead {
            0 => Ok(()),
            1 => f.write_str(", and 1 waits for it"),
            several => write!(f, ", and {several} wait for it"),
        }
    }
}

impl Error {
    pub(crate) fn late() -> Self {
        Self::Unanswered("no response came in time".to_owned())
    }

    pub(crate) fn not_keylatch() -> Self {
        Self::Refused("the answer is not one of keylatch".to_owned())
    }

    /// The response is about something else: a proxy, or a connection that two processes share, has
    /// mixed two up.
    pub(crate) fn not_of_this_request() -> Self {
        Self::Unanswered("the response is not one of keylatch for this request".to_owned())
    }

    /// What to do next: [`Retry::SameKey`] where the same call may succeed later,
    /// [`Retry::NewKey`] where the call has to be another one, [`Retry::Never`] where the machine,
    /// the URL or the options have to change first, or what was begun has to be looked after.
    #[must_use]
    pub fn retry(&self) -> Retry {
        match self {
            Self::Held(_) | Self::Unreachable(_) | Self::Unanswered(_) | Self::Unavailable(_) => {
                Retry::SameKey
            }
            Self::Problem(problem) => {
                let by_table = || problem.known_code().map(Code::retry);
                let word = problem.retry.or_else(by_table);
                word.unwrap_or(if passes(problem.status) { Retry::SameKey } else { Retry::NewKey })
            }
            Self::Refused(_) => Retry::NewKey,
            _ => Retry::Never,
        }
    }

    pub(crate) fn is_passing(&self) -> bool {
        self.retry() == Retry::SameKey || matches!(self, Self::OtherStore(_))
    }

    pub(crate) fn is_unsent(&self) -> bool {
        matches!(self, Self::Unreachable(_) | Self::OtherStore(_))
    }

    pub(crate) fn problem(&self) -> Option<&ProblemDocument> {
        if let Self::Problem(problem) = self { Some(problem) } else { None }
    }

    pub(crate) fn is(&self, code: Code) -> bool {
        self.problem().is_some_and(|problem| problem.is(code))
    }

    /// Whether others have what was asked for, and may end it.
    pub(crate) fn is_busy(&self) -> bool {
        self.is(Code::LockHeld) || self.is(Code::RequestInProgress)
    }

    /// Whether the service may have carried the request out all the same.
    pub(crate) fn may_be_done(&self) -> bool {
        let is_known = self.problem().is_some_and(|it| it.outcome == Some(Effect::NotExecuted));
        self.is_passing() && !self.is_busy() && !self.is_unsent() && !is_known
    }

    /// Whether a request that was to wait for so long leaves nothing behind at the service.
    pub(crate) fn leaves_nothing(&self, wait: Duration) -> bool {
        match self {
            // A client whose wait is over keeps its place in the queue for a moment longer.
            Self::Problem(problem) if problem.is(Code::LockHeld) => {
                wait.is_zero() || problem.waited_ms.is_none()
            }
            Self::Problem(problem) => (400..500).contains(&problem.status),
            error => error.is_unsent(),
        }
    }

    /// The same for a caller who need not tell passing problems apart.
    pub(crate) fn unavailable(self) -> Self {
        match &self {
            Self::Problem(problem) if self.is_passing() => {
                let status = StatusCode::from_u16(problem.status).unwrap_or_default();
                Self::Unavailable(format!("{status}: {}", problem.detail))
            }
            _ => self,
        }
    }
}

/// Whether a response with this status may be another one later.
pub(crate) fn passes(status: u16) -> bool {
    status >= 500 || status == 408 || status == 429
}
