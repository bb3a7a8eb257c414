//! A problem as a response: what the layer, and every handler of the service, fails with.
//!
//! The table of codes and the JSON are in `keylatch-wire`. Here a problem of one request is put
//! together, turned into a response, and made from the errors of the core. The error behind it
//! travels beside the response, for the log, and never in it.

use std::borrow::Cow;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use keylatch_core::idempotency::{IdempotencyError, NoRoom};
use keylatch_core::store::{Effect, StoreError};
use keylatch_wire::{self as wire, Code, ProblemDocument, millis};

/// How a client may say who it is (RFC 7617, RFC 6750).
const BASIC_CHALLENGE: &str = "Basic realm=\"keylatch\", charset=\"UTF-8\"";
const BEARER_CHALLENGE: &str = "Bearer realm=\"keylatch\"";

/// A refusal or a failure, as RFC 9457 has it.
///
/// ```
/// use axum::response::IntoResponse as _;
/// use keylatch_axum::{Code, Problem};
///
/// let response = Problem::new(Code::InvalidQuery, "`limit` must be 1 to 1000.")
///     .with_field("limit")
///     .into_response();
/// assert_eq!(response.status(), 400);
/// assert_eq!(response.headers()["content-type"], "application/problem+json");
/// ```
#[derive(Debug)]
pub struct Problem(Box<ProblemParts>);

#[derive(Debug)]
struct ProblemParts {
    code: Code,
    document: ProblemDocument,
    cause: Option<ProblemCause>,
}

/// The error behind a problem, in the extensions of its response: for the log, never for the
/// client.
#[derive(Debug, Clone)]
pub struct ProblemCause(pub Arc<dyn Error + Send + Sync>);

/// The code of a problem and what its request did, in the extensions of its response: the responses
/// of others have none, whatever they look like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProblemCode(pub Code, pub Option<wire::Effect>);

impl Problem {
    /// A problem with this code; `detail` says what is wrong with this request.
    pub fn new(code: Code, detail: impl Into<Cow<'static, str>>) -> Self {
        Self(Box::new(ProblemParts {
            code,
            document: ProblemDocument::new(code, detail),
            cause: None,
        }))
    }

    /// Names the member, parameter or header of the request that is wrong.
    #[must_use]
    pub fn with_field(mut self, field: impl Into<String>) -> Self {
        self.0.document.field = Some(field.into());
        self
    }

    /// Sets other members of the document.
    #[must_use]
    pub fn with(mut self, set: impl FnOnce(&mut ProblemDocument)) -> Self {
        set(&mut self.0.document);
        self
    }

    /// Says when it is worth trying again.
    #[must_use]
    pub fn with_retry_after(mut self, after: Duration) -> Self {
        self.0.document.retry_after_ms = Some(millis(after));
        self
    }

    /// Says what a request that failed did to the store.
    #[must_use]
    pub fn with_outcome(mut self, outcome: Effect) -> Self {
        self.0.document.outcome = Some(match outcome {
            Effect::NotExecuted => wire::Effect::NotExecuted,
            Effect::Unknown => wire::Effect::Unknown,
        });
        self
    }

    /// Says which key to use next, and where the problem is explained.
    #[must_use]
    pub fn with_retry(mut self) -> Self {
        self.0.document.retry = Some(self.0.code.retry());
        self
    }

    /// Keeps the error behind the problem, for the log.
    #[must_use]
    pub fn caused_by(mut self, cause: impl Error + Send + Sync + 'static) -> Self {
        self.0.cause = Some(ProblemCause(Arc::new(cause)));
        self
    }

    /// Its code.
    pub fn code(&self) -> Code {
        self.0.code
    }

    /// What the client reads.
    pub fn document(&self) -> &ProblemDocument {
        &self.0.document
    }
}

/// The problem that says that an outcome is unknown, in the extensions of its response: for the
/// layer, which knows where it is settled.
#[derive(Debug, Clone)]
struct UnknownOutcome(Arc<ProblemDocument>);

/// The response; if it says that an outcome is unknown, then also where an operator settles it.
pub fn with_resolve(mut response: Response, url: impl FnOnce() -> Option<String>) -> Response {
    let Some(UnknownOutcome(document)) = response.extensions_mut().remove() else {
        return response;
    };
    let document = ProblemDocument { resolve: url(), ..Arc::unwrap_or_clone(document) };
    *response.body_mut() = json_of(&document).into();
    response
}

