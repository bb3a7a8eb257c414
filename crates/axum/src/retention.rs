use axum::http::StatusCode;

use crate::OnFailure;

/// What is kept of an answer. A handler that knows better than its status says so puts one into
/// the extensions of its response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// The answer: every repeat is given it.
    Answer,
    /// Nothing: the request was not carried out, and the same key may be tried again.
    Release,
    /// That nobody knows whether the request was carried out.
    Unknown,
}

impl Keep {
    /// What is kept of an answer with this status.
    ///
    /// 2xx, 3xx and 4xx are answers. Some 4xx are none: they are about the moment, or about who
    /// asks, and the next try may fare better. Of a 5xx nobody knows how far it came, unless the
    /// route's owner says that it comes to nothing.
    pub fn of(status: StatusCode, on_failure: OnFailure) -> Self {
        match status.as_u16() {
            401 | 403 | 407 | 408 | 421 | 425 | 426 | 429 => Self::Release,
            ..500 => Self::Answer,
            _ if on_failure == OnFailure::Release => Self::Release,
            _ => Self::Unknown,
        }
    }
}
