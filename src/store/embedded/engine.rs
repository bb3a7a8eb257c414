use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use redb::{
    Database, DatabaseError, ReadableDatabase, ReadableTable, StorageError, TableDefinition,
    WriteTransaction,
};

use super::backend::SyncFailed;
use super::directory::Directory;
use super::{OpenError, record_row};
use crate::idempotency::{self, RecordKey, RecordState};
use crate::lock::{FencingToken, LockName, LockState, Owner, Record, TokenHash};

/// The newest format of the file: 2 added the records, which a process that knows only 1 would
/// overlook, and run again what was run.
const FORMAT: u64 = 2;

/// Token hash, fencing token, TTL in ms, acquired at in ms, owner.
type Row<'a> = (&'a [u8; 32], u64, u64, u64, Option<&'a str>);

const LOCKS: TableDefinition<'static, &str, Row<'static>> = TableDefinition::new("locks");
/// Records of idempotency keys, as [`record_row`] writes them.
const RECORDS: TableDefinition<'static, &[u8; 32], &[u8]> = TableDefinition::new("records");
const META: TableDefinition<'static, &str, u64> = TableDefinition::new("meta");
/// What is written and taken away again to see whether there is room.
const PROBE: TableDefinition<'static, (), &[u8]> = TableDefinition::new("probe");
/// More than a usual transaction takes, so that one that fails is not followed by a probe that fits.
const PROBE_BYTES: usize = 64 * 1024;

/// Where the data is, and how it is opened: again after each I/O error, as redb wants it.
pub(super) struct Medium {
    /// What to call it.
    pub(super) name: PathBuf,
    pub(super) open: Opening,
    /// Opens it as it stands, also where nothing can be written. What is written to this goes
    /// nowhere.
    pub(super) look: Opening,
    /// What `open` opens says here when a sync fails.
    pub(super) sync_failed: SyncFailed,
    /// This process's for as long as the medium is in use.
    pub(super) _directory: Option<Directory>,
}

type Opening = Box<dyn Fn() -> Result<Database, DatabaseError> + Send>;

/// What a batch of commands comes to.
#[derive(Debug, Clone, Default)]
pub(super) struct Changes {
    pub(super) locks: BTreeMap<LockName, LockState>,
    pub(super) records: BTreeMap<RecordKey, RecordState>,
    /// Whether the disk does not yet say all of this.
    pub(super) durable: bool,
    /// The last fencing token of each bucket that gave one.
    pub(super) fences: BTreeMap<u8, FencingToken>,
    /// Write or take away what shows whether there is room.
    pub(super) probe: Option<Probing>,
}

impl Changes {
    fn last_fence(&self) -> FencingToken {
        self.fences.values().copied().max().unwrap_or_default()
    }
}

/// One of the two transactions of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Probing {
    Write,
    TakeAway,
}

/// Why a batch is not on disk.
#[derive(Debug, Clone)]
pub(super) enum Failure {
    /// It is not, and will not be.
    NotKept(String),
    /// Nobody can tell before the medium can be opened again.
    InDoubt(String),
}

/// The file: one table of held locks, one of records, and one of numbers.
///
/// Each transaction carries its own number. When a commit fails, the file is opened again, and its
/// number says whether the transaction is in it.
pub(super) struct Engine {
    /// Closed before the medium is given back.
    database: Option<Database>,
    medium: Medium,
    last_fence: FencingToken,
    commits: u64,
    doubt: Option<Changes>,
}

/// Writes the tables into a new file.
pub(super) fn create(database: &Database) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    transaction.open_table(LOCKS)?;
    transaction.open_table(RECORDS)?;
    transaction.commit()?;
    set_number(database, "format", FORMAT)
}

/// Writes one of the file's numbers.
pub(super) fn set_number(database: &Database, name: &str, value: u64) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    transaction.open_table(META)?.insert(name, value)?;
    transaction.commit()?;
    Ok(())
}

impl Engine {
    pub(super) fn open(medium: Medium) -> Result<Self, OpenError> {
        let damaged = |reason: &dyn fmt::Display| OpenError::Damaged {
            path: medium.name.clone(),
            reason: reason.to_string(),
        };
        let cannot = |source| OpenError::Directory { path: medium.name.clone(), source };
        let mut database = (medium.open)().map_err(|error| match error {
            DatabaseError::Storage(StorageError::Io(source))
                if !matches!(
                    source.kind(),
                    io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof
                ) =>
            {
                cannot(source)
            }
            error => damaged(&error),
        })?;
        if !database.check_integrity().map_err(|error| damaged(&error))? {
            return Err(damaged(&"its checksums do not match"));
        }
        let format = number(&database, "format").map_err(|error| damaged(&error))?;
        if format > FORMAT {
            let path = medium.name.clone();
            return Err(OpenError::NewerFormat { path, found: format, known: FORMAT });
        }
        if format == 0 {
            return Err(damaged(&"it has no format"));
        }
        if format < FORMAT {
            create(&database).map_err(|error| cannot(io::Error::other(error)))?;
        }
        let last_fence = number(&database, "last_fence").map_err(|error| damaged(&error))?;
        let commits = number(&database, "commits").map_err(|error| damaged(&error))?;
        let last_fence = FencingToken::new(last_fence);
        Ok(Self { medium, database: Some(database), last_fence, commits, doubt: None })
    }

    /// The largest fencing token ever given.
    pub(super) fn last_fence(&self) -> FencingToken {
        self.last_fence
    }

