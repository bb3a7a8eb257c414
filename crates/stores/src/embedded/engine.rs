//! The file of the embedded store through failures: committing, and settling what is in doubt.
//!
//! Each transaction changes something. When a commit fails, the file is opened again, and whether
//! it says what the transaction was to say shows whether the transaction is in it. After a failed
//! sync nothing that is read is proof, so nothing is settled until the process starts again. The
//! fault disk of the tests holds it.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use rusqlite::Connection;
use rusqlite::hooks::Wal;

use super::directory::Medium;
use super::row::{FORMAT, Head, RunKey};
use super::snapshot::Snapshot;
use super::tables::{self, BatchChanges, FileError};
use crate::error::OpenError;
use crate::table::Table;
use keylatch_core::idempotency::RecordState;
use keylatch_core::lock::FencingToken;
use keylatch_core::store::StoreError;

/// How far the limit of the fencing tokens is put beyond the last one: as far as the clock takes
/// them in a second, so that the file's head is a second page of few transactions.
const FENCES: u64 = 1_000_000;

/// How many pages the log may have before they are put into the file.
const LOG: usize = 1000;
/// The same while the file is copied: 256 MB of changes. A copy that takes longer is broken off.
const LOG_BESIDE_COPY: usize = 65_536;

/// Why nothing is kept where [`Engine::is_writable`] says so.
const NO_FILE: &str = "the file cannot be opened";

/// Why a batch is not on disk.
#[derive(Debug, Clone)]
pub(super) enum Failure {
    /// It is not, and will not be.
    NotKept(String),
    /// It is unknown until the medium can be opened again.
    InDoubt(String),
}

impl From<Failure> for StoreError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::NotKept(error) => Self::Refused(error.into()),
            Failure::InDoubt(error) => Self::Lost(error.into()),
        }
    }
}

/// How many pages the log has that are not in the file, as SQLite says after each transaction. A
/// page that two transactions wrote counts twice.
#[derive(Debug, Default)]
struct LogLength(Arc<AtomicUsize>);

impl LogLength {
    /// Counts the pages of this connection from now on. Its log is empty.
    fn follow(&self, mut connection: Connection) -> Result<Connection, FileError> {
        self.reset();
        let length = Arc::clone(&self.0);
        connection.wal_hook(Some(move |_: &mut Wal, pages| {
            length.store(usize::try_from(pages).unwrap_or_default(), Ordering::Relaxed);
            Ok(())
        }))?;
        Ok(connection)
    }

