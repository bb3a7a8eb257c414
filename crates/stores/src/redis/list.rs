//! The held locks, page by page, by `SCAN` of one master after the other.
//!
//! `SCAN` finds every key that is there throughout. One step of a scan may find more than a page
//! takes. Its cursor then names the step and the last lock taken of it, and the next page takes the
//! rest of the same step in order of names. A cursor names its master, and is unknown once that master
//! is retired.
//!
//! Invariant: a lock that is held throughout is on at least one page, unless Redis resizes its table
//! between two pages of one step, or a cluster moves the lock to another master meanwhile. Tested by
//! the conformance tests of listing.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bb8_redis::redis::{FromRedisValue as _, RedisError, RedisResult, Value, cmd, pipe};

use super::connection::SharedConnection;
use super::engine::{RedisEngine, time_of};
use super::failure::Failure;
use super::row::parse_row;
use super::{Keys, Pool};
use crate::optimistic::conditional::{EngineTime, Key};
use crate::optimistic::value::Value as StoredValue;
use keylatch_core::lock::{Holding, LockName, LockState};
use keylatch_core::store::{Cursor, ListLocks, Page, StoreError};

/// How many keys one `SCAN` looks at.
const KEYS_PER_SCAN: usize = 1000;
/// How many `SCAN`s one page may cost; a page that finds little ends early.
const SCANS_PER_PAGE: usize = 32;

/// A page of locks; `None` for a cursor that is not known.
pub(super) async fn page(
    engine: &RedisEngine,
    query: &ListLocks,
) -> Result<Option<Page<Holding>>, StoreError> {
    let (topology, keys) = (&engine.topology, &engine.keys);
    let masters = topology.masters();
    if masters.is_empty() {
        return Err(StoreError::Unreachable("no master is known yet".into()));
    }
    let cursor = query.cursor.as_ref().map(Cursor::as_str);
    let parse = |name: &str| LockName::stored(name).ok();
    let Some(mut position) = ScanPosition::of(cursor, &masters, parse) else {
        return Ok(None);
    };
    let mut locks = Vec::new();
    for _ in 0..SCANS_PER_PAGE {
        let mut shared = masters[position.master].1.check_out().await?;
        let (following, mut names) = scan(&mut shared, keys, query, position.step).await?;
        names.retain(|name| position.after.as_ref().is_none_or(|after| name > after));
        let room = query.limit - locks.len();
        let cut = names.len() > room;
        names.truncate(room);
        position = match names.last() {
            Some(last) if cut => ScanPosition { after: Some(last.clone()), ..position },
            _ => position.followed_by(following),
        };
        locks.extend(holders(engine, &mut shared, &names).await?);
        if cut || position.master == masters.len() || locks.len() == query.limit {
            break;
        }
    }
    Ok(Some(Page {
        entries: locks,
        next: position.text(&masters).and_then(|text| Cursor::parse(&text).ok()),
    }))
}

/// Where a listing continues.
pub(super) struct ScanPosition<T> {
    /// Which of the masters.
    pub(super) master: usize,
    /// A step of its scan, and the last name taken of that step.
    pub(super) step: u64,
    pub(super) after: Option<T>,
}

impl<T: ToString> ScanPosition<T> {
    /// The position that a cursor has as text; the first one without a cursor.
    pub(super) fn of(
        cursor: Option<&str>,
        masters: &[(String, Pool)],
        parse: impl Fn(&str) -> Option<T>,
    ) -> Option<Self> {
        let Some(cursor) = cursor else { return Some(Self { master: 0, step: 0, after: None }) };
        let mut parts = cursor.splitn(3, '.').map(Some).chain([None; 2]);
        let mut next = || parts.next().flatten().unwrap_or_default();
        let (step, after, master) = (next(), decoded(next())?, decoded(next())?);
        Some(Self {
            master: masters.iter().position(|(name, _)| *name == master)?,
            step: step.parse().ok()?,
            after: if after.is_empty() { None } else { Some(parse(&after)?) },
        })
    }

