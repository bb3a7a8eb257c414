use std::any::Any;
use std::borrow::Cow;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderValue, Response, StatusCode, header};
use axum::response::IntoResponse;
use serde::{Serialize, Serializer};
use utoipa::ToSchema;

use super::body::HolderView;
use crate::lock::{Holder, LockError, Outcome, StoreError};

/// Every way in which a request can fail. [`TABLE`] says what is said of each: the one table of
/// statuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the table below describes each")]
pub enum Code {
    InvalidName,
    InvalidToken,
    InvalidBody,
    InvalidQuery,
    NotFound,
    LockNotHeld,
    MethodNotAllowed,
    RequestTimeout,
    LockHeld,
    TokenMismatch,
    PayloadTooLarge,
    TokenRequired,
    Internal,
    StoreUnavailable,
    StoreTooSlow,
    Overloaded,
    Timeout,
}

/// What is said of a [`Code`].
#[derive(Debug)]
pub(super) struct Row {
    code: Code,
    pub(super) slug: &'static str,
    pub(super) status: StatusCode,
    pub(super) title: &'static str,
    pub(super) advice: &'static str,
}

const fn row(
    code: Code,
    slug: &'static str,
    status: StatusCode,
    title: &'static str,
    advice: &'static str,
) -> Row {
    Row { code, slug, status, title, advice }
}

/// The table, in the order of the codes.
#[rustfmt::skip]
static TABLE: [Row; 17] = [
    row(Code::InvalidName, "invalid-name", StatusCode::BAD_REQUEST,
        "The lock name is not valid",
        "A name is 1 to 255 bytes of UTF-8 without control characters. Percent-encode it: `/` travels as `%2F`."),
    row(Code::InvalidToken, "invalid-token", StatusCode::BAD_REQUEST,
        "The Lock-Token is not valid",
        "A token is 20 to 128 of A-Z, a-z, 0-9, `_` and `-`, in one Lock-Token header. A UUID fits."),
    row(Code::InvalidBody, "invalid-body", StatusCode::BAD_REQUEST,
        "The request body is not valid",
        "The body is optional. If there is one it is a JSON object, and `field` names the member that is wrong."),
    row(Code::InvalidQuery, "invalid-query", StatusCode::BAD_REQUEST,
        "The query is not valid",
        "`field` names the parameter that is wrong."),
    row(Code::NotFound, "not-found", StatusCode::NOT_FOUND,
        "There is nothing here",
        "See /docs for what there is. A `/` within a lock name travels as `%2F`."),
    row(Code::LockNotHeld, "lock-not-held", StatusCode::NOT_FOUND,
        "Nobody holds this lock",
        "It was released or has expired. A holder who reads this has lost the lock: stop, and acquire it anew."),
    row(Code::MethodNotAllowed, "method-not-allowed", StatusCode::METHOD_NOT_ALLOWED,
        "The method is not for this resource",
        "The Allow header lists the methods that are."),
    row(Code::RequestTimeout, "request-timeout", StatusCode::REQUEST_TIMEOUT,
        "The request did not arrive in time",
        "The body took too long. Nothing was done; send the request again."),
    row(Code::LockHeld, "lock-held", StatusCode::CONFLICT,
        "The lock is held",
        "Somebody else holds it; `holder` says who and for how long. Try again after `Retry-After` seconds."),
    row(Code::TokenMismatch, "token-mismatch", StatusCode::PRECONDITION_FAILED,
        "The lock is held with another token",
        "Your lease is over and somebody else has the lock. Stop what you did under it."),
    row(Code::PayloadTooLarge, "payload-too-large", StatusCode::PAYLOAD_TOO_LARGE,
        "The request body is too large",
        "A request for a lock takes some dozens of bytes."),
    row(Code::TokenRequired, "token-required", StatusCode::PRECONDITION_REQUIRED,
        "A Lock-Token is required",
        "Send the token that the lock was created with in the Lock-Token header."),
    row(Code::Internal, "internal", StatusCode::INTERNAL_SERVER_ERROR,
        "Something went wrong in the service",
        "This is a defect of keylatch. The request may have been carried out; the same request with the same token may be repeated. The log has the cause under the X-Request-Id."),
    row(Code::StoreUnavailable, "store-unavailable", StatusCode::SERVICE_UNAVAILABLE,
        "The store gave no answer",
        "With `outcome` `not-executed` nothing was done. With `unknown` it may have been: the same request with the same token may be repeated safely."),
    row(Code::StoreTooSlow, "store-too-slow", StatusCode::SERVICE_UNAVAILABLE,
        "The lease was over before it could be answered",
        "The store took longer than the lease lasts. A new grant was given back. Use a longer TTL, or look after the store."),
    row(Code::Overloaded, "overloaded", StatusCode::SERVICE_UNAVAILABLE,
        "The service is full",
        "Nothing was done. Try again after `Retry-After` seconds."),
    row(Code::Timeout, "timeout", StatusCode::SERVICE_UNAVAILABLE,
        "The request took too long",
        "It may have been carried out: the same request with the same token may be repeated safely."),
];

