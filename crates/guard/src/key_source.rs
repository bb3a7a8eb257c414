//! Where the key of a guarded request comes from, when its client sends none or calls it otherwise:
//! the settings, and how a key is read by them.
//!
//! A guard lists its sources, and the first that a request has counts. A key that no source has is
//! derived from the request, or from its principal and path alone where a thing is done once for
//! each. Derived keys have no secret, so every instance makes the same one. Keys of two sources
//! never meet, but for the `Idempotency-Key` header and its form field, which are one. What is
//! there and is no key is refused, with the name of its source, and never passed over: the next
//! source would make another intent of it. Tested in `tests/api/key_sources.rs` and
//! `derived_keys.rs`.

use std::fmt;

use axum::body::Bytes;
use axum::http::HeaderName;
use axum::http::request::Parts;
use percent_encoding::percent_decode_str;
use serde::Deserialize;
use strum::IntoStaticStr;

use crate::canonical_json::{Found, find_json};
use crate::fields::JsonPointer;
use crate::fingerprint::form_field;
use crate::issued_key;
use crate::media_type::MediaType;
use crate::{Code, Problem};
use keylatch_core::idempotency::{IdempotencyKey, InvalidKey};

/// The client's name for its intent (draft-ietf-httpapi-idempotency-key-header-07).
pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// The form field that stands in for the `Idempotency-Key` header.
const FIELD: &str = "idempotency_key";
/// The longest name of a source, in bytes: it is kept with each record.
const MAX_BYTES: usize = 128;

/// A part of a request that has its key.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum KeySource {
    /// A header, as `header:Webhook-Id`.
    Header(HeaderName),
    /// A text or a number in a JSON body, as `json:/order_no` (RFC 6901).
    Json(JsonPointer),
    /// A field of a form, as `form:order_no`.
    Form(String),
    /// A parameter of the query, as `query:id`.
    Query(String),
    /// The `Idempotency-Key` header or its form field, with a key that the service issued; it
    /// stands alone.
    Issued,
}

impl TryFrom<String> for KeySource {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, &'static str> {
        const RULE: &str = "a source of keys is `header:NAME`, `json:/POINTER`, `form:FIELD`, \
                            `query:PARAMETER` or `issued`, of at most 128 bytes";
        if text == issued_key::SOURCE {
            return Ok(Self::Issued);
        }
        let (kind, name) = text.split_once(':').ok_or(RULE)?;
        if name.is_empty() || text.len() > MAX_BYTES {
            return Err(RULE);
        }
        match kind {
            "header" => HeaderName::try_from(name).map(Self::Header).map_err(|_| RULE),
            "json" => JsonPointer::parse(name).map(Self::Json).ok_or(RULE),
            "form" => Ok(Self::Form(name.to_owned())),
            "query" => Ok(Self::Query(name.to_owned())),
            _ => Err(RULE),
        }
    }
}

impl fmt::Display for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(name) => write!(f, "header:{name}"),
            Self::Json(pointer) => write!(f, "json:{pointer}"),
            Self::Form(name) => write!(f, "form:{name}"),
            Self::Query(name) => write!(f, "query:{name}"),
            Self::Issued => f.write_str(issued_key::SOURCE),
        }
    }
}

impl KeySource {
    /// What a guard without other sources has: the header, then its form field.
    pub fn standard() -> Vec<Self> {
        vec![Self::Header(IDEMPOTENCY_KEY), Self::Form(FIELD.to_owned())]
    }

    /// Whether it is the `Idempotency-Key` header, or the form field that stands in for it.
    pub(crate) fn is_standard(&self) -> bool {
        match self {
            Self::Header(name) => *name == IDEMPOTENCY_KEY,
            Self::Form(name) => name == FIELD,
            Self::Json(_) | Self::Query(_) | Self::Issued => false,
        }
    }

    /// What a problem calls it.
    pub(crate) fn name(&self) -> String {
        if self.is_standard() || *self == Self::Issued {
            "Idempotency-Key".to_owned()
        } else {
            self.to_string()
        }
    }

    /// What tells its keys from those of other sources, in the scope of a record.
    pub(crate) fn scope(&self) -> String {
        if self.is_standard() { String::new() } else { self.to_string() }
    }

    /// Whether it looks into a body of this type.
    pub(crate) fn reads_body(&self, media_type: &MediaType) -> bool {
        match self {
            Self::Json(_) => media_type.is_json(),
            Self::Form(_) | Self::Issued => media_type.is_form(),
            Self::Header(_) | Self::Query(_) => false,
        }
    }

    pub(crate) fn kind(&self) -> KeyKind {
        match self {
            Self::Header(_) => KeyKind::Header,
            Self::Json(_) => KeyKind::Json,
            Self::Form(_) => KeyKind::Form,
            Self::Query(_) => KeyKind::Query,
            Self::Issued => KeyKind::Issued,
        }
    }
}

/// From what kind of source a key comes, as `Idempotency-Key-Source` says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub(crate) enum KeyKind {
    Header,
    Json,
    Form,
    Query,
    Issued,
    Derived,
    OncePer,
    None,
}

/// What becomes of a request that has no key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MissingKey {
    /// It is refused.
    Refuse,
    /// It gets one that is derived from it: the same request again, soon, is the same intent.
    Derive,
    /// It runs unguarded.
    Pass,
}

/// How a key is derived from a request.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DeriveKey {
    /// The parts that make it, beside the method.
    pub of: Vec<KeyPart>,
    /// How long the same request is a repeat, from the end of its run on.
    pub window_ms: u64,
    /// Whether requests of nobody get one, or of everybody the same.
    pub anonymous: bool,
}

impl Default for DeriveKey {
    fn default() -> Self {
        let of = vec![KeyPart::Principal, KeyPart::Path, KeyPart::Query, KeyPart::Body];
        Self { of, window_ms: 10_000, anonymous: false }
    }
}

/// A part of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KeyPart {
    /// Whose request it is.
    Principal,
    /// Its path; without it, that of the guard.
    Path,
    /// Its query.
    Query,
    /// Its body, media type and the headers that count, without what is ignored.
    Body,
}

impl KeySource {
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
