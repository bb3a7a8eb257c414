//! What handlers take from a request: the name, the token, the body as JSON, the query.
//!
//! Each extractor parses at the edge, so that a handler has valid values, and refuses with a
//! problem that names the part that is wrong. A header or a parameter that comes twice is refused,
//! because two parts of a system could read it in two ways. Tested in `tests/api/invalid_input.rs`
//! and `invalid_bodies.rs`.

use std::borrow::Cow;
use std::convert::Infallible;
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use axum::body::HttpBody as _;
use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use axum::http::HeaderName;
use axum::http::request::Parts;
use keylatch_axum::{BodyLimits, preferred_wait, read_body};
use percent_encoding::{
    AsciiSet, NON_ALPHANUMERIC, PercentEncode, percent_decode_str, utf8_percent_encode,
};
use serde::de::DeserializeOwned;
use serde_json::error::Category;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

use super::api::Api;
use super::problem::{Code, Problem, overloaded};
use crate::serde_words::reworded;
use keylatch_core::lock::{EntryName, InvalidToken, LockName, LockSet, Token};
use keylatch_core::store::{Cursor, ListLocks};

/// The header in which a token travels, named as WebDAV does (RFC 4918, section 10.5).
pub(super) const LOCK_TOKEN: HeaderName = HeaderName::from_static("lock-token");

/// What may stand in a URL as it is.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// A text as one part of a URL's query.
pub(super) fn plain(text: &str) -> PercentEncode<'_> {
    utf8_percent_encode(text, PLAIN)
}

/// A text as one segment of a URL's path.
pub(super) fn segment(text: &str) -> String {
    match text {
        // As they are, a client would take them for steps in the path (RFC 3986, section 5.2.4).
        "." => "%2E".to_owned(),
        ".." => "%2E%2E".to_owned(),
        text => plain(text).to_string(),
    }
}

/// The lock that the path names. A query beside it is refused: a client that writes `?ttl_ms=`
/// believes that it counts.
pub(super) struct Name(pub(super) LockName);

impl<S: Send + Sync> FromRequestParts<S> for Name {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        NoQuery::from_request_parts(parts, state).await?;
        let WatchedName(name) = WatchedName::from_request_parts(parts, state).await?;
        Ok(Self(name))
    }
}

/// The same, where there may be a query.
pub(super) struct WatchedName(pub(super) LockName);

impl<S: Send + Sync> FromRequestParts<S> for WatchedName {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let invalid = |why: &dyn Display| {
            Problem::new(Code::InvalidName, format!("The name is not valid: {why}."))
                .with_field("name")
        };
        if !is_percent_encoded(parts.uri.path()) {
            return Err(invalid(&"a `%` is not followed by two hexadecimal digits"));
        }
        let path = Path::<String>::from_request_parts(parts, state).await;
        let Path(name) = path.map_err(|_| invalid(&"it is not UTF-8"))?;
        Ok(Self(LockName::parse(&name).map_err(|error| invalid(&error))?))
    }
}

/// The entry that the query names, if it names one.
pub(super) struct LeftEntry(pub(super) Option<EntryName>);

impl<S: Send + Sync> FromRequestParts<S> for LeftEntry {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let [entry] = parameters(encoded_query(parts)?, ["entry"])?;
        let entry = entry.map(|name| EntryName::parse(&name)).transpose();
        Ok(Self(entry.map_err(|error| invalid_query("entry", &error.to_string()))?))
    }
}

/// The locks that the query names, one `name` each.
pub(super) struct NamedSet(pub(super) LockSet);

impl<S: Send + Sync> FromRequestParts<S> for NamedSet {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let query = encoded_query(parts)?;
        let mut names = Vec::new();
        for (parameter, name) in pairs(query) {
            if parameter != "name" {
                return Err(invalid_query(&parameter, "is not a parameter"));
            }
            let name = LockName::parse(&name);
            names.push(name.map_err(|error| invalid_name(&error.to_string()))?);
        }
        let set = LockSet::new(names).map_err(|error| invalid_name(&error.to_string()))?;
        Ok(Self(set))
    }
}

/// Refuses a query beside a body: a client that writes `?ttl_ms=` believes that it counts.
pub(super) struct NoQuery;

impl<S: Send + Sync> FromRequestParts<S> for NoQuery {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let Some((parameter, _)) = parts.uri.query().and_then(|query| pairs(query).next()) else {
            return Ok(Self);
        };
        let detail = format!("There is no parameter `{parameter}`; members go in the body.");
        Err(Problem::new(Code::InvalidQuery, detail).with_field(parameter))
    }
}

/// The query, checked to be percent-encoded UTF-8.
fn encoded_query(parts: &Parts) -> Result<&str, Problem> {
    let query = parts.uri.query().unwrap_or_default();
    if is_percent_encoded(query) && percent_decode_str(query).decode_utf8().is_ok() {
        return Ok(query);
    }
    Err(Problem::new(Code::InvalidQuery, "The query is not percent-encoded UTF-8."))
}