fn json_of(document: &ProblemDocument) -> Vec<u8> {
    let mut json = serde_json::to_vec(document).unwrap_or_default();
    // People read answers in a terminal: the prompt of the shell belongs on its own line.
    json.push(b'\n');
    json
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let ProblemParts { code, document, cause } = *self.0;
        let mut response = (status_code(code), json_of(&document)).into_response();
        response.extensions_mut().insert(ProblemCode(code, document.outcome));
        let headers = response.headers_mut();
        let problem_json = HeaderValue::from_static("application/problem+json");
        headers.insert(header::CONTENT_TYPE, problem_json);
        if ends_connection(code) {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        if code == Code::Unauthenticated {
            // A 401 says how to do better (RFC 9110, section 15.5.2); at `Basic` a browser asks its
            // user.
            for challenge in [BASIC_CHALLENGE, BEARER_CHALLENGE] {
                headers.append(header::WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
            }
        }
        if let Some(after) = document.retry_after_ms {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(whole_seconds(after)));
        }
        if document.retry.is_some() {
            let link = format!("<{}>; rel=\"describedby\"; type=\"text/html\"", code.page());
            // A slug is lower case ASCII, which a header always takes.
            headers.extend(HeaderValue::try_from(link).ok().map(|link| (header::LINK, link)));
        }
        if matches!(code, Code::OutcomeUnknown | Code::UpstreamSilent) {
            response.extensions_mut().insert(UnknownOutcome(Arc::new(document)));
        }
        if let Some(cause) = cause {
            response.extensions_mut().insert(cause);
        }
        response
    }
}

/// The status that a code is answered with.
pub fn status_code(code: Code) -> StatusCode {
    StatusCode::from_u16(code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

/// Whole seconds, rounded up, at least one: what `Retry-After` can say.
fn whole_seconds(millis: u64) -> u64 {
    millis.div_ceil(1000).max(1)
}

/// Whether nothing can follow on the connection, because the rest of the body is not read.
fn ends_connection(code: Code) -> bool {
    let of_body = matches!(code, Code::RequestTimeout | Code::PayloadTooLarge);
    let of_origin =
        matches!(code, Code::CrossOrigin | Code::UnsupportedMediaType | Code::Unauthenticated);
    of_body || of_origin || matches!(code, Code::InvalidHost | Code::MisdirectedRequest)
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        let outcome = error.effect();
        if let StoreError::Unsupported = error {
            let detail = "The store cannot do this. Nothing was done.";
            return Self::new(Code::NotSupported, detail).with_outcome(outcome).caused_by(error);
        }
        if let StoreError::TooLarge { limit, .. } = error {
            let detail = format!("The store keeps at most {limit} bytes of it. Nothing was done.");
            return Self::new(Code::PayloadTooLarge, detail).with_outcome(outcome).caused_by(error);
        }
        let detail = match outcome {
            _ if matches!(error, StoreError::Full(_)) => {
                "The store has no room left. It may have done this all the same: the same request \
                 with the same token may be repeated safely."
            }
            Effect::NotExecuted => "The store cannot be used now. Nothing was done.",
            Effect::Unknown => {
                "The store's answer was lost, so it is unknown whether this was done. The same \
                 request with the same token may be repeated safely."
            }
        };
        Self::new(code_of(&error), detail)
            .with_outcome(outcome)
            .with_retry_after(Duration::from_secs(1))
            .caused_by(error)
    }
}

fn code_of(error: &StoreError) -> Code {
    if matches!(error, StoreError::Full(_)) { Code::StoreFull } else { Code::StoreUnavailable }
}

impl From<IdempotencyError> for Problem {
    /// Whatever became of the record, the work was not begun.
    fn from(error: IdempotencyError) -> Self {
        let (code, detail) = match &error {
            IdempotencyError::Store(error) => {
                (code_of(error), "The store cannot be used now. Nothing was run.")
            }
            IdempotencyError::NoRoom(NoRoom::Unknown) => (
                Code::Overloaded,
                "The client or its guard has as many unknown and unfinished outcomes as \
                 `idempotency.max_unknown` allows. Nothing was run.",
            ),
            IdempotencyError::NoRoom(_) => (
                Code::Overloaded,
                "The records of the client, of its guard or of all have the bytes that \
                 `idempotency.max_kept_bytes` allows. Nothing was run.",
            ),
            IdempotencyError::Random(_) => {
                (Code::Internal, "No token could be made. Nothing was run.")
            }
            _ => (Code::Internal, "Nothing was run."),
        };
        Self::new(code, detail)
            .with_outcome(Effect::NotExecuted)
            .with_retry_after(Duration::from_secs(1))
            .caused_by(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client that gets 503 repeats the request, and a store that cannot do it never will.
    #[test]
    fn what_the_store_never_does_is_no_outage() {
        let problem = Problem::from(StoreError::Unsupported);
        assert!(problem.document().is(Code::NotSupported));
        assert_eq!(problem.document().retry_after_ms, None);
    }
}
