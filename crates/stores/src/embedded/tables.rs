//! What the file holds, as SQL: one table of held locks, one of records, and what the file says of
//! itself.
//!
//! The rows are opaque here (`row.rs` reads them). Every statement that the writer needs is
//! prepared once. Invariants: a file of another format is not written; a record has one row, that
//! of its last run. Tested in `crates/stores/tests/faults/damage.rs`.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OptionalExtension as _, Params, Row, ffi};

use super::row::{
    AgeRow, FORMAT, Head, RowError, RunKey, append_checksum, decode, encode, lock_key, lock_name,
    record_in_memory, record_key, record_of_run, run_key, verify_checksum,
};
use crate::table::{Entries, Fill, Table};
use keylatch_core::entry::Entry as _;
use keylatch_core::idempotency::{RecordKey, RecordState};
use keylatch_core::lock::{FencingToken, LockState};

const CREATE: &str = "
    PRAGMA locking_mode = EXCLUSIVE;
    PRAGMA page_size = 4096;
    PRAGMA auto_vacuum = INCREMENTAL;
    PRAGMA journal_mode = WAL;
    CREATE TABLE head (key BLOB PRIMARY KEY, value BLOB NOT NULL) STRICT, WITHOUT ROWID;
    CREATE TABLE locks (key BLOB PRIMARY KEY, value BLOB NOT NULL) STRICT, WITHOUT ROWID;
    CREATE TABLE records (key BLOB PRIMARY KEY, value BLOB NOT NULL) STRICT, WITHOUT ROWID;
    CREATE TABLE probe (key BLOB PRIMARY KEY, value BLOB NOT NULL) STRICT, WITHOUT ROWID;
";

/// The lock on the file is taken before the log is opened, so that its index needs no shared
/// memory; nothing is written when it is closed; and the log goes into the file only when that is
/// asked for.
const CONFIGURE: &str = "
    PRAGMA locking_mode = EXCLUSIVE;
    PRAGMA synchronous = FULL;
    PRAGMA wal_autocheckpoint = 0;
    PRAGMA temp_store = MEMORY;
";

/// The statements on the rows of a table.
#[derive(Debug)]
pub(super) struct RowSql {
    read: &'static str,
    put: &'static str,
    remove: &'static str,
}

macro_rules! rows_of {
    ($table:literal) => {
        &RowSql {
            read: concat!("SELECT value FROM ", $table, " WHERE key = ?1"),
            put: concat!("INSERT OR REPLACE INTO ", $table, " VALUES (?1, ?2)"),
            remove: concat!("DELETE FROM ", $table, " WHERE key = ?1"),
        }
    };
}

pub(super) const LOCKS: &RowSql = rows_of!("locks");
const RECORDS: &RowSql = rows_of!("records");
const HEADS: &RowSql = rows_of!("head");
const PROBES: &RowSql = rows_of!("probe");
/// The key of the row in `head`.
const HEAD: &[u8] = b"head";
/// What the keys begin with, in the same table, of the rows with the ages of records.
const AGE: &[u8] = b"age ";
/// What is written and taken away again to see whether there is room: more than a usual transaction
/// takes, so that one that fails is not followed by a probe that fits.
const PROBE_BYTES: usize = 64 * 1024;
/// How many pages of the file one step gives back.
const SLICE: usize = 256;

#[derive(Debug, Clone, Default)]
pub(super) struct BatchChanges {
    pub(super) entries: Entries,
    /// The runs that these records had, where they have another one now, or none.
    pub(super) last_runs: Vec<RunKey>,
    /// The ages of records that do not change.
    pub(super) ages: BTreeMap<RecordKey, AgeRow>,
    /// The last fencing token of each bucket that gave one.
    pub(super) fences: BTreeMap<u8, FencingToken>,
}

