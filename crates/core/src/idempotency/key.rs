//! The client's name for one intent, and what that name is unique within.
//!
//! A key is checked where it is made. A store finds a record by the SHA-256 of key and scope alone;
//! what a person recognises it by is kept beside it, as a [`RecordScope`](super::RecordScope). No
//! log shows either.

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::Fingerprint;
use crate::digest::digest;
use crate::snapshot::text_in_snapshots;

/// A client's name for one intent: 1 to 255 visible ASCII characters or spaces. Case counts.
#[derive(Clone, PartialEq, Eq)]
pub struct IdempotencyKey(Box<str>);

impl IdempotencyKey {
    /// The most characters a key has.
    pub const MAX_CHARS: usize = 255;

    /// Reads the value of an `Idempotency-Key` header.
    ///
    /// That is a structured-field string with parameters, which are ignored
    /// (draft-ietf-httpapi-idempotency-key-header-07 and RFC 9651, section 3.3.3), or the key bare,
    /// as most clients send it: `"k-1"` and `k-1` are one key. A bare key has no parameters, and a
    /// `;` or a space in it is refused: clients mean it as a part of the key, and others end there.
    ///
    /// # Errors
    ///
    /// Says which rule the value breaks.
    pub fn from_header(value: &[u8]) -> Result<Self, InvalidKey> {
        let value = value.trim_ascii();
        let (key, rest) = match value.strip_prefix(b"\"") {
            Some(quoted) => unquote(quoted)?,
            None => match value.iter().find(|byte| b"\" ;,".contains(byte)) {
                Some(b'"') => return Err(InvalidKey::Quote),
                Some(b',') => return Err(InvalidKey::List),
                Some(b' ') => return Err(InvalidKey::Character),
                Some(_) => return Err(InvalidKey::Parameter),
                None => (value.to_vec(), &[][..]),
            },
        };
        check_parameters(rest)?;
        Self::from_bytes(&key)
    }

    /// A key as it stands, without quotes or parameters.
    ///
    /// # Errors
    ///
    /// Says which rule it breaks.
    pub fn parse(key: &str) -> Result<Self, InvalidKey> {
        Self::from_bytes(key.as_bytes())
    }

    /// The key as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn from_bytes(key: &[u8]) -> Result<Self, InvalidKey> {
        match std::str::from_utf8(key) {
            Ok(text) if text.bytes().all(|byte| byte == b' ') => Err(InvalidKey::Empty),
            Ok(text) if text.starts_with(' ') || text.ends_with(' ') => Err(InvalidKey::Blank),
            Ok(text) if text.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ') => {
                if text.len() > Self::MAX_CHARS {
                    return Err(InvalidKey::TooLong(text.len()));
                }
                Ok(Self(text.into()))
            }
            _ => Err(InvalidKey::Character),
        }
    }
}

impl From<u32> for IdempotencyKey {
    /// A number in decimal digits, which are visible ASCII.
    fn from(number: u32) -> Self {
        Self(number.to_string().into())
    }
}

impl From<Fingerprint> for IdempotencyKey {
    /// A digest in hexadecimal digits, which are visible ASCII.
    fn from(digest: Fingerprint) -> Self {
        // Without formatting, which would be a twentieth of a replay.
        let nibbles = digest.as_bytes().iter().flat_map(|byte| [byte >> 4, byte & 15]);
        let digits = nibbles.filter_map(|nibble| char::from_digit(u32::from(nibble), 16));
        Self(digits.collect::<String>().into())
    }
}

text_in_snapshots!(IdempotencyKey, IdempotencyKey::parse);

impl fmt::Debug for IdempotencyKey {
    /// A key is a client's own, and no log needs it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("IdempotencyKey(..)")
    }
}

/// The text of a structured-field string after its opening quote, and what follows it.
fn unquote(quoted: &[u8]) -> Result<(Vec<u8>, &[u8]), InvalidKey> {
    let mut text = Vec::with_capacity(quoted.len());
    let mut bytes = quoted.iter().enumerate();
    while let Some((place, &byte)) = bytes.next() {
        match byte {
            b'"' => return Ok((text, &quoted[place + 1..])),
            b'\\' => match bytes.next() {
                Some((_, &escaped @ (b'"' | b'\\'))) => text.push(escaped),
                _ => return Err(InvalidKey::Quote),
            },
            byte => text.push(byte),
        }
    }
    Err(InvalidKey::Quote)
}

