//! Why the client could not find out whether it has a lock.
//!
//! A lock that another client holds is no error: it is a value of
//! [`AcquireReply`](crate::AcquireReply). [`Error::retry`] says what to do next, by the service's
//! own table of problems.

use std::io;

use keylatch_wire::{Code, ProblemDocument, Retry};

/// Why the client cannot say whether the lock was acquired or released.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The text is not the URL of a service.
    #[error("the URL of the service {0}")]
    Url(&'static str),
    /// The text is not an API key.
    #[error("the API key has characters that no key has, or is empty")]
    ApiKey,
    /// The certificates by which the client knows a service with `https`, or its own, are of no use.
    #[error("the certificates cannot be used: {0}")]
    Certificates(io::Error),
    /// The options ask for what cannot be.
    #[error("the options {0}")]
    Options(&'static str),
    /// The operating system has no random bytes for a token.
    #[error("no random bytes: {0}")]
    Random(#[from] getrandom::Error),
    /// Nothing was sent: no connection to the service was made.
    #[error("the service cannot be reached: {0}")]
    Unreachable(String),
    /// No answer came within the time for it to a request that was sent: the service may have carried it out.
    #[error("the service gave no answer: {0}")]
    Unanswered(String),
    /// The service, or something before it, answered that it cannot do its work now.
    #[error("the service cannot answer: {0}")]
    Unavailable(String),
    /// The service does not accept the request, and says why: `code` is a stable word.
    #[error("the service refuses: {}: {}", .0.status, .0.detail)]
    Problem(Box<ProblemDocument>),
    /// Something else than keylatch does not accept the request, or an answer is not one of keylatch.
    #[error("the service refuses: {0}")]
    Refused(String),
}

impl Error {
    /// The time for an answer is over.
    pub(crate) fn late() -> Self {
        Self::Unanswered("no answer came in time".to_owned())
    }

    /// Whether the service has said no, so that the same request is of no use.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(self, Self::Problem(_) | Self::Refused(_))
    }

    /// What to do next: [`Retry::SameKey`] where the same call may succeed later,
    /// [`Retry::NewKey`] where the call has to be another one, [`Retry::Never`] where the machine,
    /// the URL or the options have to change first.
    pub fn retry(&self) -> Retry {
        match self {
            Self::Unreachable(_) | Self::Unanswered(_) | Self::Unavailable(_) => Retry::SameKey,
            Self::Problem(problem) => problem.known_code().map_or(Retry::NewKey, Code::retry),
            Self::Refused(_) => Retry::NewKey,
            Self::Url(_)
            | Self::ApiKey
            | Self::Certificates(_)
            | Self::Options(_)
            | Self::Random(_) => Retry::Never,
        }
    }
}

/// The answer has a status that keylatch does not give to such a request, or says something else.
pub(crate) fn not_keylatch() -> Error {
    Error::Refused("the answer is not one of keylatch".to_owned())
}
