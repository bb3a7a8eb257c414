//! How the rows of the file are written: each with a checksum of its key and itself, because SQLite
//! keeps none of what has reached the file.

use serde::{Deserialize, Serialize};

use keylatch_core::lock::LockName;

/// What the file says of itself.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Head {
    /// How the file is written; it comes first in every format.
    pub(super) format: u64,
    /// No fencing token that was given is larger.
    pub(super) fence_limit: u64,
}

/// A held lock.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct LockRow<'a> {
    pub(super) token: [u8; 32],
    pub(super) fence: u64,
    pub(super) ttl_millis: u64,
    pub(super) acquired_at_millis: u64,
    pub(super) owner: Option<&'a str>,
}

/// A row is not what was written.
#[derive(Debug, thiserror::Error)]
#[error("the checksum of a row does not match")]
pub(super) struct Unsealed;

/// The key of a lock: its bucket and its name, so that those which are swept out together are next
/// to one another.
pub(super) fn lock_key(name: &LockName) -> Vec<u8> {
    let mut key = Vec::with_capacity(1 + name.as_str().len());
    key.push(name.bucket());
    key.extend_from_slice(name.as_str().as_bytes());
    key
}

/// The name in a lock's key.
pub(super) fn lock_name(key: &[u8]) -> Option<LockName> {
    LockName::parse(std::str::from_utf8(key.get(1..)?).ok()?).ok()
}

/// Puts the checksum behind a value.
pub(super) fn seal(key: &[u8], mut value: Vec<u8>) -> Vec<u8> {
    let checksum = checksum(key, &value);
    value.extend_from_slice(&checksum);
    value
}

/// The value before the checksum.
pub(super) fn unseal<'a>(key: &[u8], sealed: &'a [u8]) -> Result<&'a [u8], Unsealed> {
    let (value, found) = sealed.split_last_chunk().ok_or(Unsealed)?;
    if *found == checksum(key, value) { Ok(value) } else { Err(Unsealed) }
}

fn checksum(key: &[u8], value: &[u8]) -> [u8; 4] {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(key);
    hasher.update(value);
    hasher.finalize().to_le_bytes()
}
