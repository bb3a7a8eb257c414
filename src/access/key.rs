//! API keys, and the hash by which the service knows one.
//!
//! A key is `kl_` and 48 characters of base64url: 32 random bytes and their CRC-32. By the prefix
//! and the checksum a scanner of source code finds a key that leaked, and tells it from other text;
//! a typing error is found without a lookup. The service keeps the SHA-256 of the key's text. A
//! plain hash is enough, since nothing shortens the search for 256 random bits as it does for a
//! password.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

const PREFIX: &str = "kl_";
/// The random bytes of a key.
const SECRET: usize = 32;
/// The bytes of the checksum behind them.
const CHECKSUM: usize = 4;
const LENGTH: usize = 51;

/// A key with which a client says who it is. It prints without its secret.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey(String);

/// Why a text is no [`ApiKey`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("is not a key of keylatch: `kl_` and 48 characters, the last of which are a checksum")]
pub struct InvalidApiKey;

impl ApiKey {
    /// A new key.
    pub fn generate() -> Result<Self, getrandom::Error> {
        let mut bytes = [0; SECRET + CHECKSUM];
        getrandom::fill(&mut bytes[..SECRET])?;
        let checksum = crc32fast::hash(&bytes[..SECRET]).to_be_bytes();
        bytes[SECRET..].copy_from_slice(&checksum);
        Ok(Self(format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes))))
    }

    /// Reads a key.
    pub fn parse(text: &str) -> Result<Self, InvalidApiKey> {
        let rest = text.strip_prefix(PREFIX).ok_or(InvalidApiKey)?;
        let mut bytes = [0; SECRET + CHECKSUM];
        let decoded = URL_SAFE_NO_PAD.decode_slice(rest, &mut bytes);
        let is_whole = decoded.is_ok_and(|length| length == bytes.len());
        let (secret, checksum) = bytes.split_at(SECRET);
        if is_whole && crc32fast::hash(secret).to_be_bytes() == checksum {
            return Ok(Self(text.to_owned()));
        }
        Err(InvalidApiKey)
    }

    /// Whether a text has the length and the prefix of a key. Its checksum may be wrong.
    pub(super) fn has_form(text: &[u8]) -> bool {
        text.len() == LENGTH && text.starts_with(PREFIX.as_bytes())
    }

    /// The key as the client sends it.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// What the service keeps of it: the SHA-256 of its text.
    pub fn hash(&self) -> KeyHash {
        KeyHash::of(self.0.as_bytes())
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiKey(..)")
    }
}

/// The SHA-256 of a key, 64 hexadecimal digits as text.
///
/// A lookup in a map takes a time that depends on the hash, which tells nothing of the key: who
/// sends keys cannot choose their hashes, and a key cannot be computed from one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(try_from = "String")]
pub struct KeyHash([u8; 32]);

impl KeyHash {
    pub(super) fn of(text: &[u8]) -> Self {
        Self(Sha256::digest(text).into())
    }
}

impl TryFrom<String> for KeyHash {
    type Error = &'static str;

    /// The error does not repeat the text, which may be a key that somebody took for its hash.
    fn try_from(text: String) -> Result<Self, Self::Error> {
        let wrong = "must be the SHA-256 of a key, as 64 hexadecimal digits";
        let mut hash = [0; 32];
        if text.len() != 2 * hash.len() || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(wrong);
        }
        for (byte, digits) in hash.iter_mut().zip(text.as_bytes().chunks(2)) {
            let digits = std::str::from_utf8(digits).map_err(|_| wrong)?;
            *byte = u8::from_str_radix(digits, 16).map_err(|_| wrong)?;
        }
        Ok(Self(hash))
    }
}

impl fmt::Display for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyHash({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_is_read_as_it_was_made_and_prints_nothing() {
        let key = ApiKey::generate().unwrap();
        assert_eq!((key.expose().len(), &key.expose()[..3]), (51, "kl_"));
        assert_eq!(ApiKey::parse(key.expose()), Ok(key.clone()));
        assert_ne!(ApiKey::generate().unwrap(), key);
        assert_eq!(format!("{key:?}"), "ApiKey(..)");
    }

    #[test]
    fn key_with_one_other_character_is_refused() {
        let key = ApiKey::generate().unwrap().expose().to_owned();
        for place in 0..key.len() {
            let mut typed = key.clone();
            let other = if &key[place..=place] == "x" { "y" } else { "x" };
            typed.replace_range(place..=place, other);
            assert_eq!(ApiKey::parse(&typed), Err(InvalidApiKey), "{place}");
        }
        for text in ["", "kl_", &key[..50], &format!("{key}A"), &format!("{key}AAAA")] {
            assert_eq!(ApiKey::parse(text), Err(InvalidApiKey), "{text}");
        }
    }

    /// An operator can compute it: `printf %s "$KEY" | sha256sum`.
    #[test]
    fn hash_is_the_sha256_of_the_text() {
        let key = ApiKey("abc".to_owned());
        let hash = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(key.hash().to_string(), hash);
        assert_eq!(KeyHash::try_from(hash.to_owned()), Ok(key.hash()));
        for wrong in [&hash[1..], &format!("{hash}0"), &hash.replace("ba", "+1"), "kl_"] {
            assert!(KeyHash::try_from((*wrong).to_owned()).is_err(), "{wrong}");
        }
    }
}