    /// Hands over every lock and every record in the file; gives the number of each.
    pub(super) fn load(&mut self, take: &mut dyn Take) -> Result<(u64, u64), OpenError> {
        let loaded = self.database.as_ref().map_or(Ok((0, 0)), |database| load(database, take));
        loaded.map_err(|error| OpenError::Damaged {
            path: self.medium.name.clone(),
            reason: error.to_string(),
        })
    }

    /// Puts the changes on disk. When this returns, they are, or it says that they are not.
    pub(super) fn commit(&mut self, changes: &Changes) -> Result<(), Failure> {
        let number = self.commits + 1;
        let last_fence = self.last_fence.max(changes.last_fence());
        let Some(database) = &self.database else {
            return Err(Failure::NotKept("the file cannot be opened".to_owned()));
        };
        if let Err(error) = write(database, changes, last_fence, number) {
            self.database = None;
            self.doubt = Some(changes.clone());
            return match self.settle() {
                Ok(Some(_)) => Ok(()),
                Ok(None) => Err(Failure::NotKept(error.to_string())),
                Err(doubt) => Err(Failure::InDoubt(format!("{error}; {doubt}"))),
            };
        }
        self.commits = number;
        self.last_fence = last_fence;
        Ok(())
    }

    /// Opens the file again after an error. Gives the changes that were in doubt if they turn out
    /// to be on disk.
    ///
    /// Where the file can be read and not be written, reading settles that the changes are not in
    /// it. After a failed sync, reading proves nothing and nothing is settled until the process
    /// starts anew.
    pub(super) fn settle(&mut self) -> Result<Option<Changes>, redb::Error> {
        if self.database.is_some() {
            return Ok(None);
        }
        if self.medium.sync_failed.has_happened() {
            let failed = io::Error::other("a sync failed: mend the disk and restart");
            return Err(redb::Error::Io(failed));
        }
        let database = match (self.medium.open)() {
            Ok(database) => database,
            Err(_) if self.doubt.is_none() => return Ok(None),
            Err(error) => {
                if number(&(self.medium.look)()?, "commits")? > self.commits {
                    // They were written, and nothing says that they were synced.
                    return Err(error.into());
                }
                self.doubt = None;
                return Ok(None);
            }
        };
        let commits = number(&database, "commits")?;
        let kept = self.doubt.take().filter(|_| commits > self.commits);
        if let Some(kept) = &kept {
            self.last_fence = self.last_fence.max(kept.last_fence());
        }
        self.commits = commits;
        self.database = Some(database);
        Ok(kept)
    }
}

/// Takes what a file holds.
pub(super) trait Take {
    fn lock(&mut self, name: &LockName, record: &Record<'_>);
    fn record(&mut self, key: RecordKey, record: idempotency::Record);
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("file", &self.medium.name).finish_non_exhaustive()
    }
}

fn write(
    database: &Database,
    changes: &Changes,
    last_fence: FencingToken,
    number: u64,
) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    {
        let mut locks = transaction.open_table(LOCKS)?;
        for (name, state) in &changes.locks {
            match state.record() {
                Some(record) => {
                    let ttl = u64::try_from(record.ttl.as_millis()).unwrap_or(u64::MAX);
                    let owner = record.owner.map(Owner::as_str);
                    let (token, fence) = (record.token.as_bytes(), record.fence.get());
                    locks.insert(
                        name.as_str(),
                        (token, fence, ttl, record.acquired_at_millis, owner),
                    )?;
                }
                None => {
                    locks.remove(name.as_str())?;
                }
            }
        }
        write_records(&transaction, changes)?;
        if let Some(probing) = changes.probe {
            let mut probe = transaction.open_table(PROBE)?;
            match probing {
                Probing::Write => probe.insert((), [0; PROBE_BYTES].as_slice())?,
                Probing::TakeAway => probe.remove(())?,
            };
        }
        let mut meta = transaction.open_table(META)?;
        meta.insert("last_fence", last_fence.get())?;
        meta.insert("commits", number)?;
    }
    transaction.commit()?;
    Ok(())
}

fn write_records(transaction: &WriteTransaction, changes: &Changes) -> Result<(), redb::Error> {
    if changes.records.is_empty() {
        return Ok(());
    }
    let mut records = transaction.open_table(RECORDS)?;
    for (key, state) in &changes.records {
        match state.record() {
            Some(record) => {
                let row = record_row::encode(record).map_err(io::Error::other)?;
                records.insert(key.as_bytes(), row.as_slice())?;
            }
            None => {
                records.remove(key.as_bytes())?;
            }
        }
    }
    Ok(())
}

fn load(
    database: &Database,
    take: &mut dyn Take,
) -> Result<(u64, u64), Box<dyn std::error::Error>> {
    let (mut locks, mut records) = (0, 0);
    let transaction = database.begin_read()?;
    for row in transaction.open_table(LOCKS)?.iter()? {
        let (name, row) = row?;
        let (token, fence, ttl, acquired_at_millis, owner) = row.value();
        let owner = Owner::parse(owner.unwrap_or_default())?;
        let record = Record {
            token: TokenHash::from_bytes(*token),
            fence: FencingToken::new(fence),
            owner: owner.as_ref(),
            ttl: Duration::from_millis(ttl),
            acquired_at_millis,
        };
        take.lock(&LockName::parse(name.value())?, &record);
        locks += 1;
    }
    for row in transaction.open_table(RECORDS)?.iter()? {
        let (key, row) = row?;
        take.record(RecordKey::from_bytes(*key.value()), record_row::decode(row.value())?);
        records += 1;
    }
    Ok((locks, records))
}

/// A number of the file; 0 where it was never written.
fn number(database: &Database, name: &str) -> Result<u64, redb::Error> {
    let meta = database.begin_read()?.open_table(META)?;
    Ok(meta.get(name)?.map_or(0, |value| value.value()))
}