/// Whether each `%` begins an escape, so that no two paths are the same name by accident.
fn is_percent_encoded(text: &str) -> bool {
    let mut escapes = text.split('%').skip(1);
    escapes.all(|rest| rest.len() >= 2 && rest.as_bytes()[..2].iter().all(u8::is_ascii_hexdigit))
}

/// The token of the `Lock-Token` header, if there is one.
pub(super) struct OptionalToken(pub(super) Option<Token>);

impl<S: Send + Sync> FromRequestParts<S> for OptionalToken {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let invalid = |why: &dyn Display| {
            Problem::new(Code::InvalidToken, format!("The token is not valid: {why}."))
                .with_field("Lock-Token")
        };
        let mut values = parts.headers.get_all(LOCK_TOKEN).iter();
        let Some(value) = values.next() else { return Ok(Self(None)) };
        if values.next().is_some() {
            return Err(invalid(&"there is more than one Lock-Token header"));
        }
        let text = value.to_str().map_err(|_| InvalidToken::Character);
        let token = text.and_then(Token::parse);
        Ok(Self(Some(token.map_err(|error| invalid(&error))?)))
    }
}

/// The token of the `Lock-Token` header.
pub(super) struct RequiredToken(pub(super) Token);

impl<S: Send + Sync> FromRequestParts<S> for RequiredToken {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let OptionalToken(token) = OptionalToken::from_request_parts(parts, state).await?;
        let missing = || {
            let detail = "The Lock-Token header must carry the token of the lease.";
            Problem::new(Code::TokenRequired, detail).with_field("Lock-Token")
        };
        Ok(Self(token.ok_or_else(missing)?))
    }
}

/// The wait that a `Prefer` header asks for, at most as long as a client may wait.
pub(super) struct PreferredWait(pub(super) Option<Duration>);

impl FromRequestParts<Arc<Api>> for PreferredWait {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Result<Self, Infallible> {
        Ok(Self(preferred_wait(&parts.headers).map(|wait| wait.min(api.max_wait))))
    }
}

/// A JSON object, whatever the Content-Type says; the default where there is no body.
pub(super) struct OptionalJson<T>(pub(super) T);

impl<T: DeserializeOwned + Default> FromRequest<Arc<Api>> for OptionalJson<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, api: &Arc<Api>) -> Result<Self, Problem> {
        read_json(request, api.body_limits).await.map(Self)
    }
}

/// The same of what a run came to, which may be as long as what is kept of it. So few are in memory
/// at once.
pub(super) struct ResultJson<T>(
    pub(super) T,
    #[expect(dead_code, reason = "the handler holds it to its end")] pub(super) Option<LongBody>,
);

type LongBody = SemaphorePermit<'static>;

/// A turn for each body that is longer than others.
static LONG_BODIES: Semaphore = Semaphore::const_new(64);

impl<T: DeserializeOwned + Default> FromRequest<Arc<Api>> for ResultJson<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, api: &Arc<Api>) -> Result<Self, Problem> {
        let usual = api.body_limits.bytes;
        let is_long = request.body().size_hint().upper().is_none_or(|bytes| bytes > usual as u64);
        let turn = if is_long {
            let turn = timeout(api.body_limits.time, LONG_BODIES.acquire()).await;
            // Nobody closes it.
            turn.map_err(|_| overloaded("Too many long results come at once."))?.ok()
        } else {
            None
        };
        // A letter of two bytes may be escaped by six.
        let bytes = api.response_limit_bytes.saturating_mul(3).saturating_add(usual);
        let body = read_json(request, BodyLimits { bytes, ..api.body_limits }).await?;
        Ok(Self(body, turn))
    }
}

async fn read_json<T>(request: Request, limits: BodyLimits) -> Result<T, Problem>
where
    T: DeserializeOwned + Default,
{
    let body = read_body(request.into_body(), limits).await?;
    if body.is_empty() { Ok(T::default()) } else { parse(&body) }
}

pub(super) fn parse<T: DeserializeOwned + Default>(body: &[u8]) -> Result<T, Problem> {
    // serde reads a struct from an array as well; the API does not.
    if body.trim_ascii_start().starts_with(b"[") {
        return Err(Problem::new(Code::InvalidBody, "The body must be a JSON object."));
    }
    if is_form(body) {
        let detail = "The body is a form, and has to be a JSON object, such as `{\"ttl_ms\": 30000}`. With curl: \
                      `-d '{\"ttl_ms\": 30000}'`.";
        return Err(Problem::new(Code::InvalidBody, detail));
    }
    if body.trim_ascii_start().starts_with(b"<") {
        return Err(Problem::new(Code::InvalidBody, "The body is XML; send a JSON object."));
    }
    let mut json = serde_json::Deserializer::from_slice(body);
    let value: Option<T> = serde_path_to_error::deserialize(&mut json)
        .map_err(|error| unreadable(&error.path().to_string(), error.inner()))?;
    json.end().map_err(|error| {
        let at = place(&error);
        let detail = format!("The body is more than one JSON object: the next begins at {at}.");
        Problem::new(Code::InvalidBody, detail)
    })?;
    Ok(value.unwrap_or_default())
}