/// A row as changes leave it: where it is, its key, and its value if it is there.
type RowChange = (&'static RowSql, Vec<u8>, Option<Vec<u8>>);

impl BatchChanges {
    /// The rows that they write and remove.
    fn rows(&self) -> impl Iterator<Item = Result<RowChange, RowError>> {
        let locks = self.entries.locks.iter();
        let locks = locks.map(|(name, state)| Ok((LOCKS, lock_key(name), encode(state)?)));
        let last_runs = self.last_runs.iter().map(|run| Ok((RECORDS, run_key(run), None)));
        // Where a record becomes empty, its row is that of a last run. The age of an outcome before
        // stays in its row: `AgeRow::apply` sees of which outcome it is.
        let records = self.entries.records.iter().map(|(key, state)| match state.fencing_token() {
            Some(last) => Ok((RECORDS, run_key(&(*key, last)), encode(state)?)),
            None => Ok((HEADS, age_key(key.as_bytes()), None)),
        });
        let ages = self.ages.iter();
        let ages = ages.map(|(key, age)| Ok((HEADS, age_key(key.as_bytes()), Some(age.encode()?))));
        locks.chain(last_runs).chain(records).chain(ages)
    }

    pub(super) fn last_fencing_token(&self) -> FencingToken {
        self.fences.values().copied().max().unwrap_or_default()
    }
}

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum FileError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("{0}")]
    Damaged(String),
    #[error("it has format {0}")]
    OtherFormat(u64),
    #[error(transparent)]
    Row(#[from] RowError),
    #[error(transparent)]
    Sqlite(#[from] rusqlite::Error),
}

impl FileError {
    /// Whether a sync failed. After that, what is read is no proof of what is on disk: Linux marks
    /// pages that it could not write as clean, and no later sync writes them (Rebello et al., "Can
    /// Applications Recover from fsync Failures?", ATC 2020).
    pub(super) fn is_failed_sync(&self) -> bool {
        let Self::Sqlite(rusqlite::Error::SqliteFailure(error, _)) = self else { return false };
        [ffi::SQLITE_IOERR_FSYNC, ffi::SQLITE_IOERR_DIR_FSYNC].contains(&error.extended_code)
    }

    /// Whether there was no room for what was to be written: on the disk, or within the limit of a
    /// file.
    pub(super) fn is_full(&self) -> bool {
        let Self::Sqlite(rusqlite::Error::SqliteFailure(error, _)) = self else { return false };
        error.code == ErrorCode::DiskFull || error.extended_code == ffi::SQLITE_IOERR_WRITE
    }

    /// Whether the file is at fault, and not what it is on.
    pub(super) fn is_damage(&self) -> bool {
        use ErrorCode::{
            CannotOpen, DatabaseBusy, DatabaseLocked, DiskFull, FileLockingProtocolFailed,
            NoLargeFileSupport, OutOfMemory, PermissionDenied, ReadOnly, SystemIoFailure,
        };
        match self {
            Self::Io(_) => false,
            Self::Damaged(_) | Self::OtherFormat(_) | Self::Row(_) => true,
            Self::Sqlite(rusqlite::Error::SqliteFailure(error, _)) => !matches!(
                error.code,
                CannotOpen
                    | DatabaseBusy
                    | DatabaseLocked
                    | DiskFull
                    | FileLockingProtocolFailed
                    | NoLargeFileSupport
                    | OutOfMemory
                    | PermissionDenied
                    | ReadOnly
                    | SystemIoFailure
            ),
            Self::Sqlite(_) => true,
        }
    }
}

/// Writes the tables into a new file.
pub(super) fn create(connection: &Connection) -> Result<(), FileError> {
    connection.execute_batch(CREATE)?;
    write_head(connection, &Head { format: FORMAT, fence_limit: 0 })
}

/// Makes a connection this process's alone, without a word about what it is connected to.
pub(super) fn configure(connection: &Connection) -> Result<(), FileError> {
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    connection.execute_batch(CONFIGURE)?;
    Ok(())
}

/// Makes a connection ready for writing. What the log holds is in the file when this returns, and
/// synced: a process that was killed may have left what it never synced. A file of another format,
/// or of another program, stays as it is.
pub(super) fn prepare(connection: &Connection) -> Result<(), FileError> {
    configure(connection)?;
    let Head { format, .. } = head(connection)?;
    if format != FORMAT {
        return Err(FileError::OtherFormat(format));
    }
    let mode: String = connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
    if mode != "wal" {
        return Err(FileError::Damaged(format!("its journal is {mode} and no log")));
    }
    empty_log(connection)
}

/// Puts what the log holds into the file.
pub(super) fn checkpoint(connection: &Connection) -> Result<(), FileError> {
    connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))?;
    Ok(())
}

/// The same, and leaves nothing in the log.
pub(super) fn empty_log(connection: &Connection) -> Result<(), FileError> {
    let busy: bool =
        connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))?;
    if busy { Err(io::Error::from(io::ErrorKind::ResourceBusy).into()) } else { Ok(()) }
}

/// Gives some of the file's free pages back, if more than a fifth of it is free. Whether it did.
pub(super) fn shrink(connection: &Connection) -> Result<bool, FileError> {
    let number = |name| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let free = number("freelist_count")?;
    if free * 5 <= number("page_count")? {
        return Ok(false);
    }
    let mut slice = connection.prepare(&format!("PRAGMA incremental_vacuum({SLICE})"))?;
    let mut pages = slice.query([])?;
    // Each is a row without columns.
    while pages.next()?.is_some() {}
    drop(pages);
    // A file that was copied by means of SQL may be one that never shrinks.
    Ok(number("freelist_count")? < free)
}

/// Fails where the structure of the file is not whole.
pub(super) fn check(connection: &Connection) -> Result<(), FileError> {
    let found: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    if found == "ok" { Ok(()) } else { Err(FileError::Damaged(found)) }
}

/// What the file says of itself.
pub(super) fn head(connection: &Connection) -> Result<Head, FileError> {
    let mut statement = connection.prepare_cached(HEADS.read)?;
    let row: Vec<u8> = statement.query_row([HEAD], |row| row.get(0))?;
    Ok(postcard::from_bytes(verify_checksum(HEAD, &row)?).map_err(RowError::from)?)
}

pub(super) fn write_head(connection: &Connection, head: &Head) -> Result<(), FileError> {
    let value = postcard::to_allocvec(head).map_err(RowError::from)?;
    put(connection, HEADS, HEAD, value)
}

