//! The settings that say where the key of a guarded request comes from, when its client sends none
//! or calls it otherwise.
//!
//! A guard lists its sources, and the first that a request has counts. A key that no source has is
//! derived from the request, or from its principal and path alone where a thing is done once for
//! each. Derived keys have no secret, so every instance makes the same one. Keys of two sources
//! never meet, but for the `Idempotency-Key` header and its form field, which are one. Tested in
//! `tests/api/key_sources.rs` and `derived_keys.rs`.

use std::fmt;

use axum::http::HeaderName;
use serde::Deserialize;

use crate::fields::JsonPointer;
use crate::issued_key;
use crate::media_type::MediaType;

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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

impl KeyKind {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Header => "header",
            Self::Json => "json",
            Self::Form => "form",
            Self::Query => "query",
            Self::Issued => issued_key::SOURCE,
            Self::Derived => "derived",
            Self::OncePer => "once-per",
            Self::None => "none",
        }
    }
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
