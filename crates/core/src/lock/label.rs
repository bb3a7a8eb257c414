//! Texts that clients write for people: who holds a lock, why a lease is broken, what an entry is
//! called.
//!
//! A text is checked where it is made, so a value is always valid. A snapshot has it as it is, and
//! checks it again when it is read. Tested over HTTP in `tests/api/invalid_bodies.rs`, and by the
//! snapshots.

use std::fmt;
use std::sync::Arc;

use crate::snapshot::text_in_snapshots;

/// Why a text is not one of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidLabel {
    /// It has no bytes.
    #[error("must not be empty")]
    Empty,
    /// It has too many bytes.
    #[error("has at most {most} bytes, this one has {bytes}")]
    TooLong {
        /// How many it may have.
        most: usize,
        /// How many it has.
        bytes: usize,
    },
    /// It has a control character.
    #[error("must not contain control characters")]
    Control,
}

/// Defines a text of 1 to so many bytes without control characters.
macro_rules! label {
    ($(#[$doc:meta])+ $name:ident, $most:literal) => {
        $(#[$doc])+
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The most bytes that it has.
            pub const MAX_BYTES: usize = $most;

            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }

            fn checked(text: &str) -> Result<Self, InvalidLabel> {
                match text.len() {
                    0 => Err(InvalidLabel::Empty),
                    bytes if bytes > $most => Err(InvalidLabel::TooLong { most: $most, bytes }),
                    _ if text.chars().any(char::is_control) => Err(InvalidLabel::Control),
                    _ => Ok(Self(text.into())),
                }
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_tuple(stringify!($name)).field(&self.0).finish()
            }
        }

        text_in_snapshots!($name, $name::checked);
    };
}

label!(
    /// The name of an entry.
    EntryName, 64
);
label!(
    /// Why a lease is broken.
    Reason, 256
);
label!(
    /// A label for people that says who holds a lock.
    Owner, 256
);

impl EntryName {
    /// Checks a name.
    ///
    /// # Errors
    ///
    /// It is empty, too long or has a control character.
    pub fn parse(name: &str) -> Result<Self, InvalidLabel> {
        Self::checked(name)
    }
}

impl Reason {
    /// Checks a reason.
    ///
    /// # Errors
    ///
    /// It is empty, too long or has a control character.
    pub fn parse(reason: &str) -> Result<Self, InvalidLabel> {
        Self::checked(reason)
    }
}

impl Owner {
    /// Checks a label; an empty one is none.
    ///
    /// # Errors
    ///
    /// It is too long or has a control character.
    pub fn parse(owner: &str) -> Result<Option<Self>, InvalidLabel> {
        if owner.is_empty() { Ok(None) } else { Self::checked(owner).map(Some) }
    }
}
