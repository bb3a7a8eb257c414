use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use http_body::Frame;
use http_body_util::BodyExt as _;
use tokio::time::{Instant, timeout_at};

use crate::{Code, Keep, Policy, Problem, stream};
use keylatch_core::idempotency::{Answer, End, Idempotency, Kept, Phase, Reason, View, Worked};
use keylatch_core::store::Effect;

const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");
/// Until when the key of an answer is remembered, at least (an HTTP date).
const EXPIRES: HeaderName = HeaderName::from_static("idempotency-key-expires");

/// What belongs to one answer on one connection and not to its repeats.
const NOT_KEPT: [&str; 23] = [
    "baggage",
    "connection",
    "content-length",
    "date",
    "idempotency-key-expires",
    "idempotent-replayed",
    "keep-alive",
    "proxy-authenticate",
    "proxy-connection",
    "server-timing",
    "set-cookie",
    "set-cookie2",
    "te",
    "traceparent",
    "tracestate",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "via",
    "x-amzn-trace-id",
    "x-cloud-trace-context",
    "x-correlation-id",
    "x-request-id",
];

/// Stands among the headers of a response that a client chose, by `complete` or `resolve`, and that no
/// upstream gave. No header has such a name.
pub const CHOSEN: &str = ":chosen";

/// By when an answer that is to be kept has to be there as a whole, in a response's extensions.
#[derive(Debug, Clone, Copy)]
pub struct By(pub Instant);

/// What a handler's answer comes to: what goes to the client, and what is kept of it.
pub(crate) async fn worked(
    response: Response,
    policy: &Policy,
    service: &Idempotency,
) -> Worked<Response> {
    let chosen = response.extensions().get::<Keep>().copied();
    match chosen.unwrap_or_else(|| Keep::of(response.status(), policy.on_failure)) {
        Keep::Release => Worked { answer: response, end: None },
        Keep::Unknown => {
            let reason = match response.status() {
                StatusCode::GATEWAY_TIMEOUT => Reason::NoAnswer,
                _ => Reason::Failed,
            };
            Worked { answer: response, end: Some(End::Unknown(reason)) }
        }
        Keep::Answer => keep(response, policy, service).await,
    }
}

/// The answer that is known of a record.
pub fn of_view(view: View) -> Response {
    let expires_in = view.expires_in;
    let response = match view.phase {
        Phase::Done { kept: Kept::Answer(answer), .. } => replay(&answer),
        Phase::Done { kept: Kept::Mark(status), .. } => refuse(Problem::new(
            Code::AnswerNotKept,
            format!("It was carried out and answered with {status}. The answer was not kept."),
        )),
        Phase::InFlight { .. } => {
            let detail = "The same request is being carried out.";
            let problem = Problem::new(Code::RequestInProgress, detail);
            refuse(problem.with_retry_after(Duration::from_secs(1)))
        }
        Phase::Unknown { reason, .. } => refuse(Problem::new(
            Code::OutcomeUnknown,
            match reason {
                Reason::Interrupted => "It was begun, and whoever carried it out is gone.",
                Reason::Failed => "It was begun, and failed with a server error.",
                Reason::Panicked => "It was begun, and failed in the middle.",
                Reason::NoAnswer => "It was sent on, and no answer came back.",
            },
        )),
    };
    with_expiry(response, Some(expires_in))
}

/// The answer to another request under a key that was used.
pub(crate) fn reused(view: &View) -> Response {
    let detail = "The key was used for a request with other content. Nothing was run.";
    with_expiry(refuse(Problem::new(Code::IdempotencyKeyReused, detail)), Some(view.expires_in))
}

pub(crate) fn refuse(problem: Problem) -> Response {
    problem.with_retry().into_response()
}

/// Says until when the key is remembered.
pub(crate) fn with_expiry(mut response: Response, expires_in: Option<Duration>) -> Response {
    let at = expires_in.and_then(|expires_in| SystemTime::now().checked_add(expires_in));
    let at = at.and_then(|at| HeaderValue::try_from(httpdate::fmt_http_date(at)).ok());
    response.headers_mut().extend(at.map(|at| (EXPIRES, at)));
    response
}

/// Says that waiting was granted (RFC 7240, section 3).
pub(crate) fn with_wait(mut response: Response, wait: Duration) -> Response {
    let applied = HeaderValue::try_from(format!("wait={}", wait.as_secs()));
    let name = HeaderName::from_static("preference-applied");
    response.headers_mut().extend(applied.ok().map(|applied| (name, applied)));
    response
}

