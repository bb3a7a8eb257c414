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
    AgeRow, FORMAT, Head, RowError, RunKey, append_checksum, decode_lock, decode_record,
    encode_lock, encode_record, lock_key, lock_name, record_in_memory, record_key, record_of_run,
    run_key, verify_checksum,
};
use crate::table::{Fill, Table};
use keylatch_core::entry::Entry as _;
use keylatch_core::idempotency::{RecordKey, RecordState};
use keylatch_core::lock::{FencingToken, LockName, LockState};

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

pub(super) const PUT_LOCK: &str = "INSERT OR REPLACE INTO locks VALUES (?1, ?2)";
const READ_RECORD: &str = "SELECT value FROM records WHERE key = ?1";
const PUT_RECORD: &str = "INSERT OR REPLACE INTO records VALUES (?1, ?2)";
const REMOVE_RECORD: &str = "DELETE FROM records WHERE key = ?1";
const PUT_AGE: &str = "INSERT OR REPLACE INTO head VALUES (?1, ?2)";
const REMOVE_AGE: &str = "DELETE FROM head WHERE key = ?1";
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
    pub(super) locks: BTreeMap<LockName, LockState>,
    pub(super) records: BTreeMap<RecordKey, RecordState>,
    /// The runs that these records had, where they have another one now, or none.
    pub(super) last_runs: Vec<RunKey>,
    /// The ages of records that do not change.
    pub(super) ages: BTreeMap<RecordKey, AgeRow>,
    /// The last fencing token of each bucket that gave one.
    pub(super) fences: BTreeMap<u8, FencingToken>,
}

impl BatchChanges {
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
    let mut statement = connection.prepare_cached("SELECT value FROM head WHERE key = ?1")?;
    let row: Vec<u8> = statement.query_row([HEAD], |row| row.get(0))?;
    Ok(postcard::from_bytes(verify_checksum(HEAD, &row)?).map_err(RowError::from)?)
}

pub(super) fn write_head(connection: &Connection, head: &Head) -> Result<(), FileError> {
    let value = postcard::to_allocvec(head).map_err(RowError::from)?;
    put(connection, "INSERT OR REPLACE INTO head VALUES (?1, ?2)", HEAD, value)
}

/// Writes one transaction and syncs it.
pub(super) fn write(
    connection: &Connection,
    changes: &BatchChanges,
    head: Option<&Head>,
) -> Result<(), FileError> {
    run(connection, "BEGIN IMMEDIATE", [])?;
    for (name, state) in &changes.locks {
        put_lock(connection, &lock_key(name), state)?;
    }
    for run in &changes.last_runs {
        remove(connection, REMOVE_RECORD, &run_key(run))?;
    }
    for (key, state) in &changes.records {
        put_record(connection, key, state)?;
    }
    for (key, age) in &changes.ages {
        put(connection, PUT_AGE, &age_key(key.as_bytes()), age.encode()?)?;
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
    put(connection, "INSERT OR REPLACE INTO probe VALUES (?1, ?2)", b"probe", row)?;
    remove(connection, "DELETE FROM probe WHERE key = ?1", b"probe")
}

/// Whether the file says of all that changes what the changes make of it.
pub(super) fn has(connection: &Connection, changes: &BatchChanges) -> Result<bool, FileError> {
    let says = |sql, key: &[u8], value: Option<Vec<u8>>| {
        let mut statement = connection.prepare_cached(sql)?;
        let found: Option<Vec<u8>> = statement.query_row([key], |row| row.get(0)).optional()?;
        Ok::<_, FileError>(found == value.map(|value| append_checksum(key, value)))
    };
    for (name, state) in &changes.locks {
        let sql = "SELECT value FROM locks WHERE key = ?1";
        if !says(sql, &lock_key(name), encode_lock(state)?)? {
            return Ok(false);
        }
    }
    let runs = changes.records.iter().filter_map(|(key, state)| Some((run_of(key, state)?, state)));
    for (run, state) in runs {
        if !says(READ_RECORD, &run_key(&run), encode_record(state)?)? {
            return Ok(false);
        }
    }
    for run in &changes.last_runs {
        if !says(READ_RECORD, &run_key(run), None)? {
            return Ok(false);
        }
    }
    for (key, age) in &changes.ages {
        let sql = "SELECT value FROM head WHERE key = ?1";
        if !says(sql, &age_key(key.as_bytes()), Some(age.encode()?))? {
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
        filling.add(lock_name(key)?, decode_lock(value, now)?);
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
        let state = record_in_memory(decode_record(value, now)?);
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
    let mut statement = connection.prepare_cached(READ_RECORD)?;
    let mut rows = statement.query([&key])?;
    let Some(row) = rows.next()? else { return Ok(None) };
    Ok(Some(decode_record(verify_checksum(&key, blob(row, 0)?)?, Duration::ZERO)?))
}

/// The last run of a record, if there is one.
fn run_of(key: &RecordKey, state: &RecordState) -> Option<RunKey> {
    Some((*key, state.fencing_token()?))
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

fn put_lock(connection: &Connection, key: &[u8], state: &LockState) -> Result<(), FileError> {
    match encode_lock(state)? {
        Some(row) => put(connection, PUT_LOCK, key, row),
        None => remove(connection, "DELETE FROM locks WHERE key = ?1", key),
    }
}

/// Writes the row of a record's last run, or removes the age of a record that is empty. The rows of
/// runs before are removed as [`BatchChanges::last_runs`].
fn put_record(
    connection: &Connection,
    key: &RecordKey,
    state: &RecordState,
) -> Result<(), FileError> {
    if let Some((last, row)) = run_of(key, state).zip(encode_record(state)?) {
        // The age of an outcome before stays in its row: `AgeRow::apply` sees of which outcome it
        // is.
        return put(connection, PUT_RECORD, &run_key(&last), row);
    }
    remove(connection, REMOVE_AGE, &age_key(key.as_bytes()))
}

pub(super) fn put(
    connection: &Connection,
    sql: &str,
    key: &[u8],
    value: Vec<u8>,
) -> Result<(), FileError> {
    run(connection, sql, (key, append_checksum(key, value)))
}

fn remove(connection: &Connection, sql: &str, key: &[u8]) -> Result<(), FileError> {
    run(connection, sql, [key])
}

fn run(connection: &Connection, sql: &str, parameters: impl Params) -> Result<(), FileError> {
    connection.prepare_cached(sql)?.execute(parameters)?;
    Ok(())
}