/// Writes one transaction and syncs it.
pub(super) fn write(
    connection: &Connection,
    changes: &BatchChanges,
    head: Option<&Head>,
) -> Result<(), FileError> {
    run(connection, "BEGIN IMMEDIATE", [])?;
    for row in changes.rows() {
        match row? {
            (sql, key, Some(value)) => put(connection, sql, &key, value)?,
            (sql, key, None) => remove(connection, sql, &key)?,
        }
    }
    if let Some(head) = head {
        write_head(connection, head)?;
    }
    run(connection, "COMMIT", [])
}

/// Writes a row that nothing reads, and removes it.
pub(super) fn probe(connection: &Connection) -> Result<(), FileError> {
    let row = vec![0; PROBE_BYTES];
    // Each is a transaction of its own.
    put(connection, PROBES, b"probe", row)?;
    remove(connection, PROBES, b"probe")
}

/// Whether the file says of all that changes what the changes make of it.
pub(super) fn has(connection: &Connection, changes: &BatchChanges) -> Result<bool, FileError> {
    for row in changes.rows() {
        let (sql, key, value) = row?;
        let mut statement = connection.prepare_cached(sql.read)?;
        let found: Option<Vec<u8>> = statement.query_row([&key], |row| row.get(0)).optional()?;
        if found != value.map(|value| append_checksum(&key, value)) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Puts every lock and every record into `table`, but for long responses; gives the number of each.
pub(super) fn load(connection: &Connection, table: &Table) -> Result<(u64, u64), FileError> {
    let now = table.now();
    let mut filling = Fill::<LockState>::of(table);
    let locks = each_row(connection, "SELECT key, value FROM locks", |key, value| {
        filling.add(lock_name(key)?, decode(value, now)?);
        Ok(())
    })?;
    filling.finish();
    let records = load_records(connection, table, now)?;
    let sql = "SELECT key, value FROM head WHERE substr(key, 1, 4) = CAST('age ' AS BLOB)";
    each_row(connection, sql, |key, value| {
        let key = record_key(key.strip_prefix(AGE).unwrap_or_default())?;
        let (state, _) = table.look::<RecordState>(&key);
        if let Some(aged) = AgeRow::decode(value)?.apply(&state, now) {
            table.install(&key, aged);
        }
        Ok(())
    })?;
    Ok((locks, records))
}

/// The rows of records are in the order of their runs, and a table is filled bucket by bucket, so
/// that what is in memory twice is one bucket and not all.
fn load_records(connection: &Connection, table: &Table, now: Duration) -> Result<u64, FileError> {
    let mut buckets = vec![Vec::new(); 1 + usize::from(u8::MAX)];
    let count = each_row(connection, "SELECT key, value FROM records", |row, value| {
        let key = record_of_run(row)?;
        let state = record_in_memory(decode(value, now)?);
        buckets[usize::from(key.bucket())].push((key, state));
        Ok(())
    })?;
    let mut filling = Fill::<RecordState>::of(table);
    for (key, state) in buckets.into_iter().flatten() {
        filling.add(key, state);
    }
    filling.finish();
    Ok(count)
}

/// The record of a run, as it was when its row was written; `None` where there is no row.
pub(super) fn record(
    connection: &Connection,
    run: &RunKey,
) -> Result<Option<RecordState>, FileError> {
    let key = run_key(run);
    let mut statement = connection.prepare_cached(RECORDS.read)?;
    let mut rows = statement.query([&key])?;
    let Some(row) = rows.next()? else { return Ok(None) };
    Ok(Some(decode(verify_checksum(&key, blob(row, 0)?)?, Duration::ZERO)?))
}

fn age_key(key: &[u8]) -> Vec<u8> {
    [AGE, key].concat()
}

fn each_row(
    connection: &Connection,
    sql: &str,
    mut read: impl FnMut(&[u8], &[u8]) -> Result<(), RowError>,
) -> Result<u64, FileError> {
    let mut statement = connection.prepare(sql)?;
    let (mut rows, mut count) = (statement.query([])?, 0);
    while let Some(row) = rows.next()? {
        let (key, value) = (blob(row, 0)?, blob(row, 1)?);
        read(key, verify_checksum(key, value)?)?;
        count += 1;
    }
    Ok(count)
}

fn blob<'a>(row: &'a Row<'_>, column: usize) -> Result<&'a [u8], FileError> {
    let blob = row.get_ref(column)?.as_blob();
    blob.map_err(|error| FileError::Damaged(error.to_string()))
}

pub(super) fn put(
    connection: &Connection,
    sql: &RowSql,
    key: &[u8],
    value: Vec<u8>,
) -> Result<(), FileError> {
    run(connection, sql.put, (key, append_checksum(key, value)))
}

fn remove(connection: &Connection, sql: &RowSql, key: &[u8]) -> Result<(), FileError> {
    run(connection, sql.remove, [key])
}

fn run(connection: &Connection, sql: &str, parameters: impl Params) -> Result<(), FileError> {
    connection.prepare_cached(sql)?.execute(parameters)?;
    Ok(())
}