fn replay(answer: &Answer) -> Response {
    let mut response = Response::new(Body::from(answer.body.clone()));
    *response.status_mut() = StatusCode::from_u16(answer.status).unwrap_or_default();
    let headers = response.headers_mut();
    for (name, value) in &answer.headers {
        // What was a header once is one again.
        let name = HeaderName::from_bytes(name.as_bytes());
        let value = HeaderValue::from_maybe_shared(value.clone());
        if let (Ok(name), Ok(value)) = (name, value) {
            headers.append(name, value);
        }
    }
    if answer.headers.iter().any(|(name, _)| name == CHOSEN) {
        // A browser would run it as a page of the service, and any client may have written it.
        headers.append(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox"));
        headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    }
    headers.insert(REPLAYED, HeaderValue::from_static("true"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Keeps an answer whole, or passes it through and leaves a mark: it is too large, or a stream.
async fn keep(response: Response, policy: &Policy, service: &Idempotency) -> Worked<Response> {
    let (parts, mut body) = response.into_parts();
    let status = parts.status.as_u16();
    let by = parts.extensions.get::<By>().map(|By(by)| *by);
    let mut chunks = Vec::new();
    let mut bytes = 0;
    let mut too_much = stream::is_stream(&parts.headers);
    while !too_much {
        match next_frame(&mut body, by).await {
            None => break,
            Some(Ok(frame)) => {
                // Trailers belong to the transfer.
                let Ok(data) = frame.into_data() else { continue };
                bytes += data.len();
                chunks.push(data);
                too_much = bytes > policy.answer_limit;
            }
            Some(Err(error)) => return broke_off(error),
        }
    }
    if too_much {
        let body = stream::pass_on(chunks, body, service);
        let answer = Response::from_parts(parts, body);
        return Worked { answer, end: Some(End::Done(Kept::Mark(status))) };
    }
    let body = joined(&chunks);
    let kept = Answer { status, headers: kept_headers(&parts.headers), body: body.clone() };
    let mut answer = Response::from_parts(parts, Body::from(body));
    answer.headers_mut().remove(header::TRANSFER_ENCODING);
    // The server takes the length from the body, and would believe a header that says otherwise.
    answer.headers_mut().remove(header::CONTENT_LENGTH);
    Worked { answer, end: Some(End::Done(Kept::Answer(Arc::new(kept)))) }
}

async fn next_frame(
    body: &mut Body,
    by: Option<Instant>,
) -> Option<Result<Frame<Bytes>, axum::Error>> {
    let Some(by) = by else { return body.frame().await };
    let frame = timeout_at(by, body.frame()).await;
    frame.unwrap_or_else(|late| Some(Err(axum::Error::new(late))))
}

/// The handler's answer ended in the middle.
fn broke_off(error: axum::Error) -> Worked<Response> {
    let detail = "The answer broke off. It is not known how far the request was carried out.";
    let problem =
        Problem::new(Code::UpstreamSilent, detail).with_outcome(Effect::Unknown).caused_by(error);
    Worked { answer: refuse(problem), end: Some(End::Unknown(Reason::NoAnswer)) }
}

/// The whole body, in memory of its own: a chunk is a part of the buffer that it was read into,
/// which is larger and would be kept as long.
fn joined(chunks: &[Bytes]) -> Bytes {
    chunks.concat().into()
}

/// The headers that every repeat is given.
pub fn kept_headers(headers: &HeaderMap) -> Vec<(String, Bytes)> {
    let named: Vec<_> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|list| list.split(',').map(|name| name.trim().to_ascii_lowercase()))
        .collect();
    let kept = headers.iter().filter(|(name, _)| {
        !NOT_KEPT.contains(&name.as_str())
            && !name.as_str().starts_with("x-b3-")
            && !named.iter().any(|named| named == name.as_str())
    });
    kept.map(|(name, value)| (name.as_str().to_owned(), Bytes::copy_from_slice(value.as_bytes())))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_does_not_hold_the_buffer_that_it_was_read_into() {
        let buffer = Bytes::from(vec![b'x'; 8192]);
        let kept = joined(&[buffer.slice(..3)]);
        assert_eq!(kept, "xxx");
        assert!(buffer.is_unique());
    }
}
