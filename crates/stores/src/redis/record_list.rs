//! Records, page by page: the unfinished ones by the index of each bucket, all others by `SCAN`.
//!
//! A bucket's index is in the bucket's slot, so the same calls find it on one server, Sentinel and Cluster,
//! and no key is walked over. It is a sorted set by the end of each record, and a page continues after an
//! end and a name: a record whose end moves to an earlier time has changed its phase. What an index names
//! is read by a script of its own, which shows the record and not its stored response; what Redis has
//! expired leaves the index there, or with the next begin of its bucket.
//!
//! Invariant: an unfinished record is in its index. Tested by the conformance tests
//! of listing, and in `tests/stores/record_index.rs`.

use bb8_redis::redis::{FromRedisValue, ParsingError, Value, from_redis_value};
use futures_util::future::try_join_all;
use keylatch_core::idempotency::{RecordKey, RecordState, RecordSummary};
use keylatch_core::store::{Cursor, ListRecords, Page, StoreError};

use super::connection::ScriptReply;
use super::engine::RedisEngine;
use super::list::{ScanPosition, scan_keys};
use super::pubsub::AnnounceReply;
use super::script::{parse_record_name, record_name};
use crate::optimistic::conditional::{ConditionalStore as _, Key};
use crate::optimistic::value::{Value as StoredValue, moment_at};

/// How many records are read at once.
const AT_ONCE: usize = 64;
/// How many buckets a page looks into at once.
const BUCKETS_AT_ONCE: u16 = 32;
/// How many records a page looks at.
const LOOKS: usize = 1024;
/// How many steps of a scan one page may cost.
const SCANS_PER_PAGE: usize = 32;
/// What a cursor in the indexes begins with, and one of a walk.
const INDEX: &str = "u.";
const WALK: &str = "w.";

/// A page of records; `None` for a cursor that is not known.
pub(super) async fn page(
    engine: &RedisEngine,
    query: &ListRecords,
) -> Result<Option<Page<RecordSummary>>, StoreError> {
    if query.filter.is_of_unfinished() {
        engine.list_unfinished(query).await
    } else {
        engine.walk(query).await
    }
}

impl RedisEngine {
    async fn list_unfinished(
        &self,
        query: &ListRecords,
    ) -> Result<Option<Page<RecordSummary>>, StoreError> {
        let Some(start) = IndexPosition::of(query.cursor.as_ref()) else { return Ok(None) };
        let mut page = RecordPage::new(query);
        let mut next = start.bucket;
        while next <= u16::from(u8::MAX) {
            let buckets = next..(next + BUCKETS_AT_ONCE).min(u16::from(u8::MAX) + 1);
            next = buckets.end;
            let found = buckets.map(|bucket| self.indexed(bucket, &start, query.limit));
            for IndexPage { bucket, entries, is_whole } in try_join_all(found).await? {
                let keys = entries.iter().map(|entry| entry.key);
                let looked = self.look(keys.collect(), true, &mut page).await?;
                let last = entries.get(looked.wrapping_sub(1));
                if looked < entries.len() || page.is_full() || !is_whole {
                    let at = |entry: &IndexEntry| (entry.score, record_name(&entry.key));
                    let position = IndexPosition { bucket, after: last.map(at) };
                    return Ok(Some(page.ended_at(position.cursor())));
                }
            }
        }
        Ok(Some(page.ended_at(None)))
    }

    /// Up to `limit` entries of a bucket's index, after the position if it is in this bucket.
    async fn indexed(
        &self,
        bucket: u16,
        start: &IndexPosition,
        limit: usize,
    ) -> Result<IndexPage, StoreError> {
        let after = start.after.as_ref().filter(|_| start.bucket == bucket);
        let least = after.map_or_else(|| "-inf".to_owned(), |(score, _)| score.to_string());
        let number = u8::try_from(bucket).unwrap_or(u8::MAX);
        let (mut entries, mut left_out) = (Vec::new(), 0);
        loop {
            let mut call = self.scripts.unfinished.prepare_invoke();
            call.key(self.keys.unfinished(number)).arg(&least).arg(left_out).arg(limit);
            let found: IndexEntries = self.topology.run(number, &call).await?;
            let count = found.count;
            entries.extend(found.entries.into_iter().filter(|entry| {
                // Redis orders those of one end by the bytes of their names.
                let at = (entry.score, record_name(&entry.key));
                after.is_none_or(|after| at > *after)
            }));
            left_out += count;
            // A page that has none but those of earlier pages is not the end of the index.
            if count < limit || !entries.is_empty() {
                return Ok(IndexPage { bucket, entries, is_whole: count < limit });
            }
        }
    }

    /// All records, by the keys of one master after the other.
    async fn walk(&self, query: &ListRecords) -> Result<Option<Page<RecordSummary>>, StoreError> {
        let masters = self.topology.masters();
        if masters.is_empty() {
            return Err(StoreError::Unreachable("no master is known yet".into()));
        }
        let Some(mut position) = walk_position(query.cursor.as_ref(), &masters) else {
            return Ok(None);
        };
        let mut page = RecordPage::new(query);
        for _ in 0..SCANS_PER_PAGE {
            let mut shared = masters[position.master].1.check_out().await?;
            let parse = |key: &[u8]| self.keys.record_key(key).map(|key| record_name(&key));
            let pattern = self.keys.record_pattern();
            let (following, mut names) =
                scan_keys(&mut shared, &pattern, position.step, parse).await?;
            names.retain(|name| position.after.as_ref().is_none_or(|after| name > after));
            let keys = names.iter().filter_map(|name| parse_record_name(name)).collect();
            let looked = self.look(keys, false, &mut page).await?;
            position = match names.get(looked.wrapping_sub(1)) {
                Some(last) if looked < names.len() => {
                    ScanPosition { after: Some(last.clone()), ..position }
                }
                _ => position.followed_by(following),
            };
            if page.is_full() || position.master == masters.len() {
                break;
            }
        }
        let next = position.text(&masters).map(|text| format!("{WALK}{text}"));
        Ok(Some(page.ended_at(next.and_then(|text| Cursor::parse(&text).ok()))))
    }

