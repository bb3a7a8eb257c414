mod document;

use std::any::Any;
use std::borrow::Cow;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use axum::http::{Response, StatusCode};
use axum::response::IntoResponse;

use keylatch_core::idempotency::IdempotencyError;
use keylatch_core::lock::{Busy, Holder, LockError, Outcome, StoreError};

pub(super) use document::ProblemBody;

/// Every way in which a request can fail. [`TABLE`] says what is said of each: the one table of
/// statuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the table below describes each")]
pub enum Code {
    InvalidName,
    InvalidToken,
    InvalidBody,
    InvalidQuery,
    InvalidHost,
    InvalidKey,
    KeyRequired,
    CrossOrigin,
    NotFound,
    LockNotHeld,
    NoRecord,
    MethodNotAllowed,
    RequestTimeout,
    LockHeld,
    RequestInProgress,
    OutcomeUnknown,
    AnswerNotKept,
    NothingToResolve,
    TokenMismatch,
    PayloadTooLarge,
    UnsupportedMediaType,
    MisdirectedRequest,
    IdempotencyKeyReused,
    ValidationFailed,
    TokenRequired,
    TooManyWaiters,
    Internal,
    NotSupported,
    UpstreamUnreachable,
    StoreUnavailable,
    StoreTooSlow,
    Overloaded,
    Timeout,
    UpstreamSilent,
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
static TABLE: [Row; 34] = [
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
    row(Code::InvalidHost, "invalid-host", StatusCode::BAD_REQUEST,
        "The Host is not valid",
        "A request of HTTP/1.1 has one Host header, with a host and perhaps a port. Nothing was done."),
    row(Code::InvalidKey, "invalid-key", StatusCode::BAD_REQUEST,
        "The Idempotency-Key is not valid",
        "One Idempotency-Key header with 1 to 255 visible ASCII characters, bare or in double quotes. A form field `idempotency_key` may stand in for it and must not contradict it. Nothing was run."),
    row(Code::KeyRequired, "key-required", StatusCode::BAD_REQUEST,
        "An Idempotency-Key is required",
        "Make a new key for each intent, such as a UUID, and send it with every try of it. Nothing was run."),
    row(Code::CrossOrigin, "cross-origin", StatusCode::FORBIDDEN,
        "A web page of another origin sent this",
        "Only the service's own pages, and those of origins in `cors.allow_origins`, may change something. `cross_origin = \"pass\"` lets a guarded route take requests of any page. Nothing was done."),
    row(Code::NotFound, "not-found", StatusCode::NOT_FOUND,
        "There is nothing here",
        "See /docs for what there is. A `/` within a lock name travels as `%2F`."),
    row(Code::LockNotHeld, "lock-not-held", StatusCode::NOT_FOUND,
        "Nobody holds this lock",
        "It was released or has expired. A holder who reads this has lost the lock: stop, and acquire it anew."),
    row(Code::NoRecord, "no-record", StatusCode::NOT_FOUND,
        "There is no record of this key",
        "It was never used in this scope, was given back, or was kept for long enough. `method`, `path` and `principal` in the query name the scope of a guarded route."),
    row(Code::MethodNotAllowed, "method-not-allowed", StatusCode::METHOD_NOT_ALLOWED,
        "The method is not for this resource",
        "The Allow header lists the methods that are."),
    row(Code::RequestTimeout, "request-timeout", StatusCode::REQUEST_TIMEOUT,
        "The request did not arrive in time",
        "The body took too long. Nothing was done; send the request again."),
    row(Code::LockHeld, "lock-held", StatusCode::CONFLICT,
        "The lock is held",
        "Somebody else holds it; `holder` says who and for how long. Try again after `Retry-After` seconds."),
    row(Code::RequestInProgress, "request-in-progress", StatusCode::CONFLICT,
        "The request is being carried out",
        "The same request under the same key is under way. Send it again after `Retry-After` seconds, or with `Prefer: wait=10`, to read its answer."),
    row(Code::OutcomeUnknown, "outcome-unknown", StatusCode::CONFLICT,
        "Nobody knows whether the request was carried out",
        "It was begun, and how it ended is not known. It is not run again under this key. Find out what happened, then settle it with `POST /v1/idempotency/{key}/resolve`."),
    row(Code::AnswerNotKept, "answer-not-kept", StatusCode::CONFLICT,
        "The request was carried out, and its answer was not kept",
        "The answer was too large to keep, or a stream. It is not run again under this key. Read the resource itself to see what came of it."),
    row(Code::NothingToResolve, "nothing-to-resolve", StatusCode::CONFLICT,
        "The outcome is not unknown",
        "Only an unknown outcome can be resolved. `GET` of the same record shows how it stands; a `fencing_token` must be that of its last run."),
    row(Code::TokenMismatch, "token-mismatch", StatusCode::PRECONDITION_FAILED,
        "The lock is held with another token",
        "Your lease is over and somebody else has the lock. Stop what you did under it."),
    row(Code::PayloadTooLarge, "payload-too-large", StatusCode::PAYLOAD_TOO_LARGE,
        "The request body is too large",
        "A request for a lock takes some dozens of bytes. A guarded route has a `body_limit_bytes` of its own. Nothing was done."),
    row(Code::UnsupportedMediaType, "unsupported-media-type", StatusCode::UNSUPPORTED_MEDIA_TYPE,
        "The body's media type is not taken from a web page",
        "A web page sends JSON, as `application/json`. A guarded route takes forms as well, and nothing as `text/plain`. Nothing was done."),
    row(Code::MisdirectedRequest, "misdirected-request", StatusCode::MISDIRECTED_REQUEST,
        "The request is for another host",
        "A service on loopback goes by `localhost`, loopback addresses and the names in `server.hosts`, so that no web page can make a name of its own lead to it. Nothing was done."),
    row(Code::IdempotencyKeyReused, "idempotency-key-reused", StatusCode::UNPROCESSABLE_ENTITY,
        "The Idempotency-Key was used for another request",
        "A key belongs to one request with one body. Send what you sent before, or make a new key for what is new. Nothing was run, and the first request is as it was."),
    row(Code::ValidationFailed, "validation-failed", StatusCode::UNPROCESSABLE_ENTITY,
        "The order or payment is not valid",
        "The sandbox wants an `amount` of 1 to 99999999 in the smallest unit and a `currency` of three capital letters. `field` names what is wrong."),
    row(Code::TokenRequired, "token-required", StatusCode::PRECONDITION_REQUIRED,
        "A Lock-Token is required",
        "Send the token that the lock was created with in the Lock-Token header."),
    row(Code::TooManyWaiters, "too-many-waiters", StatusCode::TOO_MANY_REQUESTS,
        "Too many wait",
        "As many are in line for this lock, or for all locks of this instance, as may. Try again after `Retry-After` seconds."),
    row(Code::Internal, "internal", StatusCode::INTERNAL_SERVER_ERROR,
        "Something went wrong in the service",
        "This is a defect of keylatch. The request may have been carried out; the same request with the same token may be repeated. The log has the cause under the X-Request-Id."),
    row(Code::NotSupported, "not-supported", StatusCode::NOT_IMPLEMENTED,
        "The store cannot do this",
        "Idempotency keys need a store that keeps records: `redlock:` keeps none, every other store does. `GET /v1/info` says what the store is. Nothing was done."),
    row(Code::UpstreamUnreachable, "upstream-unreachable", StatusCode::BAD_GATEWAY,
        "The service behind keylatch cannot be reached",
        "The request was not sent on, so nothing was run. Send it again after `Retry-After` seconds, under the same key."),
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
    row(Code::UpstreamSilent, "outcome-unknown", StatusCode::GATEWAY_TIMEOUT,
        "The service behind keylatch gave no answer",
        "The request was sent on, and whether it was carried out is not known. It is not run again under this key."),
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

    /// Which key a client is to use next, where keys matter.
    fn retry(self) -> Retry {
        match self {
            Self::RequestTimeout
            | Self::RequestInProgress
            | Self::Internal
            | Self::UpstreamUnreachable
            | Self::StoreUnavailable
            | Self::StoreTooSlow
            | Self::Overloaded
            | Self::Timeout => Retry::SameKey,
            Self::OutcomeUnknown | Self::UpstreamSilent | Self::AnswerNotKept => Retry::Never,
            _ => Retry::NewKey,
        }
    }
}

/// What a client that was refused may do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Retry {
    /// Send the same again, under the same key.
    SameKey,
    /// Change what is wrong and send that under a new key.
    NewKey,
    /// Nothing: somebody has to find out what happened.
    Never,
}

