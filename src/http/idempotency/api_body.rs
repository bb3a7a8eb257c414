use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::answer::{CHOSEN, kept_headers};
use crate::http::body::{at_millis, invalid, millis};
use crate::http::problem::Problem;
use keylatch_core::idempotency::{
    Answer, Begin, Fingerprint, Kept, OnCrash, Phase, RecordKey, Resolve, Run, View,
};
use keylatch_core::lock::{FencingToken, Token, TokenHash, Ttl};

const DAY_MILLIS: u64 = 24 * 60 * 60 * 1000;
const YEAR_MILLIS: u64 = 365 * DAY_MILLIS;

/// What to begin with. Every member is optional, and so is the whole.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "a JSON object")]
pub(crate) struct BeginRecord {
    /// What is to be done, in any words or as a digest: another fingerprint under the same key is
    /// refused.
    #[schema(max_length = 1024)]
    fingerprint: Option<String>,
    /// How long you may go unheard before you count as gone, in milliseconds.
    #[schema(default = 30000, minimum = 100, maximum = 86400000)]
    lease_ms: Option<u64>,
    /// How long the answer is kept, in milliseconds.
    #[schema(default = 86400000_u64, minimum = 1000, maximum = 31536000000_u64)]
    retention_ms: Option<u64>,
    /// What you leave behind if you are gone in the middle: `unknown` (nobody does it again before
    /// somebody has resolved it) or `rerun` (the next one does it, under a higher fencing token).
    #[schema(default = "unknown", value_type = Option<String>)]
    on_crash: Option<OnCrash>,
}

impl BeginRecord {
    pub(super) fn into_ask(self, key: RecordKey, token: TokenHash) -> Result<Begin, Problem> {
        let fingerprint = self.fingerprint.unwrap_or_default();
        if fingerprint.len() > 1024 {
            return Err(invalid("fingerprint", "must have at most 1024 bytes"));
        }
        let lease = Ttl::from_millis(self.lease_ms.unwrap_or(30_000));
        let retention = self.retention_ms.unwrap_or(DAY_MILLIS);
        if !(1000..=YEAR_MILLIS).contains(&retention) {
            return Err(invalid("retention_ms", "must be 1000 to 31536000000 (a year)"));
        }
        Ok(Begin {
            key,
            token,
            fingerprint: Fingerprint::of_text(&fingerprint),
            lease: lease.map_err(|error| invalid("lease_ms", error))?.get(),
            retention: Duration::from_millis(retention),
            on_crash: self.on_crash.unwrap_or(OnCrash::Unknown),
        })
    }
}

