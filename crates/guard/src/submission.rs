//! What a client submits: the body, the key, the scope and the fingerprint of a request.
//!
//! A key comes in the `Idempotency-Key` header or, where a browser has no JavaScript, in the form
//! field `idempotency_key`. The scope is the principal, the method and the normalised path, so that
//! one spelling of a path is not another key than the next. The body is read within limits: one that is
//! too large or too slow is refused with a problem that closes its connection, since the rest of it is
//! not read.
//!
//! Invariant: all spellings of a path have one scope. The tests of the layer hold it over HTTP.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody as _};
use axum::extract::Request;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};

use crate::escapes::normalize_escapes;
use crate::fingerprint::{FingerprintInput, form_field};
use crate::media_type::{MediaType, content_coding, text_of};
use crate::{BodyLimits, Code, Guard, OnFailure, Problem};
use keylatch_core::idempotency::{
    IdempotencyKey, InvalidKey, Principal, RecordScope, RunRequest, Scope,
};

/// The client's name for its intent (draft-ietf-httpapi-idempotency-key-header-07).
pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// The form field that stands in for the header.
const FIELD: &str = "idempotency_key";

/// Headers in which frameworks look for another method than that of the request line.
const METHOD_OVERRIDES: [HeaderName; 3] = [
    HeaderName::from_static("x-http-method-override"),
    HeaderName::from_static("x-http-method"),
    HeaderName::from_static("x-method-override"),
];

/// Says for which user or system a request comes. Each principal has its own keys.
pub(crate) type PrincipalFn = Arc<dyn Fn(&Parts) -> Principal + Send + Sync>;

/// A request of a guarded method, as its client submitted it.
pub(crate) enum Submission {
    /// It has a key, so it runs once.
    Keyed {
        /// The request, its body read. It is moved from future to future until the run begins, so it has a box.
        request: Box<Request>,
        /// What is to be done once.
        ask: RunRequest,
        /// Whether the client prefers waiting for a run that is under way to being refused.
        prefers_wait: bool,
    },
    /// It has no key and needs none, so it runs unguarded.
    Unkeyed(Request),
}

impl Submission {
    /// Reads the key and, where that matters, the whole body.
    pub(crate) async fn read(
        guard: &Guard,
        principal: &PrincipalFn,
        request: Request,
    ) -> Result<Self, Problem> {
        let (mut parts, body) = request.into_parts();
        let key = header_key(&parts.headers)?;
        let media_type = MediaType::of(&parts.headers);
        if key.is_none() && !media_type.is_form() {
            return if guard.require_key {
                Err(key_required())
            } else {
                Ok(Self::Unkeyed(Request::from_parts(parts, body)))
            };
        }
        let body = read_body(body, guard.body_limits()).await?;
        let fields = form_field(&media_type, &body, FIELD).await;
        let key = match (key, field_key(&fields)?) {
            (Some(key), Some(field)) if key != field => {
                return Err(invalid_key("the header and the form field differ"));
            }
            (Some(key), _) | (None, Some(key)) => key,
            (None, None) if guard.require_key => return Err(key_required()),
            (None, None) => {
                return Ok(Self::Unkeyed(Request::from_parts(parts, Body::from(body))));
            }
        };
        let preferred = preferred_wait(&parts.headers);
        let ask = run_request(guard, principal, &parts, media_type, &body, &key, preferred).await;
        pass_key_on(&mut parts, &key);
        let request = Box::new(Request::from_parts(parts, Body::from(body)));
        Ok(Self::Keyed { request, ask, prefers_wait: preferred.is_some() })
    }
}

/// What is to be done once.
async fn run_request(
    guard: &Guard,
    principal: &PrincipalFn,
    parts: &Parts,
    media_type: MediaType,
    body: &Bytes,
    key: &IdempotencyKey,
    preferred: Option<Duration>,
) -> RunRequest {
    let (method, path) = (parts.method.as_str(), normalize_path(parts.uri.path()));
    let principal = principal(parts);
    let path = &*path;
    // A form without JavaScript is sent twice by a double click, and the page that comes of it
    // is that of the second.
    let page = media_type.is_form() && text(&parts.headers, &header::ACCEPT).contains("text/html");
    let max_wait = Duration::from_millis(guard.max_wait_ms);
    let wait = preferred.or(page.then_some(max_wait));
    let scope = Scope { principal: &principal, method, path };
    let input = FingerprintInput {
        method: method.to_owned(),
        path: path.to_owned(),
        query: parts.uri.query().unwrap_or_default().to_owned(),
        media_type,
        coding: content_coding(&parts.headers),
        body: body.clone(),
        ignore: guard.ignore_fields.clone(),
        headers: counted_headers(&parts.headers, &guard.fingerprint_headers),
    };
    let shown = if guard.principal_is_secret { &Principal::None } else { &principal };
    RunRequest {
        key: scope.record(key),
        scope: RecordScope::new(&Scope { principal: shown, ..scope }, key),
        fingerprint: input.fingerprint().await,
        lease: guard.lease(),
        retention: Duration::from_millis(guard.retention_ms),
        on_crash: guard.on_crash,
        panic_releases: guard.on_failure.for_panic() == OnFailure::Release,
        answer_bytes: guard.answer_limit_bytes,
        wait: wait.unwrap_or_default().min(max_wait),
    }
}

