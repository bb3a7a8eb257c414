//! What becomes of a key after a response: the response is stored, the key is freed, or the outcome
//! is marked unknown.
//!
//! The rule is a pure function of the status and of the route's [`OnFailure`]. It errs to the safe
//! side: what may have had an effect does not run again by itself.

use axum::http::StatusCode;

use crate::OnFailure;

/// What becomes of a key after a response. A handler that knows better than its status says so puts
/// one into the extensions of its response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum RetentionPolicy {
    /// The response is stored, and every repeat reads it.
    Answer,
    /// The key is free: the request was not carried out, and the same key may be tried again.
    Release,
    /// The outcome is unknown, and the request does not run again before it is resolved.
    Unknown,
}

impl RetentionPolicy {
    /// What becomes of the key after a response with this status.
    ///
    /// 2xx, 3xx and 4xx are answers. Some 4xx are none: they are about the moment, or about the
    /// credentials of the client, and the next try may fare better. After a 5xx it is unknown how
    /// far the handler came, unless the route's owner says that it comes to nothing.
    pub fn for_status(status: StatusCode, on_failure: OnFailure) -> Self {
        match status.as_u16() {
            401 | 403 | 407 | 408 | 421 | 425 | 426 | 429 => Self::Release,
            ..500 => Self::Answer,
            _ if on_failure == OnFailure::Release => Self::Release,
            _ => Self::Unknown,
        }
    }
}