    fn pages(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// The file has all of the log now, and the next transaction begins it again.
    fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

/// The file and its log.
pub(super) struct Engine {
    /// Closed before the medium, which unlocks the directory, is dropped.
    connection: Option<Connection>,
    medium: Medium,
    fence_limit: u64,
    doubt: Option<BatchChanges>,
    sync_failed: bool,
    log: LogLength,
    /// Whether the log was written to since [`Engine::compact`] was last called.
    in_use: bool,
    /// Whether nothing was written since [`Engine::compact`] found nothing more to do.
    at_rest: bool,
    snapshot: Weak<Snapshot>,
}

impl Engine {
    /// Reads the file, and opens it for changes if there is room. Gives what it holds, and how many
    /// locks and records.
    pub(super) fn open(medium: Medium) -> Result<(Self, Table, (u64, u64)), OpenError> {
        let path = || medium.name.clone();
        let cannot = |error: FileError| match error {
            FileError::OtherFormat(found) => {
                OpenError::OtherFormat { path: path(), found, known: FORMAT }
            }
            error if error.is_damage() => {
                OpenError::Damaged { path: path(), reason: error.to_string() }
            }
            error => OpenError::Directory { path: path(), source: io::Error::other(error) },
        };
        // Nothing is written before all of the file was read: one that is damaged stays as it is.
        let looked = (medium.look)().map_err(cannot)?;
        let head = tables::head(&looked).map_err(cannot)?;
        if head.format != FORMAT {
            return Err(cannot(FileError::OtherFormat(head.format)));
        }
        tables::check(&looked).map_err(cannot)?;
        let table = Table::new(FencingToken::new(head.fence_limit));
        let counts = tables::load(&looked, &table).map_err(cannot)?;
        drop(looked);
        let log = LogLength::default();
        let connection = match (medium.open)().and_then(|connection| log.follow(connection)) {
            Ok(connection) => Some(connection),
            // It synced the log before it found no room for it in the file, so what was read lasts.
            Err(error) if error.is_full() => {
                tracing::error!(%error, "the disk is full: reads are served, and changes once there is room");
                None
            }
            Err(error) => return Err(cannot(error)),
        };
        let engine = Self {
            connection,
            medium,
            fence_limit: head.fence_limit,
            doubt: None,
            sync_failed: false,
            log,
            in_use: false,
            at_rest: false,
            snapshot: Weak::new(),
        };
        Ok((engine, table, counts))
    }

    pub(super) fn is_writable(&self) -> bool {
        self.connection.is_some()
    }

    /// Whether the file's limit of the fencing tokens stays where it is when this is given.
    pub(super) fn has_room_for(&self, fencing_token: FencingToken) -> bool {
        fencing_token.get() <= self.fence_limit
    }

    /// Whether a commit that took so long was quick for this medium.
    pub(super) fn is_quick(&self, took: Duration) -> bool {
        (self.medium.is_quick)(took)
    }

    /// A record with all of its response, as the row of a run has it. It is read also where nothing
    /// can be written.
    pub(super) fn record(&self, run: &RunKey) -> Result<RecordState, FileError> {
        let record = match &self.connection {
            Some(connection) => tables::record(connection, run),
            None => tables::record(&(self.medium.look)()?, run),
        };
        record?.ok_or_else(|| FileError::Damaged("a record has no row".to_owned()))
    }

    /// Puts the changes on disk. When this returns, they are, or it says that they are not.
    pub(super) fn commit(&mut self, changes: &BatchChanges) -> Result<(), Failure> {
        let had_log = self.log.pages() > 0;
        let kept = self.try_commit(changes);
        // Where the log had no room to grow, it has some now: opening the file again emptied it.
        if had_log && self.connection.is_some() && matches!(kept, Err(Failure::NotKept(_))) {
            return self.try_commit(changes);
        }
        kept
    }

    /// Opens the file again after an error. Gives the changes that were in doubt if they turn out
    /// to be on disk.
    ///
    /// Where the file can be read and not be written, reading settles that the changes are not in
    /// it. After a failed sync, reading proves nothing and nothing is settled until the process
    /// starts again.
    pub(super) fn settle(&mut self) -> Result<Option<BatchChanges>, FileError> {
        if self.connection.is_some() {
            return Ok(None);
        }
        if self.sync_failed {
            return Err(io::Error::other("a sync failed: mend the disk and restart").into());
        }
        let opened = (self.medium.open)().and_then(|connection| {
            let head = tables::head(&connection)?;
            let kept = self.has_doubtful(&connection, &head)?;
            Ok((self.log.follow(connection)?, head, kept))
        });
        let (connection, head, kept) = match opened {
            Ok(opened) => opened,
            Err(error) if error.is_failed_sync() => {
                self.sync_failed = true;
                return Err(error);
            }
            Err(_) if self.doubt.is_none() => return Ok(None),
            Err(error) => {
                let connection = (self.medium.look)()?;
                if self.has_doubtful(&connection, &tables::head(&connection)?)? {
                    // They were written, and nothing says that they were synced.
                    return Err(error);
                }
                self.doubt = None;
                return Ok(None);
            }
        };
        let kept = self.doubt.take().filter(|_| kept);
        self.fence_limit = head.fence_limit;
        self.connection = Some(connection);
        Ok(kept)
    }

    /// Whether the file says what the changes in doubt were to make of it.
    fn has_doubtful(&self, connection: &Connection, head: &Head) -> Result<bool, FileError> {
        let Some(changes) = &self.doubt else { return Ok(false) };
        Ok(changes.last_fencing_token().get() <= head.fence_limit
            && tables::has(connection, changes)?)
    }

    /// Whether [`Engine::shorten_log`] has work to do.
    pub(super) fn is_log_long(&self) -> bool {
        self.log.pages() >= if self.is_copied() { LOG_BESIDE_COPY } else { LOG }
    }

    /// Puts what the log holds into the file, if it has become long.
    pub(super) fn shorten_log(&mut self) -> Result<(), Failure> {
        if !self.is_log_long() {
            return Ok(());
        }
        self.end_copy();
        self.maintain(tables::checkpoint)?;
        self.log.reset();
        Ok(())
    }

    /// The file as it stands, with all that the log held, for as long as the snapshot lives. There
    /// is one at a time, since the log grows meanwhile.
    pub(super) fn copy(&mut self) -> Result<Arc<Snapshot>, Failure> {
        if self.is_copied() {
            return Err(Failure::NotKept("the store is being copied already".to_owned()));
        }
        self.maintain(tables::empty_log)?;
        self.log.reset();
        let file = self.medium.file.clone().filter(|_| self.connection.is_some());
        let snapshot = file
            .ok_or_else(|| io::ErrorKind::Unsupported.into())
            .and_then(Snapshot::of)
            .map_err(|error| Failure::NotKept(error.to_string()))?;
        let snapshot = Arc::new(snapshot);
        self.snapshot = Arc::downgrade(&snapshot);
        Ok(snapshot)
    }

    fn is_copied(&self) -> bool {
        self.snapshot.strong_count() > 0
    }

    /// Says to the reader of a copy, before the file changes, that the copy is of no use.
    fn end_copy(&mut self) {
        if let Some(snapshot) = std::mem::take(&mut self.snapshot).upgrade() {
            tracing::warn!("a backup was broken off: the log has to go into the file");
            snapshot.end();
        }
    }

    /// Returns some of the room that the file no longer needs. Whether there is more to do.
    ///
    /// The log is emptied once nothing was written since the last time: to let it grow again costs
    /// a busy store more than to write over it.
    pub(super) fn compact(&mut self) -> Result<bool, Failure> {
        let mut shrunk = false;
        self.maintain(|connection| {
            shrunk = tables::shrink(connection)?;
            Ok(())
        })?;
        if shrunk {
            self.in_use = true;
            self.shorten_log()?;
        } else if !self.is_copied() && !std::mem::take(&mut self.in_use) {
            self.maintain(tables::empty_log)?;
            self.log.reset();
            self.at_rest = self.connection.is_some();
        }
        Ok(shrunk)
    }

    /// Whether [`Engine::compact`] has nothing to do.
    pub(super) fn is_at_rest(&self) -> bool {
        self.at_rest
    }

    /// Whether there is room: writes something and takes it away again.
    pub(super) fn probe(&mut self) -> Result<(), Failure> {
        if !self.is_writable() {
            return Err(Failure::NotKept(NO_FILE.to_owned()));
        }
        self.at_rest = false;
        self.in_use = true;
        self.maintain(tables::probe)
    }

    fn try_commit(&mut self, changes: &BatchChanges) -> Result<(), Failure> {
        self.at_rest = false;
        let last = changes.last_fencing_token();
        let limit = (!self.has_room_for(last)).then(|| last.get() + FENCES);
        let Some(connection) = &self.connection else {
            return Err(Failure::NotKept(NO_FILE.to_owned()));
        };
        let head = limit.map(|fence_limit| Head { format: FORMAT, fence_limit });
        if let Err(error) = tables::write(connection, changes, head.as_ref()) {
            self.close(&error);
            self.doubt = Some(changes.clone());
            return match self.settle() {
                Ok(Some(_)) => Ok(()),
                Ok(None) => Err(Failure::NotKept(error.to_string())),
                Err(doubt) => Err(Failure::InDoubt(format!("{error}; {doubt}"))),
            };
        }
        self.in_use = true;
        self.fence_limit = limit.unwrap_or(self.fence_limit);
        Ok(())
    }

    /// Does what changes no reply. Whatever fails, what was answered is in the
    /// log.
    fn maintain(
        &mut self,
        work: impl FnOnce(&Connection) -> Result<(), FileError>,
    ) -> Result<(), Failure> {
        let Some(connection) = &self.connection else { return Ok(()) };
        let Err(error) = work(connection) else { return Ok(()) };
        self.close(&error);
        match self.settle() {
            Ok(_) => Err(Failure::NotKept(error.to_string())),
            Err(_) => Err(Failure::InDoubt(error.to_string())),
        }
    }

    fn close(&mut self, error: &FileError) {
        self.sync_failed |= error.is_failed_sync();
        self.end_copy();
        self.at_rest = false;
        self.connection = None;
    }
}

impl Drop for Engine {
    /// Leaves all in the file, so that it is a backup without its log.
    fn drop(&mut self) {
        self.end_copy();
        if let Some(connection) = &self.connection
            && let Err(error) = tables::empty_log(connection)
        {
            tracing::warn!(%error, "the log stays beside the file");
        }
    }
}
