//! What a guarded request answers: the handler's response, or what the record of its key says.
//!
//! A response is stored whole, without the headers that belong to one connection, unless it is too
//! large or a stream, which has no end to wait for; then its bytes go through and the record keeps
//! its status and its other headers. Such a body is read to its end also when the client goes away,
//! for at most a minute: the work behind it may stop where no client reads. A response that breaks
//! off leaves an unknown outcome. Invariant: what was stored is replayed byte for byte. The tests
//! of the layer hold it over HTTP.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream::poll_fn;
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::issued_key::CLOCKS;
use crate::key_source::KeyKind;
use crate::{Code, Guard, KeepFor, Problem, RetentionPolicy};
use keylatch_core::idempotency::{
    Answer, IdempotencyService, LateWork, OnCrash, RecordScope, RecordStatus, RecordView, RunEnd,
    RunResult, SentOn, StoredResponse, UnknownReason,
};
use keylatch_core::store::Effect;
use keylatch_core::task::BoxFuture;
use keylatch_wire::{ProblemDocument, Retry};

/// The id of a request, as its upstream logs it.
pub(crate) const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");
/// The time until which the key is remembered, at least (an HTTP date).
const EXPIRES: HeaderName = HeaderName::from_static("idempotency-key-expires");

/// Where the key of the request comes from.
const SOURCE: HeaderName = HeaderName::from_static("idempotency-key-source");

/// The seconds of a wait that was granted (RFC 7240, section 3).
const PREFERENCE_APPLIED: HeaderName = HeaderName::from_static("preference-applied");

/// Whether a header is one by which clients know what keylatch did, or what is for keylatch alone.
/// No other server's passes for one.
pub(crate) fn is_mark(name: &HeaderName) -> bool {
    [REPLAYED, IDEMPOTENT_BODY, EXPIRES, SOURCE, PREFERENCE_APPLIED].contains(name)
        || name.as_str().starts_with("keylatch-")
}

/// The headers of a message that belong to one connection and not to the next (RFC 9110, section
/// 7.6.1).
pub(crate) const HOP_BY_HOP: [&str; 9] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Other headers that belong to one response and not to its repeats.
const UNSTORED_HEADERS: [&str; 13] = [
    "baggage",
    "content-length",
    "date",
    "server-timing",
    "set-cookie",
    "set-cookie2",
    "traceparent",
    "tracestate",
    "via",
    "x-amzn-trace-id",
    "x-cloud-trace-context",
    "x-correlation-id",
    "x-request-id",
];

/// Media types whose responses last as long as their connection.
const STREAM_MEDIA_TYPES: [&str; 3] =
    ["text/event-stream", "multipart/x-mixed-replace", "application/x-ndjson"];
/// How long the id of a request may be for a record to keep it.
const MAX_ID_LEN: usize = 128;
/// How long the rest of a response is read after its client went away.
const DRAIN_LIMIT: Duration = Duration::from_secs(60);

/// Stands among the headers of a response that a client chose, by `complete` or `resolve`, and that
/// no upstream gave. No header has such a name.
pub const CHOSEN: &str = ":chosen";

/// Stands there likewise, with the label of the operator who chose the response.
pub const CHOSEN_BY: &str = ":chosen-by";

/// Stands there likewise, with how the operator found out.
pub const CHOSEN_REASON: &str = ":chosen-reason";

/// Stands among the headers of a response whose body was not stored, as [`CHOSEN`] does.
const WITHOUT_BODY: &str = ":without-body";

/// Says on a repeat that the response had a body, which was not stored.
pub const IDEMPOTENT_BODY: HeaderName = HeaderName::from_static("idempotent-body");

/// Headers that describe the body of their response, and go where that is not stored.
const OF_BODY: [&str; 9] = [
    "accept-ranges",
    "content-disposition",
    "content-encoding",
    "content-language",
    "content-md5",
    "content-range",
    "content-type",
    "digest",
    "repr-digest",
];

