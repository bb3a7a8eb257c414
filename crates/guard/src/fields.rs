//! Which fields of a body count for whether two requests are the same.
//!
//! A guard names those that do not, or those that alone do. A name is a member of the top object of
//! JSON, or a field of a form; one that begins with `/` is a JSON pointer into any depth.
//! Invariant: a body that has none of the fields that alone count is compared whole, so that it is
//! not the same as every other. Tested in `tests/api/idempotency_fingerprint.rs` and
//! `tests/cli/config/lists.rs`.

use std::fmt;

use serde::Deserialize;

/// The name of a field in a setting.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum FieldName {
    /// A member of the top object of JSON, or a field of a form.
    Name(String),
    /// A place in JSON, such as `/order/sent_at` (RFC 6901).
    Pointer(JsonPointer),
}

impl TryFrom<String> for FieldName {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, &'static str> {
        const RULE: &str = "matches nothing: write the name of a field, or a JSON pointer like `/order/sent_at`, where \
                            `~1` is a `/` in a name and `~0` a `~`";
        match text.as_str() {
            "" => Err(RULE),
            pointer if pointer.starts_with('/') => {
                JsonPointer::parse(pointer).map(Self::Pointer).ok_or(RULE)
            }
            _ => Ok(Self::Name(text)),
        }
    }
}

impl fmt::Display for FieldName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Pointer(pointer) => pointer.fmt(f),
        }
    }
}

impl FieldName {
    /// The way to it from the top of JSON.
    fn steps(&self) -> &[String] {
        match self {
            Self::Name(name) => std::slice::from_ref(name),
            Self::Pointer(pointer) => pointer.steps(),
        }
    }
}

/// A place in a JSON text (RFC 6901), such as `/order/no`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JsonPointer(Vec<String>);

impl JsonPointer {
    /// Reads a pointer to something within the text; `None` where it is none.
    pub fn parse(text: &str) -> Option<Self> {
        let steps = text.strip_prefix('/')?.split('/').map(|step| {
            let mut escapes = step.split('~').skip(1);
            let is_whole = escapes.all(|rest| rest.starts_with(['0', '1']));
            is_whole.then(|| step.replace("~1", "/").replace("~0", "~"))
        });
        steps.collect::<Option<_>>().map(Self)
    }

    /// The members and places in arrays that lead to it.
    pub(crate) fn steps(&self) -> &[String] {
        &self.0
    }
}

impl fmt::Display for JsonPointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0
            .iter()
            .try_for_each(|step| write!(f, "/{}", step.replace('~', "~0").replace('/', "~1")))
    }
}

#[derive(Debug, Clone)]
pub(crate) enum CountedFields {
    AllBut(Vec<FieldName>),
    Only(Vec<FieldName>),
}

impl CountedFields {
    /// The ways to what is named, in an order that is the same for every order of the names.
    pub(crate) fn ways(&self) -> Vec<&[String]> {
        let (Self::AllBut(fields) | Self::Only(fields)) = self;
        let mut ways: Vec<_> = fields.iter().map(FieldName::steps).collect();
        ways.sort_unstable();
        ways.dedup();
        ways
    }

    /// Whether a field of a form counts.
    pub(crate) fn count(&self, field: &str) -> bool {
        let (Self::AllBut(fields) | Self::Only(fields)) = self;
        let is_named = |one: &FieldName| matches!(one, FieldName::Name(name) if name == field);
        fields.iter().any(is_named) == matches!(self, Self::Only(_))
    }

    /// Whether a body that has none of what counts is compared whole.
    pub(crate) fn need_one(&self) -> bool {
        matches!(self, Self::Only(_))
    }
}
