//! The JSON of idempotency records, mapped to and from the types of the core.
//!
//! The JSON types are those of `keylatch-wire`. What types alone do not rule out is checked here,
//! and a member that is wrong is named in the problem.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::http::body::{at_millis, invalid};
use crate::http::problem::Problem;
use keylatch_axum::{CHOSEN, stored_headers};
use keylatch_core::idempotency::{
    Answer, BeginCommand, Fingerprint, OnCrash, RecordKey, RecordStatus, RecordView,
    ResolveCommand, Run, StoredResponse,
};
use keylatch_core::lock::{FencingToken, Token, TokenHash, Ttl};
use keylatch_wire::{
    self as wire, BeginRecordRequest, CompleteRecordRequest, HeaderValues, IdempotencyAnswer,
    IdempotencyRecord, ResolveRecordRequest, SecretToken, millis,
};

const DAY_MILLIS: u64 = 24 * 60 * 60 * 1000;
const YEAR_MILLIS: u64 = 365 * DAY_MILLIS;

/// The run that a request begins.
pub(super) fn begin(
    body: BeginRecordRequest,
    key: RecordKey,
    token: TokenHash,
) -> Result<BeginCommand, Problem> {
    let fingerprint = body.fingerprint.unwrap_or_default();
    if fingerprint.len() > 1024 {
        return Err(invalid("fingerprint", "must have at most 1024 bytes"));
    }
    let lease = Ttl::from_millis(body.lease_ms.unwrap_or(30_000));
    let retention = body.retention_ms.unwrap_or(DAY_MILLIS);
    if !(1000..=YEAR_MILLIS).contains(&retention) {
        return Err(invalid("retention_ms", "must be 1000 to 31536000000 (a year)"));
    }
    Ok(BeginCommand {
        key,
        token,
        fingerprint: Fingerprint::of_text(&fingerprint),
        lease: lease.map_err(|error| invalid("lease_ms", error))?.get(),
        retention: Duration::from_millis(retention),
        on_crash: match body.on_crash {
            Some(wire::OnCrash::Rerun) => OnCrash::Rerun,
            _ => OnCrash::Unknown,
        },
    })
}

/// The answer that a request says a run came to.
pub(super) fn answer(body: CompleteRecordRequest) -> Result<StoredResponse, Problem> {
    let status = body.status.unwrap_or(200);
    if !(200..600).contains(&status) {
        return Err(invalid("status", "must be 200 to 599"));
    }
    let mut headers = header_map(body.headers.unwrap_or_default())?;
    let body = match (body.body, body.body_base64, body.json) {
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
    let mut headers = stored_headers(&headers);
    headers.push((CHOSEN.to_owned(), Bytes::new()));
    Ok(StoredResponse::Answer(Arc::new(Answer { status, headers, body })))
}

fn header_map(named: BTreeMap<String, HeaderValues>) -> Result<HeaderMap, Problem> {
    let mut headers = HeaderMap::new();
    for (name, values) in named {
        let name = HeaderName::from_bytes(name.as_bytes())
            .map_err(|_| invalid("headers", "has a name that is none"))?;
        let values = match values {
            HeaderValues::One(value) => vec![value],
            HeaderValues::Many(values) => values,
        };
        for value in values {
            let value = HeaderValue::try_from(value)
                .map_err(|_| invalid("headers", "has a value that no header takes"))?;
            headers.append(&name, value);
        }
    }
    Ok(headers)
}

/// What a request says about an outcome that was unknown.
pub(super) fn resolve(
    body: ResolveRecordRequest,
    key: RecordKey,
) -> Result<ResolveCommand, Problem> {
    let fencing_token = body.fencing_token.map(FencingToken::new);
    let end = match (body.outcome.as_deref(), body.answer) {
        (Some("completed"), given) => Some(answer(given.unwrap_or_default())?),
        (Some("not-executed"), None) => None,
        (Some("not-executed"), Some(_)) => {
            return Err(invalid("answer", "there is none of what was not executed"));
        }
        _ => return Err(invalid("outcome", "must be `completed` or `not-executed`")),
    };
    Ok(ResolveCommand { key, fencing_token, end })
}

/// The record of a run that was begun, with the token that completes it.
pub(super) fn begun_record(run: Run, begin: &BeginCommand, token: &Token) -> IdempotencyRecord {
    IdempotencyRecord {
        token: Some(SecretToken::new(token.expose().to_owned())),
        lease_expires_in_ms: Some(millis(run.lease)),
        ..bare_record("in-flight", run.fencing_token, run.attempts, begin.lease + begin.retention)
    }
}

/// The record as any client may see it.
pub(super) fn record(view: &RecordView) -> IdempotencyRecord {
    let (state, ended_at_millis) = match view.phase {
        RecordStatus::InFlight { .. } => ("in-flight", None),
        RecordStatus::Done { at_millis, .. } => ("done", Some(at_millis)),
        RecordStatus::Unknown { since_millis, .. } => ("unknown", Some(since_millis)),
    };
    let mut record = IdempotencyRecord {
        begun_at: Some(at_millis(view.begun_at_millis)),
        ended_at: ended_at_millis.map(at_millis),
        ..bare_record(state, view.fencing_token, view.attempts, view.expires_in)
    };
    match &view.phase {
        RecordStatus::InFlight { lease } => record.lease_expires_in_ms = Some(millis(*lease)),
        RecordStatus::Done { kept, .. } => {
            record.status = Some(kept.status());
            record.answer_kept = Some(matches!(kept, StoredResponse::Answer(_)));
        }
        RecordStatus::Unknown { reason, .. } => record.reason = Some(reason.as_str().into()),
    }
    record
}

/// The record with its answer, for a client that begins again.
pub(super) fn record_with_answer(view: &RecordView) -> IdempotencyRecord {
    let answer = match &view.phase {
        RecordStatus::Done { kept: StoredResponse::Answer(answer), .. } => {
            Some(answer_body(answer))
        }
        _ => None,
    };
    IdempotencyRecord { answer, ..record(view) }
}

fn bare_record(
    state: &'static str,
    fencing_token: FencingToken,
    attempts: u32,
    expires: Duration,
) -> IdempotencyRecord {
    IdempotencyRecord {
        state: state.into(),
        fencing_token: fencing_token.get(),
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

fn answer_body(answer: &Answer) -> IdempotencyAnswer {
    let mut headers: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (name, value) in answer.headers.iter().filter(|(name, _)| name != CHOSEN) {
        let value = String::from_utf8_lossy(value).into_owned();
        headers.entry(name.clone()).or_default().push(value);
    }
    let text = std::str::from_utf8(&answer.body);
    IdempotencyAnswer {
        status: answer.status,
        headers,
        body: text.ok().map(str::to_owned),
        body_base64: text.is_err().then(|| STANDARD.encode(&answer.body)),
    }
}
