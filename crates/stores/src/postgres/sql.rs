//! The statements, and what they give.
//!
//! One table holds every entry: `key`, a random `version`, the version that a writer saw (`was`),
//! the value, and whether a record is `finished`. A small index has the records that are not. A
//! batch is one upsert in the order of the keys, so that batches of several processes never wait
//! for each other in a circle; an `UPDATE` beside an `INSERT` would. It joins no table, so that no
//! plan changes when the table grows. A row's guard is judged when its turn comes, after the waits
//! for the rows before it. `clock_timestamp()` is the time at the row, and `now()` would be that of
//! the transaction's start. Keys are `bytea`: no encoding and no collation matters.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use keylatch_core::store::StoreError;
use tokio_postgres::Row as SqlRow;
use tokio_postgres::types::{FromSql, Type};

use crate::optimistic::conditional::{Change, EngineTime, Key, Notice, Row, TurnMark, Version};

/// What the server's clock shows, in microseconds since 1970.
const CLOCK: &str = "(extract(epoch FROM clock_timestamp()) * 1e6)::bigint";
/// The same on a server that takes writes, and no value on another one.
const CLOCK_OF_WRITABLE: &str = "CASE current_setting('transaction_read_only') WHEN 'off' THEN
    (extract(epoch FROM clock_timestamp()) * 1e6)::bigint END";

/// How many changes are announced together: each announcement costs the server and every instance
/// alike, and has to be shorter than 8,000 bytes: 363 for the longest name of a lock, and 65 for
/// [`TURNS`].
const TOGETHER: usize = 16;

/// How many turns an announcement names at most.
const TURNS: usize = 8;

/// A statement and the types of its parameters.
#[derive(Debug)]
pub(super) struct Statement {
    pub(super) text: String,
    pub(super) types: Vec<Type>,
    /// Whether it is the one of its link, which is worth preparing.
    pub(super) is_frequent: bool,
}

impl Statement {
    pub(super) fn new(text: impl Into<String>, types: impl Into<Vec<Type>>) -> Self {
        Self { text: text.into(), types: types.into(), is_frequent: false }
    }

    fn frequent(self) -> Self {
        Self { is_frequent: true, ..self }
    }
}

/// The statements over the table of one schema.
#[derive(Debug)]
pub(super) struct Sql {
    pub(super) write: Statement,
    /// The same with all changes or none: it is an error where some could not be carried out.
    pub(super) write_all: Statement,
    pub(super) read: Statement,
    pub(super) list: Statement,
    pub(super) remove: Statement,
    pub(super) marked: Statement,
    /// Whether the schema is there, whether the table is, whether the role may use it, and whether
    /// the table has the columns and the index that [`Sql::create_table`] makes.
    pub(super) check: String,
    /// Makes the schema.
    pub(super) create_schema: String,
    /// Makes the table; two processes that start at once wait for each other.
    pub(super) create_table: String,
    /// What an administrator grants to a role that may not make the table.
    pub(super) grants: String,
    /// The channel on which changed locks are announced.
    pub(super) channel: String,
}

/// The types of the parameters of an upsert.
const WRITE_TYPES: [Type; 8] = [
    Type::BYTEA_ARRAY,
    Type::INT8_ARRAY,
    Type::INT8_ARRAY,
    Type::BYTEA_ARRAY,
    Type::TIMESTAMPTZ_ARRAY,
    Type::TIMESTAMPTZ_ARRAY,
    Type::TEXT_ARRAY,
    Type::BOOL_ARRAY,
];

/// Taken while the table is made, as plain `IF NOT EXISTS` fails where two processes do it at once.
/// Behind it, no statement waits long for a lock of the table, since every other use of the table
/// waits behind.
pub(super) const CREATION_LOCK: &str =
    "SELECT pg_advisory_xact_lock(7235411), set_config('lock_timeout', '3s', true); ";

/// The records that are not finished, as the condition of their index and of whatever is to use it.
/// No key of anything else begins with `r`.
const UNFINISHED: &str = r"finished IS NOT TRUE AND key >= '\x72' AND key < '\x73'";

