//! What a request says its body is: the `Content-Type`, whose spellings come to one.
//!
//! `charset=utf-8` is what a body has that says nothing, and the boundary of a multipart body is a
//! matter of its transfer. Every other parameter counts, since a reader may read the same bytes as
//! something else for it. Readers differ in what they make of quotes, commas and a name that is
//! there twice. A header with one of these counts as it is written, and so does the body under it.
//! Tested in `tests/api/lenient_readers.rs` and `idempotency_fingerprint.rs`.

use std::collections::BTreeMap;

use axum::http::{HeaderMap, HeaderValue, header};

const FORM_IN_PARTS: &str = "multipart/form-data";

#[derive(Debug, Clone, Default)]
pub(crate) struct MediaType {
    /// Type and subtype in lower case. Empty where there is none, and where readers may read the
    /// body as another.
    pub(crate) essence: String,
    /// What counts of the header, in one spelling.
    pub(crate) canonical: String,
    /// What stands between the parts of a form, where every reader finds the same.
    pub(crate) boundary: Option<String>,
}

impl MediaType {
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let lines: Vec<_> = headers.get_all(header::CONTENT_TYPE).iter().map(text_of).collect();
        let read = match &*lines {
            [] => Some(Self::default()),
            [line] => Self::read(line),
            // Readers differ in which of them counts.
            _ => None,
        };
        read.unwrap_or_else(|| {
            // No plain header, and no line, has a line feed.
            let canonical = lines.iter().flat_map(|line| ["\n", line]).collect();
            Self { canonical, ..Self::default() }
        })
    }

    /// The media type of a header that all readers read alike.
    fn read(line: &str) -> Option<Self> {
        let mut pieces = line.split(';').map(|piece| piece.trim_matches([' ', '\t']));
        let essence = pieces.next()?.to_ascii_lowercase();
        let is_type =
            essence.split_once('/').is_some_and(|(one, two)| is_token(one) && is_token(two));
        let mut parameters = BTreeMap::new();
        for piece in pieces {
            let (name, value) = parameter(piece)?;
            if parameters.insert(name, value).is_some() {
                return None;
            }
        }
        if !is_type {
            return None;
        }
        if let Some(charset) = parameters.get_mut("charset") {
            charset.make_ascii_lowercase();
        }
        parameters.retain(|name, value| name != "charset" || value != "utf-8");
        let mut boundary = parameters.get("boundary").filter(|one| is_boundary(one)).cloned();
        match parameters.len() {
            1 if essence == FORM_IN_PARTS && boundary.is_some() => parameters.clear(),
            _ => boundary = None,
        }
        let counted: String =
            parameters.iter().map(|(name, value)| format!(";{name}={value}")).collect();
        let canonical = essence.clone() + &counted;
        let essence = if parameters.contains_key("charset") { String::new() } else { essence };
        Some(Self { essence, canonical, boundary })
    }

    pub(crate) fn is_json(&self) -> bool {
        self.essence == "application/json" || self.essence.ends_with("+json")
    }

    pub(crate) fn is_form(&self) -> bool {
        self.essence == "application/x-www-form-urlencoded" || self.boundary.is_some()
    }
}

/// The codings of a body, but for `identity`, which is none.
pub(crate) fn content_coding(headers: &HeaderMap) -> String {
    let lines = headers.get_all(header::CONTENT_ENCODING).iter().map(text_of);
    let codings = lines.flat_map(|line| {
        let codings = line.split(',').map(|coding| coding.trim().to_ascii_lowercase());
        codings.collect::<Vec<_>>()
    });
    let codings: Vec<_> =
        codings.filter(|coding| !coding.is_empty() && coding != "identity").collect();
    codings.join(",")
}

/// A value as text, no two of them as the same: each byte is a character.
pub(crate) fn text_of(value: &HeaderValue) -> String {
    match value.to_str() {
        Ok(text) => text.to_owned(),
        Err(_) => value.as_bytes().iter().map(|byte| char::from(*byte)).collect(),
    }
}

/// The name in lower case and the value of a parameter that no reader reads in another way.
fn parameter(piece: &str) -> Option<(String, String)> {
    let (name, value) = piece.split_once('=')?;
    let quoted = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
    let is_plain = |byte: u8| byte.is_ascii_graphic() && !b"\"\\,".contains(&byte);
    let is_value = match quoted {
        Some(inner) => !inner.is_empty() && inner.bytes().all(is_plain),
        None => is_token(value),
    };
    let parameter = (name.to_ascii_lowercase(), quoted.unwrap_or(value).to_owned());
    (is_token(name) && is_value).then_some(parameter)
}

/// Whether a text is a token (RFC 9110, section 5.6.2).
fn is_token(text: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty() && text.bytes().all(is_part)
}

/// Whether a boundary is one to every reader. Rack looks for the last `boundary=` in the header.
fn is_boundary(text: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"'+-._=".contains(&byte);
    text.bytes().all(is_part) && !text.to_ascii_lowercase().contains("boundary=")
}