    /// The position at the next step, which is at the next master when it is 0.
    pub(super) fn followed_by(self, step: u64) -> Self {
        Self { master: self.master + usize::from(step == 0), step, after: None }
    }

    /// The position as text; `None` behind the last master.
    pub(super) fn text(&self, masters: &[(String, Pool)]) -> Option<String> {
        let (master, _) = masters.get(self.master)?;
        let after = self.after.as_ref().map(T::to_string).unwrap_or_default();
        let [after, master] = [&after, master].map(|part| URL_SAFE_NO_PAD.encode(part));
        let text = format!("{}.{after}.{master}", self.step);
        Some(text.trim_end_matches('.').to_owned())
    }
}

fn decoded(part: &str) -> Option<String> {
    String::from_utf8(URL_SAFE_NO_PAD.decode(part).ok()?).ok()
}

/// One step of the scan: the next step, and the names found, in order.
pub(super) async fn scan(
    shared: &mut SharedConnection,
    keys: &Keys,
    query: &ListLocks,
    step: u64,
) -> Result<(u64, Vec<LockName>), Failure> {
    let parse =
        |key: &[u8]| keys.lock_name(key).filter(|name| name.as_str().starts_with(&query.prefix));
    scan_keys(shared, &keys.pattern(&query.prefix), step, parse).await
}

/// One step of a scan of any keys: the next step, and what `parse` makes of those found, in order.
pub(super) async fn scan_keys<T: Ord>(
    shared: &mut SharedConnection,
    pattern: &str,
    step: u64,
    parse: impl Fn(&[u8]) -> Option<T>,
) -> Result<(u64, Vec<T>), Failure> {
    let mut scan = cmd("SCAN");
    scan.arg(step).arg("MATCH").arg(pattern).arg("COUNT").arg(KEYS_PER_SCAN);
    let SharedConnection { connection, state, .. } = shared;
    let found = state.note(scan.query_async(connection)).await?;
    let (following, found): (u64, Vec<Vec<u8>>) = found;
    let mut names: Vec<_> = found.iter().filter_map(|key| parse(key)).collect();
    names.sort_unstable();
    names.dedup();
    Ok((following, names))
}

/// The holders of the locks that were found, without those released meanwhile.
async fn holders(
    engine: &RedisEngine,
    shared: &mut SharedConnection,
    names: &[LockName],
) -> Result<Vec<Holding>, StoreError> {
    let keys = names.iter().map(|name| engine.keys.lock(name.bucket(), name));
    let (found, now) = rows(shared, keys).await?;
    let mut holders = Vec::with_capacity(names.len());
    for (name, found) in names.iter().zip(found) {
        let key = Key::Lock(name.clone());
        // Another program's is no lock, and hides none of the others.
        let row = found.ok().and_then(|found| parse_row(&key, found));
        let value = row.and_then(|row| StoredValue::<LockState>::decode(&row, None).ok());
        holders.extend(value.and_then(|value| value.live(now).holding_told(name, now)));
    }
    Ok(holders)
}

/// What is under each of these keys of one server, which may be in many slots, and what the server's
/// clock showed.
async fn rows(
    shared: &mut SharedConnection,
    keys: impl Iterator<Item = String>,
) -> Result<(Vec<RedisResult<Value>>, EngineTime), Failure> {
    let mut reads = pipe();
    reads.ignore_errors();
    for key in keys {
        reads.cmd("GET").arg(key);
    }
    reads.cmd("TIME");
    let SharedConnection { connection, state, .. } = shared;
    let mut found: Vec<RedisResult<Value>> = state.note(reads.query_async(connection)).await?;
    let clock = found.pop().unwrap_or(Ok(Value::Nil))?;
    let mut clock = Vec::<Value>::from_redis_value(clock).map_err(RedisError::from)?.into_iter();
    let now = time_of(&mut clock).map_err(RedisError::from)?;
    Ok((found, now))
}
