//! What a request says its body is: the `Content-Type`, whose spellings come to one.
//!
//! `charset=utf-8` is what a body has that says nothing, and the boundary of a multipart body is a matter of its
//! transfer. Every other parameter counts, since a reader may read the same bytes as something else for it.

use axum::http::{HeaderMap, HeaderValue, header};

/// The media type of a body.
#[derive(Debug, Clone, Default)]
pub(crate) struct MediaType {
    /// Type and subtype in lower case. Empty where there is none, or more than one header.
    pub(crate) essence: String,
    /// What counts of the header, in one spelling.
    pub(crate) canonical: String,
    /// The header, as it is.
    pub(crate) written: String,
}

impl MediaType {
    /// That of a request with these headers.
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let mut lines = headers.get_all(header::CONTENT_TYPE).iter().map(text_of);
        match (lines.next(), lines.next()) {
            (None, _) => Self::default(),
            (Some(line), None) => Self::parse(line),
            // Readers differ in which of them counts.
            (Some(first), Some(second)) => {
                let all: Vec<_> = [first, second].into_iter().chain(lines).collect();
                Self { canonical: all.join("\n"), ..Self::default() }
            }
        }
    }

    fn parse(written: String) -> Self {
        // Most have no parameter.
        if !written.contains(';') {
            let essence = written.trim().to_ascii_lowercase();
            return Self { canonical: essence.clone(), essence, written };
        }
        let mut pieces = pieces(&written).into_iter();
        let essence = pieces.next().unwrap_or_default().trim().to_ascii_lowercase();
        let named = pieces.map(|piece| {
            let (name, value) = piece.split_once('=').unwrap_or((piece, ""));
            let name = name.trim().to_ascii_lowercase();
            let value = value.trim();
            let bare = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
            let value = bare.filter(|bare| !bare.contains(['\\', '"'])).unwrap_or(value);
            let is_charset = name == "charset";
            (name, if is_charset { value.to_ascii_lowercase() } else { value.to_owned() })
        });
        let mut parameters: Vec<_> =
            named.filter(|(name, value)| !name.is_empty() || !value.is_empty()).collect();
        let is_boundary = |name: &str| name == "boundary" && essence.starts_with("multipart/");
        let has_one = parameters.iter().filter(|(name, _)| is_boundary(name)).count() == 1;
        parameters.retain(|(name, value)| {
            let is_default = name == "charset" && value == "utf-8";
            !is_default && (!is_boundary(name) || !has_one)
        });
        parameters.sort();
        let parameters: String =
            parameters.iter().map(|(name, value)| format!(";{name}={value}")).collect();
        Self { canonical: format!("{essence}{parameters}"), essence, written }
    }

    pub(crate) fn is_form(&self) -> bool {
        matches!(&*self.essence, "application/x-www-form-urlencoded" | "multipart/form-data")
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

/// What stands between the semicolons that are in no quotes.
fn pieces(text: &str) -> Vec<&str> {
    let (mut pieces, mut from, mut is_quoted, mut is_escaped) = (Vec::new(), 0, false, false);
    for (place, byte) in text.bytes().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_quoted => is_escaped = true,
            b'"' => is_quoted = !is_quoted,
            b';' if !is_quoted => {
                pieces.push(&text[from..place]);
                from = place + 1;
            }
            _ => {}
        }
    }
    pieces.push(&text[from..]);
    pieces
}