/// Whether a stored response has the body that it was given with.
pub fn has_body(stored: &StoredResponse) -> bool {
    match stored {
        StoredResponse::Answer(answer) => !has_mark(answer, WITHOUT_BODY),
        // Who has the key may find none.
        StoredResponse::Sealed(_) => true,
        StoredResponse::Mark(_) | StoredResponse::Stub(_) => false,
    }
}

fn has_mark(answer: &Answer, mark: &str) -> bool {
    answer.headers.iter().any(|(name, _)| name == mark)
}

/// The result of the work within the time that the client waits for it. Work that takes longer
/// leaves an unknown outcome, continues for as long as a lease, and settles the outcome if it comes
/// to a response.
pub(crate) async fn in_time(
    mut work: BoxFuture<RunResult<Response>>,
    limit: Option<Duration>,
    lease: Duration,
) -> RunResult<Response> {
    let Some(limit) = limit else { return work.await };
    match timeout(limit, &mut work).await {
        Ok(result) => result,
        Err(late) => {
            let detail = "The request was sent on, and no response came in time.";
            let problem = Problem::new(Code::UpstreamSilent, detail)
                .with_outcome(Effect::Unknown)
                .caused_by(late);
            let end = Some(RunEnd::Unknown(UnknownReason::NoAnswer));
            let late = LateWork { end: Box::pin(async { work.await.end }), limit: lease };
            RunResult { answer: refuse(problem), end, late: Some(late) }
        }
    }
}

/// The result of a run: what goes to the client, and what the record keeps.
pub(crate) async fn run_result(
    response: Response,
    guard: &Guard,
    service: &IdempotencyService,
    scope: &RecordScope,
) -> RunResult<Response> {
    let lasts = response.extensions().get::<KeepFor>().copied();
    let status = response.status();
    let (answer, end) = match retention_of(&response, guard) {
        RetentionPolicy::Release => (response, None),
        RetentionPolicy::Unknown if status == StatusCode::GATEWAY_TIMEOUT => {
            (response, Some(RunEnd::Unknown(UnknownReason::NoAnswer)))
        }
        RetentionPolicy::Unknown => (response, Some(RunEnd::Unknown(UnknownReason::Failed))),
        RetentionPolicy::Status => {
            (response, Some(RunEnd::Done(StoredResponse::Mark(status.as_u16()))))
        }
        RetentionPolicy::Answer => {
            let is_short = status.is_client_error() && service.is_room_short(scope);
            let (answer, end) = store(response, guard, service, is_short).await;
            (answer, Some(end))
        }
    };
    let end = match (end, lasts) {
        // An issued key is kept until it has expired, whatever the upstream says.
        (Some(RunEnd::Done(kept)), Some(KeepFor(lasts))) if guard.takes_issued_keys() => {
            Some(RunEnd::DoneFor(kept, lasts.max(guard.retention() + CLOCKS)))
        }
        (Some(RunEnd::Done(kept)), Some(KeepFor(lasts))) => Some(RunEnd::DoneFor(kept, lasts)),
        (end, _) => end,
    };
    RunResult { answer, end, late: None }
}

/// The id of a request, if a record may keep it.
pub(crate) fn request_id(headers: &HeaderMap) -> Option<HeaderValue> {
    headers.get(X_REQUEST_ID).filter(|id| id.len() <= MAX_ID_LEN).cloned()
}

/// Adds to an unknown outcome what an operator finds the run by.
pub(crate) fn with_trail(
    result: RunResult<Response>,
    request_id: Option<HeaderValue>,
) -> RunResult<Response> {
    let Some(RunEnd::Unknown(reason)) = result.end else { return result };
    let status = (reason == UnknownReason::Failed).then(|| result.answer.status().as_u16());
    let request_id = request_id.and_then(|id| Some(id.to_str().ok()?.to_owned()));
    let sent = Arc::new(SentOn { status, request_id });
    RunResult { end: Some(RunEnd::SentOn(reason, sent)), ..result }
}

/// What becomes of the key after a response: what the response says itself, or else the rule of the
/// guard.
pub(crate) fn retention_of(response: &Response, guard: &Guard) -> RetentionPolicy {
    let by_rule = || {
        let (status, headers) = (response.status(), response.headers());
        RetentionPolicy::for_response(status, headers, &guard.on_failure)
    };
    response.extensions().get::<RetentionPolicy>().copied().unwrap_or_else(by_rule)
}

