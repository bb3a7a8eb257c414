use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redb::{DatabaseError, StorageBackend, backends::FileBackend};

/// Whether a sync has ever failed.
///
/// After that, what is read is no proof of what is on disk: Linux marks pages that it could not
/// write as clean, and no later sync writes them (Rebello et al., "Can Applications Recover from
/// fsync Failures?", ATC 2020).
#[derive(Debug, Clone, Default)]
pub(super) struct SyncFailed(Arc<AtomicBool>);

impl SyncFailed {
    pub(super) fn has_happened(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// A backend whose failed syncs are remembered.
#[derive(Debug)]
pub(super) struct Watched<B> {
    inner: B,
    failed: SyncFailed,
}

impl<B> Watched<B> {
    pub(super) fn new(inner: B, failed: SyncFailed) -> Self {
        Self { inner, failed }
    }
}

impl Watched<FileBackend> {
    pub(super) fn file(file: File, failed: SyncFailed) -> Result<Self, DatabaseError> {
        Ok(Self::new(FileBackend::new(file)?, failed))
    }
}

impl<B: StorageBackend> StorageBackend for Watched<B> {
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.inner.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.inner.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        let synced = self.inner.sync_data();
        if synced.is_err() {
            self.failed.0.store(true, Ordering::Release);
        }
        synced
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.inner.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.inner.close()
    }
}
