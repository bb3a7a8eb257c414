use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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

/// A backend that is only read. redb mends what it opens, and what it writes for that is kept here.
#[derive(Debug)]
pub(super) struct Overlay<B> {
    below: B,
    above: Mutex<Above>,
}

#[derive(Debug)]
struct Above {
    /// How much of what is below counts.
    below: u64,
    length: u64,
    writes: Vec<(u64, Vec<u8>)>,
}

impl<B: StorageBackend> Overlay<B> {
    pub(super) fn new(below: B) -> io::Result<Self> {
        let length = below.len()?;
        let above = Mutex::new(Above { below: length, length, writes: Vec::new() });
        Ok(Self { below, above })
    }

    fn above(&self) -> MutexGuard<'_, Above> {
        self.above.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<B: StorageBackend> StorageBackend for Overlay<B> {
    fn len(&self) -> io::Result<u64> {
        Ok(self.above().length)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let above = self.above();
        if offset + out.len() as u64 > above.length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let below = above.below.saturating_sub(offset).min(out.len() as u64) as usize;
        let (below, zeros) = out.split_at_mut(below);
        self.below.read(offset, below)?;
        zeros.fill(0);
        for (start, data) in &above.writes {
            let (from, to) =
                (offset.max(*start), (start + data.len() as u64).min(offset + out.len() as u64));
            if from < to {
                let data = &data[(from - start) as usize..(to - start) as usize];
                out[(from - offset) as usize..(to - offset) as usize].copy_from_slice(data);
            }
        }
        Ok(())
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        let mut above = self.above();
        above.below = above.below.min(length);
        above.length = length;
        // What was cut off is zero when the length grows again.
        above.writes.retain_mut(|(start, data)| {
            data.truncate(length.saturating_sub(*start) as usize);
            !data.is_empty()
        });
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut above = self.above();
        above.length = above.length.max(offset + data.len() as u64);
        above.writes.push((offset, data.to_vec()));
        Ok(())
    }
}
