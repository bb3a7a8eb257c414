//! What a client submits: the body, the key, the scope and the fingerprint of a request.
//!
//! A key comes in the `Idempotency-Key` header or, where a browser has no JavaScript, in the form
//! field `idempotency_key`. The scope is the principal, the method and the normalised path, so that
//! one spelling of a path is not another key than the next. The body is read within limits: one
//! that is too large or too slow is refused with a problem that closes its connection, since the
//! rest of it is not read.
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

use crate::content::Content;
use crate::escapes::normalize_escapes;
use crate::fingerprint::FingerprintInput;
use crate::key_source::{FoundKey, IDEMPOTENCY_KEY, KeyKind, find_key};
use crate::media_type::{MediaType, text_of};
use crate::path_reading::PathReading;
use crate::{
    BodyLimits, Code, Guard, IssuedKeys, KeyPart, KeySource, MissingKey, OnFailure, OnStoreDown,
    Problem,
};
use keylatch_core::idempotency::{
    Fingerprint, FingerprintHasher, IdempotencyKey, Principal, RecordScope, RunRequest, Scope,
};

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
    Keyed(KeyedRequest),
    /// It has no key and needs none, so it runs unguarded.
    Unkeyed(Request),
}

pub(crate) struct KeyedRequest {
    /// The request, its body read. It is moved from future to future until the run begins, so it
    /// has a box.
    pub(crate) request: Box<Request>,
    pub(crate) ask: RunRequest,
    pub(crate) kind: KeyKind,
    /// Whether the fingerprint covers the body as it was coded, so that the same content may have
    /// another one.
    pub(crate) is_coded: bool,
    /// Whether the client prefers waiting for a run that is under way to being refused.
    pub(crate) prefers_wait: bool,
    /// The same request for a run without a store, where the guard allows one.
    pub(crate) spare: Option<Box<Request>>,
}

impl Submission {
    /// Reads the key and, where that matters, the whole body. `own_path` is the guard's; a layer in
    /// a program has none, and its keys always have the request's.
    pub(crate) async fn read(
        guard: &Guard,
        own_path: &str,
        principal: &PrincipalFn,
        issued: Option<&IssuedKeys>,
        request: Request,
    ) -> Result<Self, Problem> {
        let (mut parts, body) = request.into_parts();
        let media_type = MediaType::of(&parts.headers);
        let is_made = !guard.once_per.is_empty() || guard.missing_key == MissingKey::Derive;
        let reads_body = guard.key.iter().any(|source| source.reads_body(&media_type));
        let sources = if guard.once_per.is_empty() { &*guard.key } else { &[] };
        let early = !is_made && !reads_body;
        let mut found = None;
        if early {
            found = find_key(sources, &parts, &media_type, &Bytes::new()).await?;
            if found.is_none() {
                return without_key(guard, Request::from_parts(parts, body));
            }
        }
        let body = read_body(body, guard.body_limits()).await?;
        let content = Content::read(&parts.headers, &body, guard.body_limit_bytes).await;
        let is_coded = !content.coding.is_empty();
        if !early {
            found = find_key(sources, &parts, &media_type, &content.readable()).await?;
        }
        if found.is_none() && !is_made {
            return without_key(guard, Request::from_parts(parts, Body::from(body)));
        }
        let principal = principal(&parts);
        if found.is_none() && guard.derive().is_some_and(|one| one.of.contains(&KeyPart::Body)) {
            content.check_whole()?;
        }
        let input = fingerprint_input(guard, target(&parts), &parts.headers, media_type, content);
        let intent = match found {
            Some(found) => Intent::named(guard, principal, found, issued, input).await?,
            None => Intent::made(guard, own_path, principal, input).await?,
        };
        let preferred = preferred_wait(&parts.headers);
        let (ask, kind) = (run_request(guard, &parts, &intent, preferred), intent.kind);
        pass_key_on(&mut parts, &intent.key);
        let of_parts = |parts| Box::new(Request::from_parts(parts, Body::from(body.clone())));
        let spare = (guard.on_store_down == OnStoreDown::Pass).then(|| of_parts(parts.clone()));
        let (request, prefers_wait) = (of_parts(parts), preferred.is_some());
        Ok(Self::Keyed(KeyedRequest { request, ask, kind, is_coded, prefers_wait, spare }))
    }
}

