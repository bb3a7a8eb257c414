//! The envelope of a snapshot: a format byte and the parts in postcard.
//!
//! `lock/snapshot.rs` and `idempotency/snapshot.rs` have the parts.

use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

/// What no time in a snapshot reaches, so that the rules can add some of them: 35,000 years.
const TIME_LIMIT: Duration = Duration::from_secs(1 << 40);

/// Why bytes are not a snapshot that this version can read or write.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// There are no bytes.
    #[error("the snapshot is empty")]
    Empty,
    /// A newer version wrote it.
    #[error("a newer version wrote the snapshot")]
    Newer,
    /// A part is not what it must be.
    #[error("the snapshot has an invalid part")]
    Malformed,
    /// The codec failed.
    #[error("the snapshot cannot be coded")]
    Codec(#[from] postcard::Error),
}

/// A time of a snapshot, which may be damaged: for `#[serde(deserialize_with)]`.
///
/// # Errors
///
/// It is longer than any that the rules reach.
pub fn deserialize_time<'de, D: Deserializer<'de>>(input: D) -> Result<Duration, D::Error> {
    let time = Duration::deserialize(input)?;
    if time < TIME_LIMIT { Ok(time) } else { Err(D::Error::custom("a time beyond every other")) }
}

pub(crate) fn encode_parts(format: u8, parts: &impl Serialize) -> Result<Vec<u8>, SnapshotError> {
    Ok(postcard::to_extend(parts, vec![format])?)
}

pub(crate) fn decode_parts<'a, T: Deserialize<'a>>(
    format: u8,
    bytes: &'a [u8],
) -> Result<T, SnapshotError> {
    match bytes.split_first() {
        None => Err(SnapshotError::Empty),
        Some((found, parts)) if *found == format => {
            let (parts, rest) = postcard::take_from_bytes(parts)?;
            if rest.is_empty() { Ok(parts) } else { Err(SnapshotError::Malformed) }
        }
        Some((found, _)) if *found > format => Err(SnapshotError::Newer),
        Some(_) => Err(SnapshotError::Malformed),
    }
}
