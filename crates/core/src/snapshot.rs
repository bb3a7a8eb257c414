//! The state of a lock or a record as bytes: complete, and without loss.
//!
//! A snapshot is the byte [`FORMAT`] and the state in postcard; what a state is made of derives its
//! part of the bytes, and a text is checked again when it is read. `decode(encode(state)) == state`
//! for every state that the rules reach, and no other bytes are a state: `tests/snapshots` holds
//! both. Times are those of the store's monotonic clock, so a store that is opened on another clock
//! decides what they mean there.

use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

/// The format of snapshots. The formats 1 to 3 were those of builds before the first release.
const FORMAT: u8 = 4;
/// What no time in a snapshot reaches, so that the rules can add some of them: 35,000 years.
const TIME_LIMIT: Duration = Duration::from_secs(1 << 40);

/// Why bytes are not a snapshot that this version can read or write.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// The bytes do not begin with the format that this version writes.
    #[error(
        "another version of keylatch wrote this, or another program: use that one here, or give \
         keylatch a place of its own (another directory, database, schema or key prefix)"
    )]
    Foreign,
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

/// Derives the bytes of a text that is checked: those of the text.
macro_rules! text_in_snapshots {
    ($checked:ty, $parse:expr) => {
        impl serde::Serialize for $checked {
            fn serialize<S: serde::Serializer>(&self, output: S) -> Result<S::Ok, S::Error> {
                output.serialize_str(self.as_str())
            }
        }

        impl<'de> serde::Deserialize<'de> for $checked {
            fn deserialize<D: serde::Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
                let text = <&str>::deserialize(input)?;
                ($parse)(text).map_err(serde::de::Error::custom)
            }
        }
    };
}
pub(crate) use text_in_snapshots;

/// A state as bytes. The codec fails on no state that the rules reach.
pub(crate) fn encode(state: &impl Serialize) -> Result<Vec<u8>, SnapshotError> {
    Ok(postcard::to_extend(state, vec![FORMAT])?)
}

/// The state that [`encode`] wrote.
pub(crate) fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, SnapshotError> {
    let Some((&FORMAT, state)) = bytes.split_first() else { return Err(SnapshotError::Foreign) };
    let (state, rest) = postcard::take_from_bytes(state)?;
    if rest.is_empty() { Ok(state) } else { Err(SnapshotError::Malformed) }
}