impl Code {
    /// All codes, in the order of their statuses.
    pub fn all() -> impl Iterator<Item = Self> {
        TABLE.iter().map(|row| row.code)
    }

    /// The code as the API writes it.
    pub fn slug(self) -> &'static str {
        self.row().slug
    }

    /// The status that the code is answered with.
    pub fn status(self) -> StatusCode {
        self.row().status
    }

    pub(super) fn row(self) -> &'static Row {
        &TABLE[self as usize]
    }
}

/// A refusal or a failure, as RFC 9457 has it.
#[derive(Debug)]
pub struct Problem(Box<Parts>);

#[derive(Debug)]
struct Parts {
    code: Code,
    detail: Cow<'static, str>,
    field: Option<String>,
    holder: Option<Holder>,
    retry_after: Option<Duration>,
    outcome: Option<Outcome>,
    cause: Option<Cause>,
}

/// What made a request fail: for the log, never for the client.
#[derive(Debug, Clone)]
pub(super) struct Cause(pub(super) Arc<dyn Error + Send + Sync>);

impl Problem {
    /// A problem with this code; `detail` says what is the matter with this request.
    pub fn new(code: Code, detail: impl Into<Cow<'static, str>>) -> Self {
        Self(Box::new(Parts {
            code,
            detail: detail.into(),
            field: None,
            holder: None,
            retry_after: None,
            outcome: None,
            cause: None,
        }))
    }

    pub(super) fn with_field(mut self, field: impl Into<String>) -> Self {
        self.0.field = Some(field.into());
        self
    }

    pub(super) fn with_retry_after(mut self, after: Duration) -> Self {
        self.0.retry_after = Some(after);
        self
    }

    pub(super) fn with_outcome(mut self, outcome: Outcome) -> Self {
        self.0.outcome = Some(outcome);
        self
    }

    pub(super) fn held(holder: Holder) -> Self {
        let mut held = Self::new(Code::LockHeld, "Somebody else holds the lock.")
            .with_retry_after(holder.expires_in);
        held.0.holder = Some(holder);
        held
    }

    pub(super) fn lock_not_held() -> Self {
        Self::new(Code::LockNotHeld, "Nobody holds the lock: it was released or has expired.")
    }

    pub(super) fn token_mismatch() -> Self {
        Self::new(Code::TokenMismatch, "The lock is held, and not with this token.")
    }

    fn caused_by(mut self, cause: impl Error + Send + Sync + 'static) -> Self {
        self.0.cause = Some(Cause(Arc::new(cause)));
        self
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        let outcome = error.outcome();
        let detail = match outcome {
            Outcome::NotExecuted => "The store cannot be used now. Nothing was done.",
            Outcome::Unknown => {
                "The store's answer was lost, so it is unknown whether this was done. The same \
                 request with the same token may be repeated safely."
            }
        };
        Self::new(Code::StoreUnavailable, detail)
            .with_outcome(outcome)
            .with_retry_after(Duration::from_secs(1))
            .caused_by(error)
    }
}