/// Why a body could not be read, at the member of this path; serde has `.` for the whole, and `?`
/// for what it does not know.
fn unreadable(path: &str, error: &serde_json::Error) -> Problem {
    let member = Some(path).filter(|path| !matches!(*path, "." | "?"));
    let (name, at) = (member.map(|member| format!("`{member}`")), place(error));
    let detail = match (error.classify(), name) {
        (Category::Data, name) => {
            reworded(name.as_deref().unwrap_or("The body"), &error.to_string())
        }
        (Category::Eof, None) => format!("The JSON ends too early, at {at}"),
        (Category::Eof, Some(name)) => format!("The JSON ends too early, after {name}, at {at}"),
        (_, None) => format!("The body is not JSON at {at}"),
        (_, Some(name)) => format!("The value of {name} is not JSON at {at}"),
    };
    let end = if detail.ends_with('?') { "" } else { "." };
    let problem = Problem::new(Code::InvalidBody, detail + end);
    match member {
        Some(member) => problem.with_field(member),
        None => problem,
    }
}

fn place(error: &serde_json::Error) -> String {
    format!("line {}, column {}", error.line(), error.column())
}

/// Whether a body is one that forms send: `name=value`, and nothing that begins as JSON.
fn is_form(body: &[u8]) -> bool {
    let name = body.split(|byte| *byte == b'=').next().unwrap_or_default();
    let is_of_name = |byte: &u8| byte.is_ascii_alphanumeric() || b"_-.%+[]".contains(byte);
    name.len() < body.len() && !name.is_empty() && name.iter().all(is_of_name)
}

/// After how many events a stream is to end.
pub(super) struct WatchLimit(pub(super) usize);

impl<S: Send + Sync> FromRequestParts<S> for WatchLimit {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let query = parts.uri.query().unwrap_or_default();
        let [limit] = parameters(query, ["limit"])?;
        let Some(limit) = limit else { return Ok(Self(usize::MAX)) };
        let limit = limit.parse().ok().filter(|limit| *limit > 0);
        limit.map(Self).ok_or_else(|| invalid_query("limit", "must be 1 or more"))
    }
}

/// The parsed query of a listing.
pub(super) struct ListQuery(pub(super) ListLocks);

impl<S: Send + Sync> FromRequestParts<S> for ListQuery {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let query = encoded_query(parts)?;
        let [prefix, limit, cursor] = parameters(query, ["prefix", "limit", "cursor"])?;
        let prefix = prefix.unwrap_or_default().into_owned();
        let (limit, cursor) = page(limit, cursor)?;
        Ok(Self(ListLocks { prefix, limit, cursor }))
    }
}

/// How many entries a page of a list has, and where it begins.
pub(super) fn page(
    limit: Option<Cow<'_, str>>,
    cursor: Option<Cow<'_, str>>,
) -> Result<(usize, Option<Cursor>), Problem> {
    let limit = limit.map_or(Ok(100), |limit| limit.parse());
    let limit = limit.ok().filter(|limit| (1..=1000).contains(limit));
    let limit = limit.ok_or_else(|| invalid_query("limit", "must be 1 to 1000"))?;
    let cursor = cursor.map(|cursor| Cursor::parse(&cursor)).transpose();
    Ok((limit, cursor.map_err(|_| unknown_cursor())?))
}

/// The cursor is none that this service gave.
pub(super) fn unknown_cursor() -> Problem {
    invalid_query("cursor", "is not one that this service gave")
}

pub(super) fn invalid_query(parameter: &str, what: &str) -> Problem {
    Problem::new(Code::InvalidQuery, format!("`{parameter}` {what}.")).with_field(parameter)
}

fn invalid_name(why: &str) -> Problem {
    Problem::new(Code::InvalidQuery, format!("`name`: {why}.")).with_field("name")
}

/// The values of these parameters. Each is there once at most, and no other is.
pub(super) fn parameters<'a, const N: usize>(
    query: &'a str,
    names: [&str; N],
) -> Result<[Option<Cow<'a, str>>; N], Problem> {
    let mut values = [const { None }; N];
    for (parameter, value) in pairs(query) {
        let Some(place) = names.iter().position(|name| *name == parameter) else {
            return Err(invalid_query(&parameter, "is not a parameter"));
        };
        if values[place].replace(value).is_some() {
            return Err(invalid_query(&parameter, "is there twice"));
        }
    }
    Ok(values)
}

pub(super) fn pairs(query: &str) -> form_urlencoded::Parse<'_> {
    form_urlencoded::parse(query.as_bytes())
}
