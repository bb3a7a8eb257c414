use std::borrow::Cow;
use std::time::Duration;

use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use serde::{Serialize, Serializer};
use utoipa::ToSchema;

use super::{Code, Problem, Retry};
use crate::http::body::{HolderView, millis};
use keylatch_core::lock::Outcome;

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let json = serde_json::to_vec(&ProblemBody::new(&self)).unwrap_or_default();
        let parts = *self.0;
        let row = parts.code.row();
        let mut response = (row.status, json).into_response();
        let headers = response.headers_mut();
        let problem_json = HeaderValue::from_static("application/problem+json");
        headers.insert(header::CONTENT_TYPE, problem_json);
        if ends_connection(parts.code) {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        if let Some(after) = parts.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(whole_seconds(after)));
        }
        if parts.retry.is_some() {
            let link = format!("</problems/{}>; rel=\"describedby\"; type=\"text/html\"", row.slug);
            // A slug is lower case ASCII, which a header always takes.
            headers.extend(HeaderValue::try_from(link).ok().map(|link| (header::LINK, link)));
        }
        if let Some(cause) = parts.cause {
            response.extensions_mut().insert(cause);
        }
        response
    }
}

/// Whether nothing can follow on the connection, because the rest of the body is not read.
fn ends_connection(code: Code) -> bool {
    let of_body = matches!(code, Code::RequestTimeout | Code::PayloadTooLarge);
    let of_origin = matches!(code, Code::CrossOrigin | Code::UnsupportedMediaType);
    of_body || of_origin || matches!(code, Code::InvalidHost | Code::MisdirectedRequest)
}

/// A problem document (RFC 9457), served as `application/problem+json`.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Problem)]
pub(in crate::http) struct ProblemBody {
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
    /// How many were in line before.
    #[serde(skip_serializing_if = "Option::is_none")]
    ahead: Option<u64>,
    /// When it is worth trying again, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
    /// Whether a request that failed was carried out: `not-executed` or `unknown`.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "serialize_outcome")]
    #[schema(value_type = Option<String>)]
    outcome: Option<Outcome>,
    /// Which Idempotency-Key to use next: `same-key` (send the same again), `new-key` (what is
    /// changed is a new request) or `never` (somebody has to find out what happened).
    #[serde(skip_serializing_if = "Option::is_none")]
    retry: Option<&'static str>,
}

impl ProblemBody {
    /// What is said of `problem`.
    pub(in crate::http) fn new(problem: &Problem) -> Self {
        let parts = &problem.0;
        let row = parts.code.row();
        Self {
            r#type: format!("/problems/{}", row.slug),
            title: row.title,
            status: row.status.as_u16(),
            detail: parts.detail.clone(),
            code: row.slug,
            field: parts.field.clone(),
            ahead: parts.ahead,
            holder: parts.holder.as_ref().map(HolderView::new),
            retry_after_ms: parts.retry_after.map(millis),
            outcome: parts.outcome,
            retry: parts.retry.map(Retry::as_str),
        }
    }
}

/// As the API writes an outcome.
fn outcome_str(outcome: Outcome) -> &'static str {
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
