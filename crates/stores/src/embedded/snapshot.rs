//! The data file as it is at one moment, read while the store serves.
//!
//! SQLite writes changes to the log, and the log goes into the file only when the engine asks for
//! that. So a copy begins when the log has just been emptied into the file, and until it ends the
//! engine leaves the file alone and lets the log grow: no change waits for the reader. (SQLite's
//! own backup copies through the connection, between the writer's transactions, and needs the room
//! of a second file.)
//!
//! Invariant: no byte of the file changes while a snapshot lives that has not ended. The file is
//! read by the one descriptor that was opened before SQLite's own and is closed after it: to close
//! any other would free the lock that SQLite has on the file (POSIX). Tested in
//! `tests/api/backup.rs`.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use futures_util::stream::try_unfold;
use keylatch_core::store::Backup;

const CHUNK: u64 = 256 * 1024;

/// The file, for as long as it stays as it is.
#[derive(Debug)]
pub(super) struct Snapshot {
    file: Arc<File>,
    length: u64,
    has_ended: AtomicBool,
}

impl Snapshot {
    pub(super) fn of(file: Arc<File>) -> io::Result<Self> {
        let length = file.metadata()?.len();
        Ok(Self { file, length, has_ended: AtomicBool::new(false) })
    }

    /// Has every later read fail, because the file is about to change.
    pub(super) fn end(&self) {
        self.has_ended.store(true, Ordering::SeqCst);
    }

    /// The bytes from `offset` on; none at the end of the file.
    fn read(&self, offset: u64) -> io::Result<Bytes> {
        let length = usize::try_from(CHUNK.min(self.length - offset)).unwrap_or_default();
        let mut chunk = vec![0; length];
        self.file.read_exact_at(&mut chunk, offset)?;
        // After the read, which may have met a change.
        if self.has_ended.load(Ordering::SeqCst) {
            return Err(io::Error::other("the data file changed before its copy was read"));
        }
        Ok(chunk.into())
    }

    /// The same as bytes to come.
    pub(super) fn into_backup(self: Arc<Self>) -> Backup {
        let length = self.length;
        let chunks = try_unfold((self, 0), |(snapshot, offset)| async move {
            let reading = Arc::clone(&snapshot);
            let chunk = tokio::task::spawn_blocking(move || reading.read(offset)).await??;
            let next = offset + chunk.len() as u64;
            Ok((!chunk.is_empty()).then_some((chunk, (snapshot, next))))
        });
        Backup { length, chunks: Box::pin(chunks) }
    }
}
