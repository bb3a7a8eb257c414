//! The proof of a lease or a run, as JSON carries it.
//!
//! A token travels as a plain string and is a secret: no `Debug` of an answer may print it. The
//! rules of its characters are in `keylatch-core`, where it is checked.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};

/// A token: the proof that renewing, releasing and completing ask for. It prints as `Token(..)`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SecretToken<'a>(Cow<'a, str>);

impl<'a> SecretToken<'a> {
    /// Wraps the text of a token, without checking it.
    pub fn new(token: impl Into<Cow<'a, str>>) -> Self {
        Self(token.into())
    }

    /// The secret itself.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SecretToken<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}
