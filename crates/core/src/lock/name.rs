//! The name of a lock, and the bucket that its fencing counter is in.
//!
//! A name is checked where it is made, so a [`LockName`] is always valid. Names are compared byte
//! by byte. The bucket is the same in every process and every version; stores rely on it.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use sha2::{Digest, Sha256};

/// The name of a lock: 1 to 255 bytes of UTF-8 without control characters.
///
/// Names are compared byte by byte and never normalised, so two spellings are two locks.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockName(Arc<str>);

impl LockName {
    /// The longest name, in bytes.
    pub const MAX_BYTES: usize = 255;

    /// How many buckets [`LockName::bucket`] spreads names over.
    pub const BUCKETS: usize = 256;

    /// Checks `name` and keeps it.
    ///
    /// # Errors
    ///
    /// Says which rule `name` breaks.
    pub fn parse(name: &str) -> Result<Self, InvalidName> {
        match name.len() {
            0 => Err(InvalidName::Empty),
            1..=Self::MAX_BYTES if name.chars().any(char::is_control) => Err(InvalidName::Control),
            1..=Self::MAX_BYTES => Ok(Self(name.into())),
            bytes => Err(InvalidName::TooLong(bytes)),
        }
    }

    /// What the names of keylatch's own locks begin with. It is a control character, so no client
    /// has such a name.
    pub const RESERVED: char = '\u{7f}';

    /// Checks a name that a store has, be it a client's or [reserved](Self::RESERVED).
    ///
    /// # Errors
    ///
    /// Says which rule `name` breaks.
    pub fn stored(name: &str) -> Result<Self, InvalidName> {
        match name.strip_prefix(Self::RESERVED) {
            Some(rest) => Self::parse(rest).map(|_| Self(name.into())),
            None => Self::parse(name),
        }
    }

    /// Whether it is a lock of keylatch's own, which no list and no metric shows.
    pub fn is_reserved(&self) -> bool {
        self.0.starts_with(Self::RESERVED)
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The bucket whose counter gives this lock its fencing tokens: the first byte of the
    /// name's SHA-256, the same in every process and every version.
    pub fn bucket(&self) -> u8 {
        Sha256::digest(self.0.as_bytes())[0]
    }
}

impl Borrow<str> for LockName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LockName({:?})", &*self.0)
    }
}

/// Why a text is not a [`LockName`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidName {
    /// It has no bytes.
    #[error("it is empty")]
    Empty,
    /// It has this many bytes, more than [`LockName::MAX_BYTES`].
    #[error("it has {0} bytes, and 255 is the most")]
    TooLong(usize),
    /// It has a control character.
    #[error("it has a control character")]
    Control,
}