/// The response to a repeat of a request, whose record says this.
pub fn repeat_response(view: RecordView) -> Response {
    let again = |problem: Problem| problem.with_retry_after(Duration::from_secs(1));
    let response = match view.phase {
        RecordStatus::Done { kept: StoredResponse::Answer(answer), .. } => replay(&answer),
        RecordStatus::Done { kept: StoredResponse::Mark(status), .. } => refuse(Problem::new(
            Code::AnswerNotKept,
            format!("It was carried out, and the response was {status}. It was not kept."),
        )),
        RecordStatus::Done { kept: StoredResponse::Sealed(sealed), .. } => {
            let detail = "It was carried out, and its response cannot be decrypted here.";
            let problem = Problem::new(Code::AnswerUnreadable, detail);
            refuse(again(problem).caused_by(MissingKey(sealed.key_id.clone())))
        }
        // The port has no such reply.
        RecordStatus::Done { kept: StoredResponse::Stub(_), .. } => refuse(Problem::new(
            Code::StoreUnavailable,
            "It was carried out, and its response was not read.",
        )),
        RecordStatus::InFlight { .. } => refuse(again(Problem::new(
            Code::RequestInProgress,
            "The same request is being carried out.",
        ))),
        RecordStatus::Unknown { reason, .. } => {
            refuse(Problem::new(Code::OutcomeUnknown, reason.detail()))
        }
    };
    with_expiry(response, Some(view.expires_in))
}

#[derive(Debug, thiserror::Error)]
#[error("it is encrypted with the key `{0}`, which is missing or does not decrypt it")]
struct MissingKey(String);

/// The response to another request under a key that was used. A body that is compared as it was
/// coded may be the first one again, which a new key would run twice.
pub(crate) fn reused_key_response(view: &RecordView, is_coded: bool) -> Response {
    let detail = match is_coded {
        false => "The key was used for a request with other content. Nothing was run.",
        true => {
            "The key was used for a request with other bytes, and these are coded. Nothing was run."
        }
    };
    let problem = Problem::new(Code::IdempotencyKeyReused, detail).with_retry();
    let never = |problem: &mut ProblemDocument| problem.retry = Some(Retry::Never);
    let problem = if is_coded { problem.with(never) } else { problem };
    with_expiry(problem.into_response(), Some(view.expires_in))
}

/// The response to another request for what is done once.
pub(crate) fn already_done_response(view: RecordView) -> Response {
    let RecordStatus::Done { kept, .. } = &view.phase else { return repeat_response(view) };
    let detail = "It was done before, by a request with other content. Nothing was run.";
    let mut response = refuse(Problem::new(Code::AlreadyDone, detail));
    if let StoredResponse::Answer(answer) = kept {
        let found = answer.headers.iter().find(|(name, _)| name == header::LOCATION.as_str());
        let place = found.and_then(|(_, value)| HeaderValue::from_maybe_shared(value.clone()).ok());
        response.headers_mut().extend(place.map(|place| (header::LOCATION, place)));
    }
    with_expiry(response, Some(view.expires_in))
}

/// The response to a request whose run the process did not see the end of.
pub(crate) fn interrupted_run_response(on_crash: OnCrash) -> Response {
    refuse(match on_crash {
        OnCrash::Unknown => Problem::new(
            Code::OutcomeUnknown,
            "It was begun, and the process that carried it out is shutting down.",
        ),
        OnCrash::Rerun => {
            let detail = "It was begun, and will be run again: this process is shutting down.";
            let problem = Problem::new(Code::RequestInProgress, detail);
            problem.with_retry_after(Duration::from_secs(1))
        }
    })
}

fn refuse(problem: Problem) -> Response {
    problem.with_retry().into_response()
}

/// Says where the key of the request comes from.
pub(crate) fn with_source(mut response: Response, kind: KeyKind) -> Response {
    response.headers_mut().insert(SOURCE, HeaderValue::from_static(kind.into()));
    response
}

