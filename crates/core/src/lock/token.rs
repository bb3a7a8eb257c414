//! The secret that proves a grant, and its digest.
//!
//! Only the response to its owner shows a token; a store keeps the SHA-256 alone, and both print as
//! `..`. `tests/` searches logs, listings and stores for secrets.

use std::cell::RefCell;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::digest::digest;

/// The secret that proves who holds a lock: 20 to 128 of `A-Z a-z 0-9 _ -`.
///
/// It prints as `Token(..)`; only [`Token::expose`] shows it, for the response to its owner.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(Box<str>);

impl Token {
    /// The fewest characters a token has.
    pub const MIN_CHARS: usize = 20;
    /// The most characters a token has.
    pub const MAX_CHARS: usize = 128;

    /// A new token: 24 bytes from the operating system, as base64url.
    ///
    /// # Errors
    ///
    /// The operating system has no random bytes to give.
    pub fn generate() -> Result<Self, getrandom::Error> {
        let bytes = RANDOM.with_borrow_mut(Random::draw)?;
        Ok(Self(URL_SAFE_NO_PAD.encode(bytes).into()))
    }

    /// Checks a token that a client chose.
    ///
    /// # Errors
    ///
    /// Says which rule it breaks, without repeating it.
    pub fn parse(token: &str) -> Result<Self, InvalidToken> {
        if !(Self::MIN_CHARS..=Self::MAX_CHARS).contains(&token.len()) {
            return Err(InvalidToken::Length);
        }
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
        if !token.bytes().all(plain) {
            return Err(InvalidToken::Character);
        }
        Ok(Self(token.into()))
    }

    /// What stores keep in place of the token.
    pub fn hash(&self) -> TokenHash {
        TokenHash(Sha256::digest(self.0.as_bytes()).into())
    }

    /// The secret itself.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

thread_local! {
    static RANDOM: RefCell<Random> = const { RefCell::new(Random { bytes: [0; 1536], used: 1536 }) };
}

/// Bytes from the operating system for some dozens of tokens: a system call for each token would
/// be a good part of what a request costs.
struct Random {
    bytes: [u8; 1536],
    used: usize,
}

impl Random {
    /// 24 bytes from the operating system, each given to one token alone.
    fn draw(&mut self) -> Result<[u8; 24], getrandom::Error> {
        if self.used == self.bytes.len() {
            getrandom::fill(&mut self.bytes)?;
            self.used = 0;
        }
        let mut drawn = [0; 24];
        let source = &mut self.bytes[self.used..self.used + drawn.len()];
        drawn.swap_with_slice(source);
        self.used += drawn.len();
        Ok(drawn)
    }
}

digest! {
    /// The SHA-256 of a [`Token`]: enough to recognise it, not enough to use it.
    TokenHash
}

/// One try to acquire a lock, unlike every other in any process.
///
/// A token may be tried several times, at once even. What one try got can be withdrawn only while
/// no other try has been given the same grant, because that other's client may rely on it.
///
/// The rounds of one waiting request are attempts of that request: its number is in the upper 48
/// bits, then comes the round, and the lowest bit says whether an earlier round got a queue entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt(u64);

impl Attempt {
    /// The attempt with this number.
    pub fn new(number: u64) -> Self {
        Self(number)
    }

    /// Its number.
    pub fn get(self) -> u64 {
        self.0
    }

    /// The first attempt of a request, whose number has 48 bits.
    pub fn first_of(request: u64) -> Self {
        Self(request << Self::ROUND_BITS)
    }

    /// The next attempt of the same request; `keeps_entry` if an earlier one got a queue entry.
    #[must_use]
    pub fn next(self, keeps_entry: bool) -> Self {
        let rounds = (1 << Self::ROUND_BITS) - 1;
        let round = ((self.0 & rounds) >> 1) + 1;
        Self(self.0 & !rounds | (round << 1) & rounds | u64::from(keeps_entry))
    }

    /// The number of its request.
    pub(super) fn request(self) -> u64 {
        self.0 >> Self::ROUND_BITS
    }

    /// Whether both are of one request.
    pub(super) fn is_of_request_of(self, other: Self) -> bool {
        self.request() == other.request()
    }

    /// Whether an earlier attempt of the same request got a queue entry.
    pub(super) fn keeps_entry(self) -> bool {
        self.0 & 1 == 1
    }

    const ROUND_BITS: u32 = 16;
}

/// Why a text is not a [`Token`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidToken {
    /// It is too short or too long.
    #[error("it must have 20 to 128 characters")]
    Length,
    /// It has a character that tokens do not have.
    #[error("it must be of A-Z, a-z, 0-9, `_` and `-`")]
    Character,
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_token_is_made_twice() {
        let made: HashSet<_> = (0..1000).map(|_| Token::generate().unwrap().0).collect();
        assert_eq!(made.len(), 1000);
        assert!(made.iter().all(|token| token.len() == 32 && Token::parse(token).is_ok()));
    }
}
