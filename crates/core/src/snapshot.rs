//! The envelope of a snapshot: a format byte and the parts in postcard.
//!
//! `lock/snapshot.rs` and `idempotency/snapshot.rs` have the parts.

use serde::Serialize;
use serde::de::DeserializeOwned;

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

pub(crate) fn encode_parts(format: u8, parts: &impl Serialize) -> Result<Vec<u8>, SnapshotError> {
    Ok(postcard::to_extend(parts, vec![format])?)
}

pub(crate) fn decode_parts<T: DeserializeOwned>(
    format: u8,
    bytes: &[u8],
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