/// Says that no key counted, where the response does not say yet which one did.
pub fn name_no_source(response: &mut Response) {
    response.headers_mut().entry(SOURCE).or_insert(HeaderValue::from_static(KeyKind::None.into()));
}

/// Adds the time until which the key is remembered.
pub(crate) fn with_expiry(mut response: Response, expires_in: Option<Duration>) -> Response {
    let at = expires_in.and_then(|expires_in| SystemTime::now().checked_add(expires_in));
    let at = at.and_then(|at| HeaderValue::try_from(httpdate::fmt_http_date(at)).ok());
    if let Some(at) = at {
        response.headers_mut().insert(EXPIRES, at);
    }
    response
}

/// Adds that the preferred wait was granted.
pub fn with_applied_wait(mut response: Response, wait: Duration) -> Response {
    if let Ok(applied) = HeaderValue::try_from(format!("wait={}", wait.as_secs())) {
        response.headers_mut().insert(PREFERENCE_APPLIED, applied);
    }
    response
}

fn replay(answer: &Answer) -> Response {
    let mut response = Response::new(Body::from(answer.body.clone()));
    *response.status_mut() = StatusCode::from_u16(answer.status).unwrap_or_default();
    let headers = response.headers_mut();
    for (name, value) in &answer.headers {
        // It was a header when it was stored, so it is one again.
        let name = HeaderName::from_bytes(name.as_bytes());
        let value = HeaderValue::from_maybe_shared(value.clone());
        if let (Ok(name), Ok(value)) = (name, value) {
            headers.append(name, value);
        }
    }
    if has_mark(answer, WITHOUT_BODY) {
        headers.insert(IDEMPOTENT_BODY, HeaderValue::from_static("not-kept"));
    }
    if has_mark(answer, CHOSEN) {
        // A browser would run it as a page of the service, and any client may have written it.
        headers.append(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox"));
        headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    }
    headers.insert(REPLAYED, HeaderValue::from_static("true"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Stores a response whole. Of one that is too large, or a stream, the body goes through and is not
/// stored; nor is that of a refusal where room is short.
async fn store(
    response: Response,
    guard: &Guard,
    service: &IdempotencyService,
    is_short: bool,
) -> (Response, RunEnd) {
    let (parts, mut body) = response.into_parts();
    let status = parts.status.as_u16();
    let headers = stored_headers(&parts.headers);
    let mut chunks = Vec::new();
    let limit = guard.response_limit_bytes.min(service.answer_limit());
    let mut bytes = headers.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>();
    let mut too_much = bytes > limit || is_short || is_stream(&parts.headers);
    while !too_much {
        match body.frame().await {
            None => break,
            Some(Ok(frame)) => {
                // Trailers belong to the transfer.
                let Ok(data) = frame.into_data() else { continue };
                bytes += data.len();
                chunks.push(data);
                too_much = bytes > limit;
            }
            Some(Err(error)) => return broken(error),
        }
    }
    if too_much {
        let answer = Response::from_parts(parts, relayed_body(chunks, body, service));
        return (answer, RunEnd::Done(without_body(status, headers, limit)));
    }
    let body = concatenated(&chunks);
    let kept = Answer { status, headers, body: body.clone() };
    let mut answer = Response::from_parts(parts, Body::from(body));
    answer.headers_mut().remove(header::TRANSFER_ENCODING);
    // The server takes the length from the body, and would believe a header that says otherwise.
    answer.headers_mut().remove(header::CONTENT_LENGTH);
    (answer, RunEnd::Done(StoredResponse::Answer(Arc::new(kept))))
}

/// What is stored of a response whose body is not: its status, and its headers if they are not too
/// much.
fn without_body(status: u16, mut headers: Vec<(String, Bytes)>, limit: usize) -> StoredResponse {
    headers.retain(|(name, _)| !OF_BODY.contains(&name.as_str()));
    headers.push((WITHOUT_BODY.to_owned(), Bytes::new()));
    if headers.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>() > limit {
        return StoredResponse::Mark(status);
    }
    StoredResponse::Answer(Arc::new(Answer { status, headers, body: Bytes::new() }))
}

/// What is kept of a response within a limit of bytes: all of it, or its status and headers.
pub fn kept_within(answer: Answer, limit: usize) -> StoredResponse {
    let kept = StoredResponse::Answer(Arc::new(answer));
    match &kept {
        StoredResponse::Answer(answer) if kept.kept_bytes() > limit as u64 => {
            without_body(answer.status, answer.headers.clone(), limit)
        }
        _ => kept,
    }
}

fn broken(error: axum::Error) -> (Response, RunEnd) {
    let detail = "The response broke off. It is not known how far the request was carried out.";
    let problem =
        Problem::new(Code::UpstreamSilent, detail).with_outcome(Effect::Unknown).caused_by(error);
    (refuse(problem), RunEnd::Unknown(UnknownReason::NoAnswer))
}

/// The whole body, copied: a chunk is a part of the buffer that it was read into, and would keep
/// that larger buffer in memory.
fn concatenated(chunks: &[Bytes]) -> Bytes {
    chunks.concat().into()
}

/// The headers that a message names in `Connection`, as those of its own connection.
pub(crate) fn named_in_connection(headers: &HeaderMap) -> Vec<HeaderName> {
    let lines = headers.get_all(header::CONNECTION).iter().filter_map(|value| value.to_str().ok());
    lines.flat_map(|list| list.split(',')).filter_map(|name| name.trim().parse().ok()).collect()
}

/// The headers of a response that every repeat gets.
pub fn stored_headers(headers: &HeaderMap) -> Vec<(String, Bytes)> {
    let named = named_in_connection(headers);
    let kept = headers.iter().filter(|(name, _)| {
        !HOP_BY_HOP.contains(&name.as_str())
            && !UNSTORED_HEADERS.contains(&name.as_str())
            && !is_mark(name)
            && !name.as_str().starts_with("x-b3-")
            && !named.contains(name)
    });
    let mut kept: Vec<_> = kept
        .map(|(name, value)| (name.as_str().to_owned(), Bytes::copy_from_slice(value.as_bytes())))
        .collect();
    // Most answers keep one header, and a list grows to room for four: a seventh of what a record
    // takes in memory.
    kept.shrink_to_fit();
    kept
}

/// Whether a response is a stream, which has no end to wait for.
fn is_stream(headers: &HeaderMap) -> bool {
    let media_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let media_type = media_type.and_then(|text| text.split(';').next()).unwrap_or_default().trim();
    STREAM_MEDIA_TYPES.iter().any(|stream| media_type.eq_ignore_ascii_case(stream))
}

/// A body of what was read and what is still to come, which a task of the service relays.
fn relayed_body(read: Vec<Bytes>, rest: Body, service: &IdempotencyService) -> Body {
    let (sender, mut receiver) = mpsc::channel(8);
    service.spawn(relay(read, rest, sender));
    Body::new(StreamBody::new(poll_fn(move |cx| receiver.poll_recv(cx))))
}

async fn relay(
    read: Vec<Bytes>,
    mut rest: Body,
    client: mpsc::Sender<Result<Frame<Bytes>, axum::Error>>,
) {
    for chunk in read {
        drop(client.send(Ok(Frame::data(chunk))).await);
    }
    loop {
        let frame = tokio::select! {
            biased;
            () = client.closed() => break,
            frame = rest.frame() => frame,
        };
        let Some(frame) = frame else { return };
        let broken = frame.is_err();
        if client.send(frame).await.is_err() || broken {
            break;
        }
    }
    let drain = async { while let Some(Ok(_)) = rest.frame().await {} };
    if timeout(DRAIN_LIMIT, drain).await.is_err() {
        tracing::debug!("the rest of an answer was not read: its client is gone");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_body_does_not_hold_its_read_buffer() {
        let buffer = Bytes::from(vec![b'x'; 8192]);
        let kept = concatenated(&[buffer.slice(..3)]);
        assert_eq!(kept, "xxx");
        assert!(buffer.is_unique());
    }
}