/// What it came to: an HTTP answer. Every member is optional.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "a JSON object")]
pub(crate) struct CompleteRecord {
    /// The HTTP status.
    #[schema(default = 200, minimum = 200, maximum = 599)]
    status: Option<u16>,
    /// Headers by name: a text, or a list of texts. What belongs to one connection, such as
    /// `Content-Length` or `Date`, is left out, and so is `Set-Cookie`. A repeat on a guarded route
    /// has `Content-Security-Policy: sandbox` and `X-Content-Type-Options: nosniff` as well, so that
    /// no browser runs what a client chose as a page of the service.
    #[schema(value_type = Option<Object>)]
    headers: Option<BTreeMap<String, OneOrMany>>,
    /// The body as text.
    body: Option<String>,
    /// The body in base64, in place of `body`.
    body_base64: Option<String>,
    /// The body as JSON, in place of `body`.
    #[schema(value_type = Option<Object>)]
    json: Option<Value>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl CompleteRecord {
    pub(super) fn into_kept(self) -> Result<Kept, Problem> {
        let status = self.status.unwrap_or(200);
        if !(200..600).contains(&status) {
            return Err(invalid("status", "must be 200 to 599"));
        }
        let mut headers = HeaderMap::new();
        for (name, values) in self.headers.unwrap_or_default() {
            let named = HeaderName::from_bytes(name.as_bytes());
            let values = match values {
                OneOrMany::One(value) => vec![value],
                OneOrMany::Many(values) => values,
            };
            let named = named.map_err(|_| invalid("headers", "has a name that is none"))?;
            for value in values {
                let value = HeaderValue::try_from(value)
                    .map_err(|_| invalid("headers", "has a value that no header takes"))?;
                headers.append(&named, value);
            }
        }
        let body = match (self.body, self.body_base64, self.json) {
            (body, None, None) => Bytes::from(body.unwrap_or_default()),
            (None, Some(base64), None) => {
                STANDARD.decode(base64).map_err(|_| invalid("body_base64", "is not base64"))?.into()
            }
            (None, None, Some(json)) => {
                let kind = HeaderValue::from_static("application/json");
                headers.entry(header::CONTENT_TYPE).or_insert(kind);
                json.to_string().into()
            }
            _ => return Err(invalid("body", "and `body_base64` and `json` exclude one another")),
        };
        let mut headers = kept_headers(&headers);
        headers.push((CHOSEN.to_owned(), Bytes::new()));
        Ok(Kept::Answer(Arc::new(Answer { status, headers, body })))
    }
}

/// What is known now of an outcome that was unknown.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "a JSON object")]
pub(crate) struct ResolveRecord {
    /// `completed` or `not-executed`.
    #[schema(required, pattern = "^(completed|not-executed)$")]
    outcome: Option<String>,
    /// The run that you mean, as the record shows it.
    fencing_token: Option<u64>,
    /// With `completed`: the answer that every repeat is given.
    answer: Option<CompleteRecord>,
}

impl ResolveRecord {
    pub(super) fn into_ask(self, key: RecordKey) -> Result<Resolve, Problem> {
        let fence = self.fencing_token.map(FencingToken::new);
        let end = match (self.outcome.as_deref(), self.answer) {
            (Some("completed"), answer) => Some(answer.unwrap_or_default().into_kept()?),
            (Some("not-executed"), None) => None,
            (Some("not-executed"), Some(_)) => {
                return Err(invalid("answer", "there is none of what was not executed"));
            }
            _ => return Err(invalid("outcome", "must be `completed` or `not-executed`")),
        };
        Ok(Resolve { key, fence, end })
    }
}

/// The record of a key.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = IdempotencyRecord)]
pub(crate) struct Record {
    /// `in-flight`, `done` or `unknown`.
    state: &'static str,
    /// The fencing token of the last run: larger than that of every earlier one.
    fencing_token: u64,
    /// How many runs there were.
    attempts: u32,
    /// When it was first begun by the store's clock (RFC 3339, UTC).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    begun_at: Option<Timestamp>,
    /// When it was done, or since when it is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    ended_at: Option<Timestamp>,
    /// How long whoever does it may go unheard.
    #[serde(skip_serializing_if = "Option::is_none")]
    lease_expires_in_ms: Option<u64>,
    /// How long the key is remembered, at least.
    expires_in_ms: u64,
    /// Why the outcome is unknown: `interrupted`, `failed`, `panicked` or `no-answer`.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    /// The status of the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    /// Whether the answer was kept whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    answer_kept: Option<bool>,
    /// The answer, for whoever begins again.
    #[serde(skip_serializing_if = "Option::is_none")]
    answer: Option<AnswerBody>,
    /// The proof that completing asks for, for whoever is to do it. Keep it secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<String>,
}

/// An answer that was kept.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = IdempotencyAnswer)]
pub(crate) struct AnswerBody {
    /// The HTTP status.
    status: u16,
    /// The headers, each with its values.
    headers: BTreeMap<String, Vec<String>>,
    /// The body, where it is text.
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<String>,
    /// The body in base64, where it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    body_base64: Option<String>,
}

impl Record {
    pub(super) fn begun(run: Run, ask: &Begin, token: &Token) -> Self {
        Self {
            token: Some(token.expose().to_owned()),
            lease_expires_in_ms: Some(millis(run.lease)),
            ..Self::empty("in-flight", run.fence, run.attempts, ask.lease + ask.retention)
        }
    }

    pub(super) fn new(view: &View) -> Self {
        let (state, ended_at_millis) = match view.phase {
            Phase::InFlight { .. } => ("in-flight", None),
            Phase::Done { at_millis, .. } => ("done", Some(at_millis)),
            Phase::Unknown { since_millis, .. } => ("unknown", Some(since_millis)),
        };
        let mut record = Self {
            begun_at: Some(at_millis(view.begun_at_millis)),
            ended_at: ended_at_millis.map(at_millis),
            ..Self::empty(state, view.fence, view.attempts, view.expires_in)
        };
        match &view.phase {
            Phase::InFlight { lease } => record.lease_expires_in_ms = Some(millis(*lease)),
            Phase::Done { kept, .. } => {
                record.status = Some(kept.status());
                record.answer_kept = Some(matches!(kept, Kept::Answer(_)));
            }
            Phase::Unknown { reason, .. } => record.reason = Some(reason.as_str()),
        }
        record
    }

    pub(super) fn with_answer(view: &View) -> Self {
        let answer = match &view.phase {
            Phase::Done { kept: Kept::Answer(answer), .. } => Some(AnswerBody::new(answer)),
            _ => None,
        };
        Self { answer, ..Self::new(view) }
    }

    fn empty(state: &'static str, fence: FencingToken, attempts: u32, expires: Duration) -> Self {
        Self {
            state,
            fencing_token: fence.get(),
            attempts,
            begun_at: None,
            ended_at: None,
            lease_expires_in_ms: None,
            expires_in_ms: millis(expires),
            reason: None,
            status: None,
            answer_kept: None,
            answer: None,
            token: None,
        }
    }
}

impl AnswerBody {
    fn new(answer: &Answer) -> Self {
        let mut headers: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (name, value) in answer.headers.iter().filter(|(name, _)| name != CHOSEN) {
            let value = String::from_utf8_lossy(value).into_owned();
            headers.entry(name.clone()).or_default().push(value);
        }
        let text = std::str::from_utf8(&answer.body);
        Self {
            status: answer.status,
            headers,
            body: text.ok().map(str::to_owned),
            body_base64: text.is_err().then(|| STANDARD.encode(&answer.body)),
        }
    }
}