    /// Looks at records until the page is full; gives the number that were looked at.
    async fn look(
        &self,
        keys: Vec<RecordKey>,
        is_indexed: bool,
        page: &mut RecordPage<'_>,
    ) -> Result<usize, StoreError> {
        let mut looked = 0;
        while looked < keys.len() && !page.is_full() {
            let room = (page.query.limit - page.entries.len()).min(AT_ONCE);
            let some = &keys[looked..keys.len().min(looked + room)];
            let found = try_join_all(some.iter().map(|key| self.summary(key, is_indexed))).await?;
            looked += some.len();
            page.looks += some.len();
            let found = found.into_iter().flatten();
            page.entries.extend(found.filter(|record| page.query.filter.admits(record)));
        }
        Ok(looked)
    }

    async fn summary(
        &self,
        key: &RecordKey,
        is_indexed: bool,
    ) -> Result<Option<RecordSummary>, StoreError> {
        let reading = self.read(&[Key::Record(*key)]).await?;
        let row = reading.rows.into_iter().next().flatten();
        // Another program's is no record, and hides none of the others.
        let value = row.map(|row| StoredValue::<RecordState>::decode(&row, None));
        let value = value.transpose().unwrap_or_default().unwrap_or_default();
        if is_indexed && !value.state.is_unfinished() {
            let mut call = self.scripts.unlist.prepare_invoke();
            call.key(self.keys.record(key)).key(self.keys.unfinished(key.bucket()));
            self.topology.run::<AnnounceReply>(key.bucket(), &call).await?;
        }
        Ok(value.state.summary(key, &moment_at(reading.now)))
    }
}

/// A page of records that is being made.
struct RecordPage<'a> {
    query: &'a ListRecords,
    entries: Vec<RecordSummary>,
    looks: usize,
}

impl<'a> RecordPage<'a> {
    fn new(query: &'a ListRecords) -> Self {
        Self { query, entries: Vec::new(), looks: 0 }
    }

    fn is_full(&self) -> bool {
        self.entries.len() >= self.query.limit || self.looks >= LOOKS
    }

    fn ended_at(self, next: Option<Cursor>) -> Page<RecordSummary> {
        Page { entries: self.entries, next }
    }
}

/// Where a listing continues in the indexes.
struct IndexPosition {
    bucket: u16,
    /// The end and the name of the last record that was looked at in the bucket.
    after: Option<(u64, String)>,
}

impl IndexPosition {
    fn of(cursor: Option<&Cursor>) -> Option<Self> {
        let Some(cursor) = cursor else { return Some(Self { bucket: 0, after: None }) };
        let mut parts = cursor.as_str().strip_prefix(INDEX)?.split('.');
        let bucket = u16::from(parts.next()?.parse::<u8>().ok()?);
        let (score, name) = (parts.next()?.parse().ok()?, parts.next()?);
        parse_record_name(name)?;
        parts.next().is_none().then(|| Self { bucket, after: Some((score, name.to_owned())) })
    }

    fn cursor(&self) -> Option<Cursor> {
        let (score, name) = self.after.as_ref()?;
        Cursor::parse(&format!("{INDEX}{}.{score}.{name}", self.bucket)).ok()
    }
}

fn walk_position(
    cursor: Option<&Cursor>,
    masters: &[(String, super::Pool)],
) -> Option<ScanPosition<String>> {
    let Some(cursor) = cursor else { return ScanPosition::of(None, masters, |_| None) };
    let text = cursor.as_str().strip_prefix(WALK)?;
    let parse = |name: &str| parse_record_name(name).map(|_| name.to_owned());
    ScanPosition::of(Some(text), masters, parse)
}

/// What a bucket's index has after a position.
struct IndexPage {
    bucket: u16,
    entries: Vec<IndexEntry>,
    /// Whether no more follow.
    is_whole: bool,
}

/// An unfinished record, and when Redis expires it, in milliseconds since 1970.
#[derive(Debug)]
struct IndexEntry {
    key: RecordKey,
    score: u64,
}

/// The reply of `unfinished`.
#[derive(Debug)]
pub(super) struct IndexEntries {
    entries: Vec<IndexEntry>,
    /// How many there are with those of another program, which are no records.
    count: usize,
}

impl ScriptReply for IndexEntries {}

impl FromRedisValue for IndexEntries {
    fn from_redis_value(value: Value) -> Result<Self, ParsingError> {
        let found: Vec<(String, f64)> = from_redis_value(value)?;
        let entries = found.iter().filter_map(|(name, score)| {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "scripts write whole milliseconds since 1970, which f64 has exactly"
            )]
            let score = *score as u64;
            Some(IndexEntry { key: parse_record_name(name)?, score })
        });
        Ok(Self { entries: entries.collect(), count: found.len() })
    }
}
