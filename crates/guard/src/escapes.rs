//! Percent-escapes in paths, queries and forms (RFC 3986, section 2.1).
//!
//! Two spellings of one path have to be one scope, and two spellings of one form one fingerprint.
//! Only escapes of unreserved characters are decoded, so no escape becomes a delimiter. Tested in
//! `tests/api/idempotency_fingerprint.rs` and `fuzz/targets/fingerprint.rs`.

use std::borrow::Cow;

/// Whether each `%` begins an escape.
pub(crate) fn has_whole_escapes(text: &[u8]) -> bool {
    let mut escapes = text.split(|byte| *byte == b'%').skip(1);
    escapes.all(|rest| rest.len() >= 2 && rest[..2].iter().all(u8::is_ascii_hexdigit))
}

/// The text with the spelling that all its equals have in common (RFC 3986, section 6.2.2): no
/// escape of a letter, a digit or `-._~`, and the others in capitals. An escape of anything else is
/// not the same as what it stands for, and a text with a broken escape is left as it is: `%2` is
/// not `%252`.
pub(crate) fn normalize_escapes(text: &str) -> Cow<'_, str> {
    if !text.contains('%') || !has_whole_escapes(text.as_bytes()) {
        return Cow::Borrowed(text);
    }
    let mut pieces = text.split('%');
    let mut normal = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let (digits, rest) = piece.split_at(2);
        match u8::from_str_radix(digits, 16) {
            Ok(byte) if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) => {
                normal.push(char::from(byte));
            }
            _ => {
                normal.push('%');
                normal.push_str(&digits.to_ascii_uppercase());
            }
        }
        normal.push_str(rest);
    }
    Cow::Owned(normal)
}