fn without_key(guard: &Guard, request: Request) -> Result<Submission, Problem> {
    if guard.missing_key == MissingKey::Pass {
        return Ok(Submission::Unkeyed(request));
    }
    let mut names: Vec<_> = guard.key.iter().map(KeySource::name).collect();
    names.dedup();
    let standard = guard.key.iter().any(KeySource::is_standard);
    let how = if standard { "Add the header, or a form field `idempotency_key`. " } else { "" };
    let detail = format!("The request has no {}. {how}Nothing was run.", names.join(" or "));
    Err(Problem::new(Code::KeyRequired, detail)
        .with_field(names.into_iter().next().unwrap_or_default()))
}

/// What a request wants to be done once, and under which key.
struct Intent {
    key: IdempotencyKey,
    kind: KeyKind,
    source: String,
    principal: Principal,
    method: String,
    path: String,
    fingerprint: Fingerprint,
    retention: Duration,
    is_form: bool,
}

impl Intent {
    /// That of a request with this key.
    async fn named(
        guard: &Guard,
        principal: Principal,
        found: FoundKey,
        issued: Option<&IssuedKeys>,
        input: FingerprintInput,
    ) -> Result<Self, Problem> {
        let FoundKey { key, kind, scope: source } = found;
        let (method, path) = (input.method.clone(), input.path.clone());
        let (is_form, mut retention) = (input.media_type.is_form(), guard.retention());
        if kind == KeyKind::Issued {
            let scope = Scope { principal: &principal, method: &method, path: &path, source: "" };
            retention = retention.max(check_issued(issued, &key, &scope)?);
        }
        let fingerprint = input.fingerprint().await;
        Ok(Self { key, kind, source, principal, method, path, fingerprint, retention, is_form })
    }

    /// That of a request without a key, which gets one of its parts.
    async fn made(
        guard: &Guard,
        own_path: &str,
        principal: Principal,
        mut input: FingerprintInput,
    ) -> Result<Self, Problem> {
        if guard.needs_principal() && principal == Principal::None {
            let detail = "The key is made of the principal, and nothing says whose request this is. Nothing was run.";
            return Err(Problem::new(Code::PrincipalRequired, detail));
        }
        let derive = guard.derive();
        let of = derive.map_or(&guard.once_per, |derive| &derive.of);
        let principal = if of.contains(&KeyPart::Principal) { principal } else { Principal::None };
        let has_path = of.contains(&KeyPart::Path) || own_path.is_empty();
        let path = match derive {
            _ if !has_path => own_path.to_owned(),
            Some(_) => input.path.clone(),
            None => path_once(own_path, &input.path),
        };
        let (method, is_form) = (input.method.clone(), input.media_type.is_form());
        if has_path || derive.is_some() {
            input.path.clone_from(&path);
        }
        let (kind, retention) = match derive {
            Some(derive) => {
                input.keep(of);
                (KeyKind::Derived, Duration::from_millis(derive.window_ms))
            }
            None => (KeyKind::OncePer, guard.retention()),
        };
        let fingerprint = input.fingerprint().await;
        let source = <&str>::from(kind);
        let mut hasher = FingerprintHasher::new(source);
        hasher.add(principal.to_string()).add(&method).add(&path);
        if derive.is_some() {
            hasher.add(fingerprint.as_bytes());
        }
        let (key, source) = (hasher.finish().into(), source.to_owned());
        Ok(Self { key, kind, source, principal, method, path, fingerprint, retention, is_form })
    }
}

impl FingerprintInput {
    /// Leaves out what is none of these parts.
    fn keep(&mut self, parts: &[KeyPart]) {
        if !parts.contains(&KeyPart::Query) {
            self.query.clear();
        }
        if !parts.contains(&KeyPart::Body) {
            self.media_type = MediaType::default();
            self.coding.clear();
            self.body.clear();
            self.headers.clear();
        }
    }
}