impl From<LockError> for Problem {
    fn from(error: LockError) -> Self {
        match error {
            LockError::Store(error) => error.into(),
            LockError::TooLate => {
                let detail = "Nothing was left of the lease when the store answered.";
                Self::new(Code::StoreTooSlow, detail)
                    .with_outcome(Outcome::Unknown)
                    .with_retry_after(Duration::from_secs(1))
                    .caused_by(error)
            }
            LockError::Random(_) => {
                Self::new(Code::Internal, "No token could be made. Nothing was done.")
                    .with_outcome(Outcome::NotExecuted)
                    .caused_by(error)
            }
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> axum::response::Response {
        let parts = *self.0;
        let row = parts.code.row();
        let body = ProblemBody {
            r#type: format!("/problems/{}", row.slug),
            title: row.title,
            status: row.status.as_u16(),
            detail: parts.detail,
            code: row.slug,
            field: parts.field,
            holder: parts.holder.as_ref().map(HolderView::new),
            retry_after_ms: parts.retry_after.map(super::body::millis),
            outcome: parts.outcome,
        };
        let json = serde_json::to_vec(&body).unwrap_or_default();
        let mut response = (row.status, json).into_response();
        let headers = response.headers_mut();
        let problem_json = HeaderValue::from_static("application/problem+json");
        headers.insert(header::CONTENT_TYPE, problem_json);
        if matches!(parts.code, Code::RequestTimeout | Code::PayloadTooLarge) {
            // The rest of the body is not read, so nothing can follow it.
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        if let Some(after) = parts.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(whole_seconds(after)));
        }
        if let Some(cause) = parts.cause {
            response.extensions_mut().insert(cause);
        }
        response
    }
}

/// A problem document (RFC 9457), served as `application/problem+json`.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Problem)]
pub(super) struct ProblemBody {
    /// A page of this service that says what happened and what to do.
    #[schema(example = "/problems/lock-held")]
    r#type: String,
    /// What happened, the same for every problem of this code.
    #[schema(example = "The lock is held")]
    title: &'static str,
    /// The HTTP status.
    #[schema(example = 409)]
    status: u16,
    /// What happened to this request, for people.
    #[schema(example = "Somebody else holds the lock.")]
    detail: Cow<'static, str>,
    /// What happened, for programs.
    #[schema(example = "lock-held")]
    code: &'static str,
    /// The member, parameter or header of the request that is wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<String>,
    /// Who holds the lock.
    #[serde(skip_serializing_if = "Option::is_none")]
    holder: Option<HolderView>,
    /// When it is worth trying again, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
    /// Whether a request that failed was carried out: `not-executed` or `unknown`.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "serialize_outcome")]
    #[schema(value_type = Option<String>)]
    outcome: Option<Outcome>,
}

/// The answer to a request whose handler panicked. The panic itself is logged by the hook.
pub(super) fn of_panic(_: Box<dyn Any + Send>) -> Response<axum::body::Body> {
    let detail = "The service failed. It is unknown whether the request was carried out.";
    Problem::new(Code::Internal, detail).with_outcome(Outcome::Unknown).into_response()
}

/// As the API writes an outcome.
pub(super) fn outcome_str(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::NotExecuted => "not-executed",
        Outcome::Unknown => "unknown",
    }
}

#[expect(clippy::ref_option, reason = "serde's signature")]
fn serialize_outcome<S: Serializer>(
    outcome: &Option<Outcome>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    outcome.map(outcome_str).serialize(serializer)
}

/// Whole seconds, rounded up, at least one: what `Retry-After` can say.
fn whole_seconds(after: Duration) -> u64 {
    after.as_millis().div_ceil(1000).max(1).try_into().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_each_code_at_its_place() {
        for (place, row) in TABLE.iter().enumerate() {
            assert_eq!(row.code as usize, place, "{}", row.slug);
        }
        assert_eq!(Code::Timeout.row().slug, "timeout", "the last code has the last row");
    }
}