impl Sql {
    /// The statements for the schema of this name, of `A-Z a-z 0-9 _` alone.
    pub(super) fn new(schema: &str) -> Self {
        let table = format!("\"{schema}\".entries");
        let channel = format!("{schema}_changes");
        let read = format!(
            "SELECT {CLOCK_OF_WRITABLE}, k.key, k.version, k.value
            FROM (SELECT 1) AS one LEFT JOIN {table} AS k ON k.key = ANY($1)"
        );
        let list = format!(
            "SELECT {CLOCK_OF_WRITABLE}, k.key, k.version, k.value
            FROM (SELECT 1) AS one LEFT JOIN LATERAL (
                SELECT key, version, value FROM {table}
                WHERE key >= $1 AND key < $2 AND key > $3 ORDER BY key LIMIT $4) AS k ON true
            ORDER BY k.key"
        );
        let remove = format!(
            "DELETE FROM {table} WHERE key IN (
                SELECT k.key FROM {table} AS k
                JOIN unnest($1::bytea[], $2::int8[]) AS d(key, version) USING (key, version)
                ORDER BY k.key FOR UPDATE OF k SKIP LOCKED)"
        );
        let write = write(&table, &channel);
        let page = [Type::BYTEA, Type::BYTEA, Type::BYTEA, Type::INT8];
        Self {
            write: Statement::new(write, WRITE_TYPES).frequent(),
            write_all: Statement::new(write_all(&table, &channel), WRITE_TYPES).frequent(),
            read: Statement::new(read, [Type::BYTEA_ARRAY]).frequent(),
            list: Statement::new(list, page),
            remove: Statement::new(remove, [Type::BYTEA_ARRAY, Type::INT8_ARRAY]),
            marked: Statement::new(marked(&table), [Type::BYTEA, Type::INT8]),
            check: check(schema),
            create_schema: format!("CREATE SCHEMA IF NOT EXISTS \"{schema}\"; "),
            create_table: create_table(&table),
            grants: grants(schema, &table),
            channel,
        }
    }
}

fn write(table: &str, channel: &str) -> String {
    upsert(table, channel, ["", OPEN, ""])
}

/// An upsert like [`write()`], and an error if it left a row out, so that the server undoes the
/// others. The rows are compared once before, as the statement finds them, so that the error is
/// rare: it comes only where another process changed a row after that. None is locked ahead of its
/// turn: with two orders of waiting in one statement, two processes could wait for each other.
fn write_all(table: &str, channel: &str) -> String {
    let found = format!(
        "found AS MATERIALIZED (
            SELECT bool_and({OPEN} AND coalesce(
                (SELECT k.version = c.was FROM {table} AS k WHERE k.key = c.key), true)) AS is_as_named
            FROM c),"
    );
    let is_written = format!("(SELECT is_as_named FROM found) AND {OPEN}");
    let or_error = ", 1 / (SELECT (count(*) IN (0, cardinality($1)))::int FROM w)";
    upsert(table, channel, [&found, &is_written, or_error])
}

/// What the clock says of a change: its guard holds.
const OPEN: &str = "clock_timestamp() >= since AND clock_timestamp() < until";

/// An upsert of the changes that `is_written` admits, which may ask for what `found` is; `or_error`
/// is one more column.
fn upsert(table: &str, channel: &str, [found, is_written, or_error]: [&str; 3]) -> String {
    format!(
        "WITH c AS MATERIALIZED (
            SELECT * FROM unnest($1::bytea[], $2::int8[], $3::int8[], $4::bytea[],
                $5::timestamptz[], $6::timestamptz[], $7::text[], $8::bool[])
                AS c(key, version, was, value, since, until, say, finished) ORDER BY key),
        {found}
        w AS (
            INSERT INTO {table} AS k (key, version, was, value, finished)
            SELECT key, version, was, value, finished FROM c WHERE {is_written}
            ON CONFLICT (key) DO UPDATE
            SET version = excluded.version, was = excluded.was, value = excluded.value,
                finished = excluded.finished
            WHERE k.version = excluded.was
            RETURNING key),
        s AS (
            SELECT pg_notify('{channel}', string_agg(say, ',')) FROM (
                SELECT c.say, row_number() OVER () / {TOGETHER} AS part
                FROM w JOIN c USING (key) WHERE c.say IS NOT NULL) AS said GROUP BY part)
        SELECT {CLOCK}, ARRAY(SELECT key FROM w), (SELECT count(*) FROM s){or_error}"
    )
}

