use std::io;

/// Why the client cannot say whether the lock was acquired or released.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The text is not the URL of a service.
    #[error("the URL of the service {0}")]
    Url(&'static str),
    /// The system's certificates, which `https` needs, cannot be read.
    #[error("the system's certificates cannot be read: {0}")]
    Certificates(io::Error),
    /// The operating system has no random bytes for a token.
    #[error("no random bytes: {0}")]
    Random(#[from] getrandom::Error),
    /// The service gave no answer within the time for it.
    #[error("the service cannot be reached: {0}")]
    Unreachable(String),
    /// The service, or something before it, answered that it cannot do its work now.
    #[error("the service cannot answer: {0}")]
    Unavailable(String),
    /// The service does not accept the request, or its answer is not one of keylatch.
    #[error("the service refuses: {0}")]
    Refused(String),
}
