use std::fmt::Display;

use axum::RequestExt as _;
use axum::body::Bytes;
use axum::extract::{FromRef, FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use axum::http::{HeaderName, StatusCode};
use http_body_util::{BodyExt, LengthLimitError};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use utoipa::IntoParams;

use super::BodyTimeout;
use super::problem::{Code, Problem};
use crate::lock::{Cursor, ListLocks, LockName, Token};

/// The header in which a token travels, named as WebDAV does (RFC 4918, section 10.5).
pub(super) const LOCK_TOKEN: HeaderName = HeaderName::from_static("lock-token");

/// The lock that the path names.
pub(super) struct Name(pub(super) LockName);

impl<S: Send + Sync> FromRequestParts<S> for Name {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let invalid = |why: &dyn Display| {
            Problem::new(Code::InvalidName, format!("{why}.")).with_field("name")
        };
        let path = Path::<String>::from_request_parts(parts, state).await;
        let Path(name) = path.map_err(|_| invalid(&"a lock name must be UTF-8"))?;
        Ok(Self(LockName::parse(&name).map_err(|error| invalid(&error))?))
    }
}

/// The token of the `Lock-Token` header, if there is one.
pub(super) struct OptionalToken(pub(super) Option<Token>);

impl<S: Send + Sync> FromRequestParts<S> for OptionalToken {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let invalid = |why: &dyn Display| {
            Problem::new(Code::InvalidToken, format!("{why}.")).with_field("Lock-Token")
        };
        let mut values = parts.headers.get_all(LOCK_TOKEN).iter();
        let Some(value) = values.next() else { return Ok(Self(None)) };
        if values.next().is_some() {
            return Err(invalid(&"there must be one Lock-Token header"));
        }
        // What is not visible ASCII is no token either, and parsing the empty text says so.
        let token = Token::parse(value.to_str().unwrap_or_default());
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

/// A JSON object, whatever the Content-Type says; the default where there is no body.
pub(super) struct OptionalJson<T>(pub(super) T);

impl<S, T> FromRequest<S> for OptionalJson<T>
where
    T: DeserializeOwned + Default,
    S: Send + Sync,
    BodyTimeout: FromRef<S>,
{
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let body = read(request, BodyTimeout::from_ref(state)).await?;
        if body.is_empty() { Ok(Self(T::default())) } else { parse(&body).map(Self) }
    }
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    // serde reads a struct from an array as well; the API does not.
    if body.trim_ascii_start().starts_with(b"[") {
        return Err(Problem::new(Code::InvalidBody, "The body must be a JSON object."));
    }
    let mut json = serde_json::Deserializer::from_slice(body);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let (path, error) = (error.path().to_string(), error.into_inner());
        if error.is_data() && path != "." {
            Problem::new(Code::InvalidBody, format!("`{path}`: {error}.")).with_field(path)
        } else {
            Problem::new(Code::InvalidBody, format!("The body is not valid: {error}."))
        }
    })?;
    json.end().map_err(|error| {
        Problem::new(Code::InvalidBody, format!("The body is more than one JSON object: {error}."))
    })?;
    Ok(value)
}

/// The whole body, within the limits of size and time.
async fn read(request: Request, BodyTimeout(limit): BodyTimeout) -> Result<Bytes, Problem> {
    let body = request.with_limited_body().into_body();
    match tokio::time::timeout(limit, body.collect()).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if is_too_large(&error) => {
            Err(Problem::new(Code::PayloadTooLarge, "The body is larger than this service takes."))
        }
        Ok(Err(_)) => Err(Problem::new(Code::InvalidBody, "The body ended before its end.")),
        Err(_) => Err(Problem::new(Code::RequestTimeout, "The body did not arrive in time.")),
    }
}

fn is_too_large(error: &(dyn std::error::Error + 'static)) -> bool {
    error.is::<LengthLimitError>() || error.source().is_some_and(is_too_large)
}

/// What to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ListParams {
    /// Only locks whose names begin so.
    #[serde(default)]
    #[param(example = "deploy")]
    prefix: String,
    /// At most this many.
    #[serde(default = "ListParams::default_limit")]
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: usize,
    /// The `next_cursor` of the page before.
    cursor: Option<String>,
}

impl ListParams {
    fn default_limit() -> usize {
        100
    }
}

/// The parsed query of a listing.
pub(super) struct ListQuery(pub(super) ListLocks);

impl<S: Send + Sync> FromRequestParts<S> for ListQuery {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let query = Query::<ListParams>::from_request_parts(parts, state).await;
        let Query(params) = query.map_err(|rejection| {
            debug_assert_eq!(rejection.status(), StatusCode::BAD_REQUEST, "a query is in the URL");
            Problem::new(Code::InvalidQuery, format!("{}.", rejection.body_text()))
        })?;
        if !(1..=1000).contains(&params.limit) {
            let detail = format!("`limit` must be 1 to 1000, not {}.", params.limit);
            return Err(Problem::new(Code::InvalidQuery, detail).with_field("limit"));
        }
        let cursor = params.cursor.as_deref().map(Cursor::parse).transpose();
        let cursor = cursor.map_err(|_| unknown_cursor())?;
        Ok(Self(ListLocks { prefix: params.prefix, limit: params.limit, cursor }))
    }
}

/// The cursor is none that this service gave.
pub(super) fn unknown_cursor() -> Problem {
    let detail = "`cursor` is not one that this service gave.";
    Problem::new(Code::InvalidQuery, detail).with_field("cursor")
}