/// The keys of the unfinished records, in the form of rows.
fn marked(table: &str) -> String {
    format!(
        "SELECT {CLOCK_OF_WRITABLE}, k.key, 0::int8, ''::bytea
        FROM (SELECT 1) AS one LEFT JOIN LATERAL (
            SELECT key FROM {table} WHERE {UNFINISHED} AND key > $1 ORDER BY key LIMIT $2) AS k ON true
        ORDER BY k.key"
    )
}

/// A row is written over and over, and but for the end of a record's run nothing changes that an
/// index depends on, so that the new row goes beside the old one in its page; the dead ones go
/// early, before the table grows by them. A lock has no value in `finished`, so that no write of a
/// lock changes what an index depends on.
fn create_table(table: &str) -> String {
    format!(
        "CREATE TABLE IF NOT EXISTS {table} (
            key bytea PRIMARY KEY, version bigint NOT NULL, was bigint NOT NULL,
            value bytea NOT NULL, finished boolean)
        WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
            autovacuum_vacuum_cost_delay = 0);
        CREATE INDEX IF NOT EXISTS entries_unfinished ON {table} (key) WHERE {UNFINISHED}"
    )
}

fn check(schema: &str) -> String {
    let may = ["SELECT", "INSERT", "UPDATE", "DELETE"]
        .map(|privilege| format!("has_table_privilege(c.oid, '{privilege}')"))
        .join(" AND ");
    // By identity: a role that may not use the schema cannot even name the table.
    format!(
        "SELECT n.oid IS NOT NULL, c.oid IS NOT NULL,
            coalesce(has_schema_privilege(n.oid, 'USAGE') AND {may}, false),
            (SELECT count(*) FROM pg_attribute AS a WHERE a.attrelid = c.oid AND NOT a.attisdropped
                AND (a.attname, a.atttypid::regtype::text) IN (('key', 'bytea'), ('version', 'bigint'),
                    ('was', 'bigint'), ('value', 'bytea'), ('finished', 'boolean'))) = 5
            AND EXISTS (SELECT FROM pg_index AS x JOIN pg_class AS i ON i.oid = x.indexrelid
                WHERE x.indrelid = c.oid AND x.indisvalid AND i.relname = 'entries_unfinished')
        FROM (SELECT 1) AS one LEFT JOIN pg_namespace AS n ON n.nspname = '{schema}'
        LEFT JOIN pg_class AS c ON c.relnamespace = n.oid AND c.relname = 'entries'"
    )
}

fn grants(schema: &str, table: &str) -> String {
    format!(
        "either CREATE SCHEMA \"{schema}\" AUTHORIZATION role, or, where the table is there, GRANT USAGE \
         ON SCHEMA \"{schema}\" TO role and GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO role"
    )
}

/// The parameters of a batch, a column each.
#[derive(Debug, Default)]
pub(super) struct WriteColumns {
    pub(super) keys: Vec<Vec<u8>>,
    pub(super) versions: Vec<i64>,
    pub(super) was: Vec<i64>,
    pub(super) values: Vec<Vec<u8>>,
    pub(super) since: Vec<SystemTime>,
    pub(super) until: Vec<SystemTime>,
    pub(super) say: Vec<Option<String>>,
    pub(super) finished: Vec<Option<bool>>,
}

impl WriteColumns {
    /// The columns of `changes`, whose new versions are `versions`.
    pub(super) fn new(changes: &[Change], versions: Vec<i64>) -> Self {
        let mut columns = Self { versions, ..Self::default() };
        for (change, version) in changes.iter().zip(&columns.versions) {
            columns.was.push(change.was.map_or(0, column_of));
            columns.values.push(change.value.clone());
            columns.since.push(UNIX_EPOCH + change.guard.from);
            columns.until.push(UNIX_EPOCH + change.guard.until);
            columns.say.push(announcement(&change.key, *version, &change.outline.turns));
            let is_record = matches!(change.key, Key::Record(_));
            columns.finished.push(is_record.then_some(!change.mark.is));
            columns.keys.push(change.key.to_bytes());
        }
        columns
    }
}

