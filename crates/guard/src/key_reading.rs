//! Reads the key of a request from the sources that its guard lists.
//!
//! What is there and is no key is refused, with the name of its source, and never passed over: the
//! next source would make another intent of it. Tested in `tests/api/key_sources.rs`.

use axum::body::Bytes;
use axum::http::request::Parts;
use percent_encoding::percent_decode_str;

use crate::canonical_json::{Found, find_json};
use crate::fingerprint::form_field;
use crate::key_source::{KeyKind, KeySource};
use crate::media_type::MediaType;
use crate::{Code, Problem};
use keylatch_core::idempotency::{IdempotencyKey, InvalidKey};

impl KeySource {
    /// The key that a request has here.
    async fn read(
        &self,
        parts: &Parts,
        media_type: &MediaType,
        body: &Bytes,
    ) -> Result<Option<IdempotencyKey>, Problem> {
        match self {
            Self::Header(name) => {
                self.only(parts.headers.get_all(name).iter(), IdempotencyKey::from_header)
            }
            Self::Form(name) => {
                let values = form_field(media_type, body, name).await;
                self.only(values.into_iter(), IdempotencyKey::from_header)
            }
            Self::Json(pointer) if media_type.is_json() => match find_json(body, pointer) {
                Some(Found::Nothing) => Ok(None),
                Some(Found::Text(text)) => {
                    IdempotencyKey::parse(&text).map(Some).map_err(|why| self.invalid(why))
                }
                Some(Found::Other) => Err(self.refused("it is neither a text nor a number")),
                None => Err(self.refused("the body is no JSON that all read alike")),
            },
            Self::Json(_) | Self::Issued => Ok(None),
            Self::Query(name) => {
                let pairs = parts.uri.query().unwrap_or_default().split('&');
                let pairs = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
                let named = pairs.filter(|(one, _)| percent_decode_str(one).eq(name.bytes()));
                let values = named.map(|(_, value)| percent_decode_str(value).collect::<Vec<_>>());
                self.only(values, |value| {
                    IdempotencyKey::parse(str::from_utf8(value).map_err(|_| InvalidKey::Character)?)
                })
            }
        }
    }

    /// The key of a part that is there once at most.
    fn only(
        &self,
        mut values: impl Iterator<Item: AsRef<[u8]>>,
        read: impl Fn(&[u8]) -> Result<IdempotencyKey, InvalidKey>,
    ) -> Result<Option<IdempotencyKey>, Problem> {
        let Some(value) = values.next() else { return Ok(None) };
        if values.next().is_some() {
            return Err(self.refused("it is there more than once"));
        }
        read(value.as_ref()).map(Some).map_err(|why| self.invalid(why))
    }

    fn invalid(&self, why: InvalidKey) -> Problem {
        self.refused(&why.to_string())
    }

    fn refused(&self, why: &str) -> Problem {
        let name = self.name();
        let detail = format!("The key in `{name}` is not valid: {why}. Nothing was run.");
        Problem::new(Code::InvalidKey, detail).with_field(name)
    }
}

/// A key, and where it comes from.
#[derive(Debug)]
pub(crate) struct FoundKey {
    pub(crate) key: IdempotencyKey,
    pub(crate) kind: KeyKind,
    /// What tells it from keys of other sources.
    pub(crate) scope: String,
}

/// The key of the first source that the request has.
///
/// # Errors
///
/// A key is not valid, or the header and its form field differ.
pub(crate) async fn find_key(
    sources: &[KeySource],
    parts: &Parts,
    media_type: &MediaType,
    body: &Bytes,
) -> Result<Option<FoundKey>, Problem> {
    let mut found: Option<FoundKey> = None;
    let is_issued = sources == [KeySource::Issued];
    let standard = if is_issued { KeySource::standard() } else { Vec::new() };
    for source in if is_issued { &standard } else { sources } {
        let counts = |found: &FoundKey| found.scope.is_empty() && source.is_standard();
        if !found.as_ref().is_none_or(counts) {
            continue;
        }
        let Some(key) = source.read(parts, media_type, body).await? else { continue };
        match &found {
            Some(found) if found.key != key => {
                return Err(source.refused("the header and the form field differ"));
            }
            Some(_) => {}
            None => found = Some(FoundKey { key, kind: source.kind(), scope: source.scope() }),
        }
    }
    let issued =
        |found| FoundKey { kind: KeyKind::Issued, scope: KeySource::Issued.scope(), ..found };
    Ok(if is_issued { found.map(issued) } else { found })
}