impl Retry {
    /// As the API writes it.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::SameKey => "same-key",
            Self::NewKey => "new-key",
            Self::Never => "never",
        }
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
    ahead: Option<u64>,
    retry_after: Option<Duration>,
    outcome: Option<Outcome>,
    retry: Option<Retry>,
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
            ahead: None,
            retry_after: None,
            outcome: None,
            retry: None,
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

    /// Tells which key to use next.
    pub(super) fn with_retry(mut self) -> Self {
        self.0.retry = Some(self.0.code.retry());
        self
    }

    pub(super) fn held(busy: Busy) -> Self {
        let detail = match &busy.holder {
            Some(_) => "Somebody else holds the lock.",
            None => "The lock is about to be given to somebody else.",
        };
        let free_in = busy.holder.as_ref().map_or(Duration::ZERO, |holder| holder.expires_in);
        let mut held = Self::new(Code::LockHeld, detail).with_retry_after(free_in);
        held.0.holder = busy.holder;
        held.0.ahead = Some(busy.ahead);
        held
    }

    pub(super) fn lock_not_held() -> Self {
        Self::new(Code::LockNotHeld, "Nobody holds the lock: it was released or has expired.")
    }

    pub(super) fn token_mismatch() -> Self {
        Self::new(Code::TokenMismatch, "The lock is held, and not with this token.")
    }

    pub(super) fn caused_by(mut self, cause: impl Error + Send + Sync + 'static) -> Self {
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

impl From<IdempotencyError> for Problem {
    /// Whatever became of the record, the work was not begun.
    fn from(error: IdempotencyError) -> Self {
        let (code, detail) = match &error {
            IdempotencyError::Store(_) => {
                (Code::StoreUnavailable, "The store cannot be used now. Nothing was run.")
            }
            IdempotencyError::Random(_) => {
                (Code::Internal, "No token could be made. Nothing was run.")
            }
        };
        Self::new(code, detail)
            .with_outcome(Outcome::NotExecuted)
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
            LockError::TooManyWaiters => {
                Self::new(Code::TooManyWaiters, "As many wait as may. Nothing was done.")
                    .with_outcome(Outcome::NotExecuted)
                    .with_retry_after(Duration::from_secs(1))
            }
            LockError::Random(_) => {
                Self::new(Code::Internal, "No token could be made. Nothing was done.")
                    .with_outcome(Outcome::NotExecuted)
                    .caused_by(error)
            }
        }
    }
}

/// The answer to a request whose handler panicked. The panic itself is logged by the hook.
pub(super) fn of_panic(_: Box<dyn Any + Send>) -> Response<axum::body::Body> {
    let detail = "The service failed. It is unknown whether the request was carried out.";
    let problem = Problem::new(Code::Internal, detail).with_outcome(Outcome::Unknown);
    problem.with_retry().into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_each_code_at_its_place() {
        for (place, row) in TABLE.iter().enumerate() {
            assert_eq!(row.code as usize, place, "{}", row.slug);
        }
        assert_eq!(
            Code::UpstreamSilent as usize,
            TABLE.len() - 1,
            "the last code has the last row"
        );
    }
}
