//! Pages of what an engine has: the held locks, and the records.
//!
//! A page of unfinished records asks the engine for the keys of marked rows and reads these rows,
//! so what is done costs nothing. An engine may name a row too many: what a row says counts. Any
//! other page of records walks over all of their rows. Both look at a limited number of rows, so a
//! page may be short. Tested by the conformance tests of listing, and what a page costs in
//! `tests/stores/conditional.rs`.

use futures_util::future::try_join_all;
use keylatch_core::idempotency::{RecordKey, RecordState, RecordSummary};
use keylatch_core::lock::{Holding, LockState, Moment};
use keylatch_core::store::{ListLocks, ListRecords, Page, StoreError};

use super::conditional::{ConditionalStore, EngineTime, Key, Listing, Removal, Row, Version};
use super::value::{Kind as _, Value};
use crate::cursor::{
    decode_lock_cursor, decode_record_cursor, encode_lock_cursor, encode_record_cursor,
};

/// How many rows are read at once, at least and at most: a record may have half a megabyte.
const ROWS: (usize, usize) = (8, 64);
/// How many rows a page of records looks at.
const LOOKS: usize = 1024;

/// A page of the held locks; `None` for a cursor that no listing gave.
pub(super) async fn locks(
    engine: &dyn ConditionalStore,
    query: &ListLocks,
) -> Result<Option<Page<Holding>>, StoreError> {
    let Some(after) = decode_lock_cursor(query.cursor.as_ref()) else { return Ok(None) };
    let after = after.map(Key::Lock);
    let prefix = [Key::LOCKS, query.prefix.as_bytes()].concat();
    let listing = engine.list(&prefix, after.as_ref(), query.limit).await?;
    let last = listing.rows.last().filter(|_| listing.rows.len() == query.limit);
    let next = last.and_then(|(key, _)| encode_lock_cursor(&LockState::key_of(key)?));
    let holdings = listing.rows.iter().filter_map(|(key, row)| {
        let name = LockState::key_of(key)?;
        let value = Value::<LockState>::decode(row, engine.timeline()).ok()?;
        value.live(listing.now).holding_told(&name, listing.now)
    });
    Ok(Some(Page { entries: holdings.collect(), next }))
}

/// A page of records; `None` for a cursor that no listing gave.
pub(super) async fn records(
    engine: &dyn ConditionalStore,
    query: &ListRecords,
) -> Result<Option<Page<RecordSummary>>, StoreError> {
    let Some(mut after) = decode_record_cursor(query.cursor.as_ref()) else { return Ok(None) };
    let (mut entries, mut looks) = (Vec::new(), 0);
    loop {
        let count = (query.limit - entries.len()).clamp(ROWS.0, ROWS.1);
        let RowPage { rows, last, now } = look(engine, query, after, count).await?;
        for (key, row) in rows {
            looks += 1;
            after = Some(key);
            // What another version wrote is for that one to list.
            let value = row.and_then(|row| Value::decode(&row, engine.timeline()).ok());
            let value: Value<RecordState> = value.unwrap_or_default();
            let summary = value.state.summary(&key, &moment_of(engine, now));
            entries.extend(summary.filter(|record| query.filter.admits(record)));
            if entries.len() >= query.limit {
                break;
            }
        }
        if entries.len() >= query.limit || looks >= LOOKS || last {
            let is_over = last && entries.len() < query.limit;
            let next = after.filter(|_| !is_over).and_then(|key| encode_record_cursor(&key));
            return Ok(Some(Page { entries, next }));
        }
    }
}

/// The moment of a listing. An engine without a clock has no wall clock either: this process's
/// dates.
fn moment_of(engine: &dyn ConditionalStore, now: EngineTime) -> Moment {
    let unix_micros = match engine.timeline() {
        Some(timeline) => timeline.unix_micros(),
        None => u64::try_from(now.as_micros()).unwrap_or(u64::MAX),
    };
    let least_micros = unix_micros;
    Moment { now, unix_micros, least_micros, ..Moment::default() }
}

/// Some records that a page looks at.
struct RowPage {
    /// Each with its row, if it is there.
    rows: Vec<(RecordKey, Option<Row>)>,
    last: bool,
    now: EngineTime,
}

async fn look(
    engine: &dyn ConditionalStore,
    query: &ListRecords,
    after: Option<RecordKey>,
    count: usize,
) -> Result<RowPage, StoreError> {
    let after = after.map(Key::Record);
    if !query.filter.is_of_unfinished() {
        let Listing { rows, now } = engine.list(Key::RECORDS, after.as_ref(), count).await?;
        let last = rows.len() < count;
        let rows = rows.into_iter();
        let rows = rows.filter_map(|(key, row)| Some((RecordState::key_of(&key)?, Some(row))));
        return Ok(RowPage { rows: rows.collect(), last, now });
    }
    let keys = engine.marked(after.as_ref(), count).await?;
    let (rows, now) = read(engine, &keys).await?;
    let rows: Vec<_> = keys.iter().zip(rows).collect();
    if engine.forgets() {
        let gone = rows.iter().filter(|(_, row)| row.is_none());
        let gone = gone.map(|(key, _)| Removal {
            key: (*key).clone(),
            version: Version(0),
            is_marked: true,
        });
        engine.remove(&gone.collect::<Vec<_>>()).await?;
    }
    let rows = rows.into_iter().filter_map(|(key, row)| Some((RecordState::key_of(key)?, row)));
    Ok(RowPage { rows: rows.collect(), last: keys.len() < count, now })
}

/// The rows of keys, and what the engine's clock showed. A call is about keys of one part of the
/// engine.
async fn read(
    engine: &dyn ConditionalStore,
    keys: &[Key],
) -> Result<(Vec<Option<Row>>, EngineTime), StoreError> {
    let at_once = if engine.parts() == 1 { keys.len().max(1) } else { 1 };
    let readings = try_join_all(keys.chunks(at_once).map(|keys| engine.read(keys))).await?;
    let now = readings.iter().map(|reading| reading.now).min().unwrap_or_default();
    Ok((readings.into_iter().flat_map(|reading| reading.rows).collect(), now))
}