/// Parameters are ignored; what is none makes the value a list or nonsense.
fn check_parameters(rest: &[u8]) -> Result<(), InvalidKey> {
    let rest = rest.trim_ascii_start();
    if rest.is_empty() {
        return Ok(());
    }
    if rest[0] == b',' {
        return Err(InvalidKey::List);
    }
    if rest[0] != b';' {
        return Err(InvalidKey::Quote);
    }
    // The byte before the open quote: a display string, `%"…"`, has no backslash escapes.
    let mut opened = None;
    let mut last = b';';
    let mut bytes = rest.iter();
    while let Some(&byte) = bytes.next() {
        match (byte, opened) {
            (b'"', None) => opened = Some(last),
            (b'"', Some(_)) => opened = None,
            (b'\\', Some(before)) if before != b'%' => drop(bytes.next()),
            (b',', None) => return Err(InvalidKey::List),
            _ => {}
        }
        last = byte;
    }
    if opened.is_some() { Err(InvalidKey::Quote) } else { Ok(()) }
}

/// Why a value is not an [`IdempotencyKey`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidKey {
    /// It has no characters, or spaces alone.
    #[error("it is empty")]
    Empty,
    /// It has this many characters, more than [`IdempotencyKey::MAX_CHARS`].
    #[error("it has {0} characters, and 255 is the most")]
    TooLong(usize),
    /// It has a character that is not visible ASCII, or a space outside of quotes.
    #[error(
        "it has a character that is not visible ASCII, or a space without double quotes around the key"
    )]
    Character,
    /// It begins or ends with a space, which no upstream sees: around the value of a header spaces
    /// mean nothing.
    #[error("it begins or ends with a space")]
    Blank,
    /// Its quotes are not balanced.
    #[error("its quotes are not balanced")]
    Quote,
    /// It is bare and has a `;`.
    #[error("it has a `;`, which a key in double quotes may have")]
    Parameter,
    /// It is more than one key.
    #[error("it is a list, and one key is wanted")]
    List,
}

/// Whose key it is. An identity and a user of the same name are two principals, whose texts differ
/// too: no name of an identity has a colon.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Principal {
    /// Everyone's whom nothing tells apart; an empty text.
    #[default]
    None,
    /// An identity's; as text its name.
    Identity(String),
    /// A user's of a guarded route; as text the name with `user:` before it.
    User(String),
}

impl Principal {
    /// Reads what `Display` writes.
    pub fn parse(text: &str) -> Self {
        match text.strip_prefix("user:") {
            Some(name) => Self::User(name.to_owned()),
            None if text.is_empty() => Self::None,
            None => Self::Identity(text.to_owned()),
        }
    }
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => Ok(()),
            Self::Identity(name) => f.write_str(name),
            Self::User(name) => write!(f, "user:{name}"),
        }
    }
}

/// What a key is unique within: the same key of another principal, for another method or on another
/// path is another key.
#[derive(Debug, Clone, Copy)]
pub struct Scope<'a> {
    /// Whose key it is.
    pub principal: &'a Principal,
    /// The method of the request, such as `POST`.
    pub method: &'a str,
    /// The normalised path.
    pub path: &'a str,
    /// Where the key comes from, as a guard names it: keys of two sources are two keys. Empty for
    /// one that the client sends as its `Idempotency-Key`.
    pub source: &'a str,
}

impl Scope<'_> {
    /// The name under which stores keep the record of `key`.
    pub fn record(&self, key: &IdempotencyKey) -> RecordKey {
        let mut hash = Sha256::new();
        let source = (!self.source.is_empty()).then_some(self.source);
        let parts = [&self.principal.to_string(), self.method, self.path, key.as_str()];
        for part in parts.into_iter().chain(source) {
            // With its length, or parts could flow into one another.
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        RecordKey(hash.finalize().into())
    }
}

digest! {
    /// The SHA-256 of a key and its scope: the name of a record.
    RecordKey
}

impl RecordKey {
    /// The bucket whose counter gives this record its fencing tokens.
    pub fn bucket(&self) -> u8 {
        self.0[0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_scopes_share_a_record() {
        let of_source = |source, principal: &str, method, path, key| {
            let scope = Scope { principal: &Principal::parse(principal), method, path, source };
            scope.record(&IdempotencyKey::parse(key).unwrap())
        };
        let record = |principal, method, path, key| of_source("", principal, method, path, key);
        let records = [
            record("a", "POST", "/x", "k"),
            record("user:a", "POST", "/x", "k"),
            record("", "POST", "/x", "k"),
            record("a", "PATCH", "/x", "k"),
            record("a", "POST", "/y", "k"),
            record("a", "POST", "/x", "K"),
            record("aP", "OST", "/x", "k"),
            record("a", "POST/", "x", "k"),
            record("a", "POST", "/", "xk"),
            of_source("derived", "a", "POST", "/x", "k"),
            of_source("json:/k", "a", "POST", "/x", "k"),
        ];
        let different: std::collections::BTreeSet<_> = records.iter().collect();
        assert_eq!(different.len(), records.len());
    }
}