/// The headers of these names, for the fingerprint.
fn counted_headers(headers: &HeaderMap, names: &[String]) -> Vec<(String, String)> {
    let lines = names.iter().flat_map(|name| {
        let values = headers.get_all(name.as_str()).iter();
        values.map(|value| (name.to_ascii_lowercase(), text_of(value)))
    });
    let mut lines: Vec<_> = lines.collect();
    lines.sort_by(|one, other| one.0.cmp(&other.0));
    lines
}

/// Refuses what a lenient server may run as a guarded method that it does not look like.
pub(crate) fn check_method(guard: &Guard, request: &Request) -> Result<(), Problem> {
    let (method, headers) = (request.method(), request.headers());
    let is_respelt = |guarded: &String| guarded.eq_ignore_ascii_case(method.as_str());
    if !guard.guards(method) && guard.methods.iter().any(is_respelt) {
        let detail = "Methods are in capitals. Nothing was run.";
        return Err(Problem::new(Code::MethodNotAllowed, detail));
    }
    match METHOD_OVERRIDES.iter().find(|name| headers.contains_key(*name)) {
        None => Ok(()),
        Some(name) => {
            let detail = "No header stands in for the method. Nothing was run.";
            Err(Problem::new(Code::MethodNotAllowed, detail).with_field(name.as_str()))
        }
    }
}

/// The path with each character spelt in the one way that all its spellings have in common
/// (RFC 3986, section 6.2.2), and without a slash at its end.
pub fn normalize_path(path: &str) -> Cow<'_, str> {
    normalize_escapes(if path.len() > 1 { path.trim_end_matches('/') } else { path })
}

fn header_key(headers: &HeaderMap) -> Result<Option<IdempotencyKey>, Problem> {
    let mut values = headers.get_all(IDEMPOTENCY_KEY).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(invalid_key("there is more than one Idempotency-Key header"));
    }
    IdempotencyKey::from_header(value.as_bytes()).map(Some).map_err(invalid)
}

fn field_key(fields: &[Vec<u8>]) -> Result<Option<IdempotencyKey>, Problem> {
    match fields {
        [] => Ok(None),
        [value] => IdempotencyKey::from_header(value).map(Some).map_err(invalid),
        _ => Err(invalid_key("there is more than one form field of that name")),
    }
}

fn invalid(why: InvalidKey) -> Problem {
    invalid_key(&why.to_string())
}

fn invalid_key(why: &str) -> Problem {
    Problem::new(Code::InvalidKey, format!("The Idempotency-Key is not valid: {why}."))
        .with_field("Idempotency-Key")
}

fn key_required() -> Problem {
    Problem::new(Code::KeyRequired, "The request has no Idempotency-Key. Nothing was run.")
        .with_field("Idempotency-Key")
}

/// Hands a key that came in a form to the handler, as a header.
fn pass_key_on(parts: &mut Parts, key: &IdempotencyKey) {
    if let (false, Ok(value)) =
        (parts.headers.contains_key(IDEMPOTENCY_KEY), HeaderValue::try_from(key.to_header()))
    {
        parts.headers.insert(IDEMPOTENCY_KEY, value);
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Cow<'a, str> {
    headers.get(name).map_or(Cow::Borrowed(""), |value| String::from_utf8_lossy(value.as_bytes()))
}

/// The `wait` of a `Prefer` header, in seconds (RFC 7240, section 4.3).
fn preferred_wait(headers: &HeaderMap) -> Option<Duration> {
    let preferences = headers.get_all("prefer").iter().filter_map(|value| value.to_str().ok());
    let wait = preferences.flat_map(|list| list.split(',')).find_map(|preference| {
        let (name, value) = preference.split(';').next()?.split_once('=')?;
        let seconds = value.trim().trim_matches('"').parse().ok()?;
        name.trim().eq_ignore_ascii_case("wait").then_some(seconds)
    })?;
    Some(Duration::from_secs(wait))
}

/// The whole body, within the limits of size and time.
///
/// # Errors
///
/// The body is too large or too slow, or breaks off.
pub async fn read_body(body: Body, limits: BodyLimits) -> Result<Bytes, Problem> {
    if body.is_end_stream() {
        return Ok(Bytes::new());
    }
    let too_large = || {
        let detail = format!("The body has more than {} bytes.", limits.bytes);
        Problem::new(Code::PayloadTooLarge, detail)
    };
    // What says that it is too large is not even read.
    if body.size_hint().lower() > limits.bytes as u64 {
        return Err(too_large());
    }
    let limited = Limited::new(body, limits.bytes);
    match tokio::time::timeout(limits.time, limited.collect()).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large()),
        Ok(Err(_)) => Err(Problem::new(Code::InvalidBody, "The body broke off.")),
        Err(_) => Err(Problem::new(Code::RequestTimeout, "The body did not arrive in time.")),
    }
}