/// What a change of a lock announces to other processes: its version and key, and behind it whose
/// turn it brings, unless it is that of many. Changes of other rows are not announced.
fn announcement(key: &Key, version: i64, turns: &[TurnMark]) -> Option<String> {
    use base64::Engine as _;
    let Key::Lock(_) = key else { return None };
    let key = base64::engine::general_purpose::STANDARD_NO_PAD.encode(key.to_bytes());
    let marks: String = turns.iter().map(|TurnMark(mark)| format!("{mark:08x}")).collect();
    let marks = if turns.len() > TURNS { String::new() } else { format!(" {marks}") };
    Some(format!("{version} {key}{marks}"))
}

/// What an announcement says. What is no announcement of this version says nothing.
pub(super) fn parse_announcement(payload: &str) -> Vec<Notice> {
    payload.split(',').filter_map(parse_change).collect()
}

fn parse_change(said: &str) -> Option<Notice> {
    use base64::Engine as _;
    let mut parts = said.splitn(3, ' ');
    let version = version_of(parts.next()?.parse().ok()?);
    let key = base64::engine::general_purpose::STANDARD_NO_PAD.decode(parts.next()?).ok()?;
    let key = Key::from_bytes(&key)?;
    Some(match parts.next() {
        Some(marks) => Notice::Turns(key, version, parse_marks(marks)?),
        None => Notice::Changed(key, Some(version)),
    })
}

fn parse_marks(marks: &str) -> Option<Vec<TurnMark>> {
    let parse = |mark| u32::from_str_radix(std::str::from_utf8(mark).ok()?, 16).ok().map(TurnMark);
    marks.as_bytes().chunks(8).map(parse).collect()
}

/// Rows with the bytes of their keys.
pub(super) type KeyedRows = Vec<(Vec<u8>, Row)>;

/// The version that a column has.
pub(super) fn version_of(column: i64) -> Version {
    Version(column.cast_unsigned().into())
}

/// The column that has a version: versions are this store's own, and have 64 bits.
pub(super) fn column_of(version: Version) -> i64 {
    u64::try_from(version.0).unwrap_or_default().cast_signed()
}

/// The rows of a reading or a listing, and what the clock showed. It is an error if the server
/// takes no writes: what it has is old.
pub(super) fn rows_of(rows: &[SqlRow]) -> Result<(KeyedRows, EngineTime), StoreError> {
    let (mut found, mut now) = (Vec::with_capacity(rows.len()), Duration::ZERO);
    for row in rows {
        let shown: Option<i64> = get(row, 0)?;
        let read_only = || StoreError::Unreachable("the server takes no writes".into());
        now = time_of(shown.ok_or_else(read_only)?);
        let key: Option<Vec<u8>> = get(row, 1)?;
        if let Some(key) = key {
            let version = version_of(get(row, 2)?);
            found.push((key, Row { version, value: get(row, 3)? }));
        }
    }
    Ok((found, now))
}

pub(super) fn get<'a, T: FromSql<'a>>(row: &'a SqlRow, column: usize) -> Result<T, StoreError> {
    row.try_get(column).map_err(|error| StoreError::Lost(error.into()))
}

/// A time that the server's clock showed.
pub(super) fn time_of(micros: i64) -> EngineTime {
    Duration::from_micros(u64::try_from(micros).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use keylatch_core::lock::LockName;

    use super::*;

    #[test]
    fn announcement_names_the_turns_unless_they_are_many() {
        let [one, other] = ["deploy", "x"].map(|name| Key::Lock(LockName::parse(name).unwrap()));
        let turns = [TurnMark(7), TurnMark(u32::MAX)];
        let said = [
            announcement(&one, 5, &turns).unwrap(),
            announcement(&other, 6, &[]).unwrap(),
            announcement(&one, 7, &[TurnMark(1); TURNS + 1]).unwrap(),
        ];
        let [five, six, seven] = [5, 6, 7].map(version_of);
        let heard = [
            Notice::Turns(one.clone(), five, turns.to_vec()),
            Notice::Turns(other, six, Vec::new()),
            Notice::Changed(one, Some(seven)),
        ];
        assert_eq!(parse_announcement(&said.join(",")), heard);
    }

    #[test]
    fn announcements_that_go_together_are_shorter_than_the_server_takes() {
        let name = Key::Lock(LockName::parse(&"a".repeat(LockName::MAX_BYTES)).unwrap());
        let longest = announcement(&name, i64::MAX, &[TurnMark(u32::MAX); TURNS]).unwrap();
        assert!((longest.len() + 1) * TOGETHER < 8000, "{} bytes", longest.len());
    }
}
