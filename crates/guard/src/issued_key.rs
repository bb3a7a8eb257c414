//! Keys that the service issues: the token pattern of forms, without a table of tokens.
//!
//! A key has its expiry and a random part, signed by HMAC-SHA256 together with the method, the path
//! and the principal that it is for, so nothing is stored before it is used. Two secrets are valid
//! while one is rotated, and the first signs. Invariant: an expired key never runs. Its record
//! lives until then by the clock of any instance, for as long as these differ by less than
//! [`CLOCKS`]. Tested in `tests/api/issued_keys.rs` and `fuzz/targets/issued_key.rs`.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::{Digest as _, Sha256};

use crate::{Code, Problem};
use keylatch_core::idempotency::{IdempotencyKey, Scope};

const PREFIX: &str = "issued-";
/// What the records of issued keys have as their source.
pub(crate) const SOURCE: &str = "issued";
/// How far the clocks of two instances may be apart.
pub(crate) const CLOCKS: Duration = Duration::from_secs(300);
const MIN_SECRET: usize = 32;
/// Expiry and random part, and the signature behind them.
const HEAD: usize = 24;
const SIGNATURE: usize = 32;

/// What signs the issued keys of a service, and knows them again.
#[derive(Debug, Clone)]
pub struct IssuedKeys(Arc<RwLock<Vec<Secret>>>);

/// The signature of nothing yet by a secret, which prints nothing of it.
type Secret = Hmac<Sha256>;

/// A file that has no secret for issued keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "it must have one line with a secret, or two while one is rotated, each of {MIN_SECRET} bytes or more"
)]
pub struct InvalidSecrets;

impl IssuedKeys {
    /// Takes the secrets of a text, each on its line.
    ///
    /// # Errors
    ///
    /// It has none, more than two, or one that is short.
    pub fn read(text: &[u8]) -> Result<Self, InvalidSecrets> {
        Ok(Self(Arc::new(RwLock::new(secrets(text)?))))
    }

    /// Takes other secrets, here and in all clones.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read); then the secrets stay.
    pub fn replace(&self, text: &[u8]) -> Result<(), InvalidSecrets> {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = secrets(text)?;
        Ok(())
    }

    /// A new key for a method, a path and a principal, and when it expires, in milliseconds since
    /// 1970.
    ///
    /// # Errors
    ///
    /// The operating system has no random bytes.
    pub fn issue(
        &self,
        scope: &Scope<'_>,
        ttl: Duration,
    ) -> Result<(String, u64), getrandom::Error> {
        let expires = u64::try_from((now() + ttl).as_millis()).unwrap_or(u64::MAX);
        let mut key = [0; HEAD + SIGNATURE];
        let (head, signature) = key.split_at_mut(HEAD);
        let (time, random) = head.split_at_mut(size_of::<u64>());
        time.copy_from_slice(&expires.to_be_bytes());
        getrandom::fill(random)?;
        if let Some(secret) = self.secrets().into_iter().next() {
            signature.copy_from_slice(&sign(secret, head, scope).finalize().into_bytes());
        }
        Ok((format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(key)), expires))
    }

    /// How long the record of a key has to live from now on.
    ///
    /// # Errors
    ///
    /// The key was not issued for this, or has expired.
    pub(crate) fn check(
        &self,
        key: &IdempotencyKey,
        scope: &Scope<'_>,
    ) -> Result<Duration, Problem> {
        let foreign = || {
            let detail =
                "The key was not issued for this method, path and principal. Nothing was run.";
            Problem::new(Code::InvalidKey, detail).with_field("Idempotency-Key")
        };
        let bytes = key.as_str().strip_prefix(PREFIX).ok_or_else(foreign)?;
        let bytes = URL_SAFE_NO_PAD.decode(bytes).map_err(|_| foreign())?;
        let (head, signature) = bytes.split_at_checked(HEAD).ok_or_else(foreign)?;
        let has_signed = |secret| sign(secret, head, scope).verify_slice(signature).is_ok();
        let expires = head.first_chunk().filter(|_| self.secrets().into_iter().any(has_signed));
        let expires = Duration::from_millis(u64::from_be_bytes(*expires.ok_or_else(foreign)?));
        match expires.checked_sub(now()) {
            Some(left) if !left.is_zero() => Ok(left + CLOCKS),
            _ => {
                let detail =
                    "The key has expired, and nothing runs under it any more. Nothing was run now.";
                Err(Problem::new(Code::KeyExpired, detail).with_field("Idempotency-Key"))
            }
        }
    }

    fn secrets(&self) -> Vec<Secret> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The signature of what a key begins with, and what it is for.
fn sign(mut secret: Secret, head: &[u8], scope: &Scope<'_>) -> Secret {
    let principal = scope.principal.to_string();
    let parts = [b"keylatch issued key", head, scope.method.as_bytes(), scope.path.as_bytes()];
    for part in parts.into_iter().chain([principal.as_bytes()]) {
        secret.update(&(part.len() as u64).to_be_bytes());
        secret.update(part);
    }
    secret
}

fn secrets(text: &[u8]) -> Result<Vec<Secret>, InvalidSecrets> {
    let lines = text.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    let lines: Vec<_> = lines.filter(|line| !line.is_empty()).collect();
    if !(1..=2).contains(&lines.len()) || lines.iter().any(|line| line.len() < MIN_SECRET) {
        return Err(InvalidSecrets);
    }
    let secret = |line| Secret::new_from_slice(&Sha256::digest(line)).map_err(|_| InvalidSecrets);
    lines.into_iter().map(secret).collect()
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