/// The path below which something is done once, in the one spelling of all that a server may read
/// as the same.
fn path_once(own_path: &str, path: &str) -> String {
    let (own_path, below) = match path.strip_prefix(own_path) {
        Some(below) => (own_path.trim_end_matches('/'), below),
        None => ("", path),
    };
    let reading = PathReading::of(below);
    reading.map_or_else(|| path.to_owned(), |below| own_path.to_owned() + &below.canonical())
}

fn check_issued(
    issued: Option<&IssuedKeys>,
    key: &IdempotencyKey,
    scope: &Scope<'_>,
) -> Result<Duration, Problem> {
    let no_secret = || Problem::new(Code::InvalidKey, "No key is issued here. Nothing was run.");
    issued.ok_or_else(no_secret)?.check(key, scope)
}

fn run_request(
    guard: &Guard,
    parts: &Parts,
    intent: &Intent,
    preferred: Option<Duration>,
) -> RunRequest {
    // A form without JavaScript is sent twice by a double click, and the page that comes of it is
    // that of the second. Nor does a client wait of its own accord that knows of no key.
    let page = intent.is_form && text(&parts.headers, &header::ACCEPT).contains("text/html");
    let waits = page || matches!(intent.kind, KeyKind::Derived | KeyKind::OncePer);
    let max_wait = Duration::from_millis(guard.max_wait_ms);
    let wait = preferred.or(waits.then_some(max_wait));
    let Intent { principal, method, path, source, .. } = intent;
    let scope = Scope { principal, method, path, source };
    let shown = if guard.principal_is_secret { &Principal::None } else { principal };
    RunRequest {
        key: scope.record(&intent.key),
        scope: RecordScope::new(&Scope { principal: shown, ..scope }, &intent.key),
        fingerprint: intent.fingerprint,
        lease: guard.lease(),
        retention: intent.retention,
        on_crash: guard.on_crash,
        panic_releases: guard.on_failure.for_panic() == OnFailure::Release,
        answer_bytes: guard.response_limit_bytes,
        wait: wait.unwrap_or_default().min(max_wait),
        step_limit: None,
    }
}

impl Guard {
    /// The fingerprint of a request with this method, path and query, as the layer makes it.
    pub async fn fingerprint(
        &self,
        target: (&str, &str, &str),
        headers: &HeaderMap,
        body: &Bytes,
    ) -> Fingerprint {
        let content = Content::read(headers, body, self.body_limit_bytes).await;
        let input = fingerprint_input(self, target, headers, MediaType::of(headers), content);
        input.fingerprint().await
    }
}

fn target(parts: &Parts) -> (&str, &str, &str) {
    (parts.method.as_str(), parts.uri.path(), parts.uri.query().unwrap_or_default())
}

fn fingerprint_input(
    guard: &Guard,
    (method, path, query): (&str, &str, &str),
    headers: &HeaderMap,
    media_type: MediaType,
    content: Content,
) -> FingerprintInput {
    FingerprintInput {
        method: method.to_owned(),
        path: normalize_path(path).into_owned(),
        query: query.to_owned(),
        media_type,
        coding: content.coding,
        body: content.bytes,
        fields: guard.counted_fields(),
        headers: counted_headers(headers, &guard.fingerprint_headers),
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

/// Hands the key to the handler, bare and in its header, wherever it comes from.
fn pass_key_on(parts: &mut Parts, key: &IdempotencyKey) {
    // A key is visible ASCII and spaces, which a header always takes.
    if let Ok(value) = HeaderValue::try_from(key.as_str()) {
        parts.headers.insert(IDEMPOTENCY_KEY, value);
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Cow<'a, str> {
    headers.get(name).map_or(Cow::Borrowed(""), |value| String::from_utf8_lossy(value.as_bytes()))
}

/// The `wait` of a `Prefer` header, in seconds (RFC 7240, section 4.3).
pub fn preferred_wait(headers: &HeaderMap) -> Option<Duration> {
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
        let detail =
            format!("The body has more than {} bytes: see `body_limit_bytes`.", limits.bytes);
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
