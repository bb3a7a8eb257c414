//! The held locks and the records, page by page, by `SCAN` of one master after the other.
//!
//! `SCAN` finds every key that is there throughout. One step of a scan may find more than a page
//! takes. Its cursor then names the step and the last key taken of it, and the next page takes the
//! rest of the same step in order of keys. A cursor names its master, and is unknown once that
//! master is retired. The unfinished records are found by their indexes, by the adapter.
//!
//! Invariant: what is there throughout is on at least one page, unless Redis resizes its table
//! between two pages of one step, or a cluster moves the key to another master meanwhile. Tested by
//! the conformance tests of listing.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bb8_redis::redis::{FromRedisValue as _, RedisError, RedisResult, Value, cmd, pipe};

use super::connection::SharedConnection;
use super::engine::{RedisEngine, time_of};
use super::failure::Failure;
use super::row::parse_row;
use super::{Keys, Pool};
use crate::optimistic::conditional::{EngineTime, Key, Row};
use crate::optimistic::value::{Kind, Value as StoredValue, moment_at};
use keylatch_core::idempotency::{RecordState, RecordSummary};
use keylatch_core::lock::{Holding, LockName, LockState};
use keylatch_core::store::{Cursor, ListLocks, ListRecords, Page, StoreError};

const KEYS_PER_SCAN: usize = 1000;
/// How many `SCAN`s one page may cost; a page that finds little ends early.
const SCANS_PER_PAGE: usize = 32;
/// How many rows a page looks at.
const LOOKS: usize = 1024;
/// How many records are read at once: one may have half a megabyte.
const RECORDS_AT_ONCE: usize = 64;
/// What a cursor of records begins with.
const RECORDS: &str = "w.";

/// A page of locks; `None` for a cursor that is not known.
pub(super) async fn locks(
    engine: &RedisEngine,
    query: &ListLocks,
) -> Result<Option<Page<Holding>>, StoreError> {
    let (keys, limit) = (&engine.keys, query.limit);
    let find = |key: &[u8]| listed_name(keys, query, key).map(Key::Lock);
    let show = |name: LockName, value: StoredValue<LockState>, now| {
        value.live(now).holding_told(&name, now)
    };
    let cursor = query.cursor.as_ref().map(Cursor::as_str);
    let walk = Walk { pattern: keys.pattern(&query.prefix), limit, at_once: limit };
    let page = engine.walk(walk, cursor, find, show).await?;
    Ok(page.map(|(entries, next)| page_of(entries, next)))
}

/// A page of records, unfinished or not, that the query's filter admits; likewise.
pub(super) async fn records(
    engine: &RedisEngine,
    query: &ListRecords,
) -> Result<Option<Page<RecordSummary>>, StoreError> {
    let (keys, limit) = (&engine.keys, query.limit);
    let cursor = query.cursor.as_ref().map(|cursor| cursor.as_str().strip_prefix(RECORDS));
    if cursor == Some(None) {
        return Ok(None);
    }
    let find = |key: &[u8]| keys.record_key(key).map(Key::Record);
    let show = |key, value: StoredValue<RecordState>, now| {
        let summary = value.state.summary(&key, &moment_at(now));
        summary.filter(|record| query.filter.admits(record))
    };
    let walk = Walk { pattern: keys.record_pattern(), limit, at_once: RECORDS_AT_ONCE };
    let page = engine.walk(walk, cursor.flatten(), find, show).await?;
    Ok(page.map(|(entries, next)| page_of(entries, next.map(|text| format!("{RECORDS}{text}")))))
}

fn page_of<T>(entries: Vec<T>, next: Option<String>) -> Page<T> {
    Page { entries, next: next.and_then(|text| Cursor::parse(&text).ok()) }
}

/// A walk over the keys of all masters.
struct Walk {
    pattern: String,
    /// How many entries a page has, and how many rows are read at once, at most.
    limit: usize,
    at_once: usize,
}

impl RedisEngine {
    /// What `show` makes of the rows of a page, and where the next one continues; `None` for a
    /// cursor that is not known.
    async fn walk<E: Kind, T>(
        &self,
        Walk { pattern, limit, at_once }: Walk,
        cursor: Option<&str>,
        find: impl Fn(&[u8]) -> Option<Key>,
        show: impl Fn(E::Key, StoredValue<E>, EngineTime) -> Option<T>,
    ) -> Result<Option<(Vec<T>, Option<String>)>, StoreError> {
        let masters = self.topology.masters();
        if masters.is_empty() {
            return Err(StoreError::Unreachable("no master is known yet".into()));
        }
        let Some(mut position) = ScanPosition::of(cursor, &masters) else { return Ok(None) };
        let (mut entries, mut looks) = (Vec::new(), 0);
        for _ in 0..SCANS_PER_PAGE {
            let mut shared = masters[position.master].1.check_out().await?;
            let (following, mut keys) =
                scan_keys(&mut shared, &pattern, position.step, &find).await?;
            keys.retain(|key| position.after.as_ref().is_none_or(|after| key > after));
            let mut taken = 0;
            while taken < keys.len() && entries.len() < limit && looks < LOOKS {
                let count = (limit - entries.len()).min(at_once).min(keys.len() - taken);
                let some = &keys[taken..taken + count];
                let (rows, now) = self.rows(&mut shared, some).await?;
                // What another program or another version wrote hides none of the others.
                let found = some.iter().zip(rows).filter_map(|(key, row)| {
                    show(E::key_of(key)?, StoredValue::decode(&row?, None).ok()?, now)
                });
                entries.extend(found);
                (taken, looks) = (taken + count, looks + count);
            }
            let is_cut = taken < keys.len();
            position = match taken.checked_sub(1) {
                Some(last) if is_cut => {
                    ScanPosition { after: Some(keys[last].clone()), ..position }
                }
                _ => position.followed_by(following),
            };
            let is_full = entries.len() >= limit || looks >= LOOKS;
            if is_cut || is_full || position.master == masters.len() {
                break;
            }
        }
        let next = position.text(&masters);
        Ok(Some((entries, next)))
    }

