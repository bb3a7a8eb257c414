//! A copy of all that a store keeps, as bytes that arrive while the store serves.
//!
//! [`Store::back_up`](super::Store::back_up) gives one. Invariant: a copy that is not whole ends
//! with an error. Tested in `tests/api/backup.rs` and `tests/cli/backup.rs`.

use std::fmt;
use std::io;
use std::pin::Pin;

use bytes::Bytes;
use futures_util::Stream;

/// A copy of a store at one moment, as the file that another store opens.
///
/// It has the effect of every step that was answered before the copy was asked for. The store does
/// for the copy what it has to for as long as this lives, so a reader that is done drops it.
pub struct Backup {
    /// How many bytes the whole copy has.
    pub length: u64,
    /// Its bytes in order. An error ends them: the copy is of no use.
    pub chunks: Pin<Box<dyn Stream<Item = io::Result<Bytes>> + Send>>,
}

impl fmt::Debug for Backup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Backup").field("length", &self.length).finish_non_exhaustive()
    }
}