    /// The rows of keys of one server, which may be in many slots, and what the server's clock
    /// showed.
    async fn rows(
        &self,
        shared: &mut SharedConnection,
        keys: &[Key],
    ) -> Result<(Vec<Option<Row>>, EngineTime), Failure> {
        let mut reads = pipe();
        reads.ignore_errors();
        for key in keys {
            reads.cmd("GET").arg(self.key_of(key));
        }
        reads.cmd("TIME");
        let SharedConnection { connection, state, .. } = shared;
        let mut found: Vec<RedisResult<Value>> = state.note(reads.query_async(connection)).await?;
        let clock = found.pop().unwrap_or(Ok(Value::Nil))?;
        let mut clock =
            Vec::<Value>::from_redis_value(clock).map_err(RedisError::from)?.into_iter();
        let now = time_of(&mut clock).map_err(RedisError::from)?;
        let rows = keys.iter().zip(found).map(|(key, found)| parse_row(key, found.ok()?));
        Ok((rows.collect(), now))
    }
}

/// Where a listing continues.
struct ScanPosition {
    master: usize,
    /// A step of its scan, and the last key taken of that step.
    step: u64,
    after: Option<Key>,
}

impl ScanPosition {
    /// The position that a cursor has as text; the first one without a cursor.
    fn of(cursor: Option<&str>, masters: &[(String, Pool)]) -> Option<Self> {
        let Some(cursor) = cursor else { return Some(Self { master: 0, step: 0, after: None }) };
        let mut parts = cursor.splitn(3, '.').chain(["", ""]);
        let step = parts.next()?.parse().ok()?;
        let [after, master] =
            [parts.next()?, parts.next()?].map(|part| URL_SAFE_NO_PAD.decode(part).ok());
        let (after, master) = (after?, master?);
        Some(Self {
            master: masters.iter().position(|(name, _)| name.as_bytes() == master)?,
            step,
            after: if after.is_empty() { None } else { Some(Key::from_bytes(&after)?) },
        })
    }

    /// The position at the next step, which is at the next master when it is 0.
    fn followed_by(self, step: u64) -> Self {
        Self { master: self.master + usize::from(step == 0), step, after: None }
    }

    /// The position as text; `None` behind the last master.
    fn text(&self, masters: &[(String, Pool)]) -> Option<String> {
        let (master, _) = masters.get(self.master)?;
        let after = self.after.as_ref().map(Key::to_bytes).unwrap_or_default();
        let [after, master] = [&*after, master.as_bytes()].map(|part| URL_SAFE_NO_PAD.encode(part));
        let text = format!("{}.{after}.{master}", self.step);
        Some(text.trim_end_matches('.').to_owned())
    }
}

/// The lock that a key is of, if the query asks for it.
fn listed_name(keys: &Keys, query: &ListLocks, key: &[u8]) -> Option<LockName> {
    keys.lock_name(key).filter(|name| name.as_str().starts_with(&query.prefix))
}

/// One step of the scan: the next step, and the names found, in order.
#[cfg(feature = "redlock")]
pub(super) async fn scan(
    shared: &mut SharedConnection,
    keys: &Keys,
    query: &ListLocks,
    step: u64,
) -> Result<(u64, Vec<LockName>), Failure> {
    let find = |key: &[u8]| listed_name(keys, query, key);
    scan_keys(shared, &keys.pattern(&query.prefix), step, find).await
}

/// One step of a scan of any keys: the next step, and what `find` makes of those found, in order.
async fn scan_keys<T: Ord>(
    shared: &mut SharedConnection,
    pattern: &str,
    step: u64,
    find: impl Fn(&[u8]) -> Option<T>,
) -> Result<(u64, Vec<T>), Failure> {
    let mut scan = cmd("SCAN");
    scan.arg(step).arg("MATCH").arg(pattern).arg("COUNT").arg(KEYS_PER_SCAN);
    let SharedConnection { connection, state, .. } = shared;
    let found = state.note(scan.query_async(connection)).await?;
    let (following, found): (u64, Vec<Vec<u8>>) = found;
    let mut found: Vec<_> = found.iter().filter_map(|key| find(key)).collect();
    found.sort_unstable();
    found.dedup();
    Ok((following, found))
}
