//! Pages of what the table has: the held locks, and the records.
//!
//! A page goes from shard to shard, and holds one of them at a time. A page of locks has the first
//! names of all shards after its cursor, and leaves a shard where the shard's names are behind
//! those. So pages are in the order of names, and a lock that is held throughout is on one of them.
//! A page of unfinished records goes through the shards' indexes of these, and any other through
//! all records; both look at a limited number, so that a filter that admits little holds nothing
//! up. Tested by the conformance tests of listing.

use std::collections::BTreeMap;
use std::ops::Bound;

use keylatch_core::entry::Entry as _;
use keylatch_core::idempotency::{RecordKey, RecordState, RecordSummary};
use keylatch_core::lock::{Holding, LockName};
use keylatch_core::store::{ListLocks, ListRecords, Page};

use super::Table;
use crate::cursor::{
    decode_lock_cursor, decode_record_cursor, encode_lock_cursor, encode_record_cursor,
};

/// How many records a page looks at.
const LOOKS: usize = 4096;

struct RecordPage<'a> {
    query: &'a ListRecords,
    entries: Vec<RecordSummary>,
    /// The last record that was looked at, and how many were.
    last: Option<RecordKey>,
    looks: usize,
}

impl RecordPage<'_> {
    fn is_full(&self) -> bool {
        self.entries.len() >= self.query.limit || self.looks >= LOOKS
    }
}

impl Table {
    /// A page of the held locks; `None` for a cursor that no listing gave.
    pub(crate) fn list(&self, query: &ListLocks) -> Option<Page<Holding>> {
        let after = decode_lock_cursor(query.cursor.as_ref())?;
        let mut first = BTreeMap::new();
        for bucket in 0..=u8::MAX {
            self.merge_bucket(bucket, after.as_ref(), query, &mut first);
        }
        let last = first.last_key_value().filter(|_| first.len() == query.limit);
        let next = last.and_then(|(name, _)| encode_lock_cursor(name));
        Some(Page { entries: first.into_values().collect(), next })
    }

    /// A page of records, in the order of their keys; `None` for a cursor that no listing gave.
    pub(crate) fn list_records(&self, query: &ListRecords) -> Option<Page<RecordSummary>> {
        let after = decode_record_cursor(query.cursor.as_ref())?;
        let mut page = RecordPage { query, entries: Vec::new(), last: None, looks: 0 };
        for bucket in after.as_ref().map_or(0, RecordKey::bucket)..=u8::MAX {
            self.list_records_of_bucket(bucket, after.as_ref(), &mut page);
            if page.is_full() {
                break;
            }
        }
        let next =
            page.last.filter(|_| page.is_full()).and_then(|last| encode_record_cursor(&last));
        Some(Page { entries: page.entries, next })
    }

    /// Adds the locks of one bucket that `query` asks for after `after`, and leaves the first by
    /// name.
    fn merge_bucket(
        &self,
        bucket: u8,
        after: Option<&LockName>,
        query: &ListLocks,
        first: &mut BTreeMap<LockName, Holding>,
    ) {
        let shard = self.shard(bucket);
        let moment = self.moment(&shard);
        let from = match after {
            Some(name) if name.as_str() >= query.prefix.as_str() => Bound::Excluded(name.as_str()),
            _ => Bound::Included(query.prefix.as_str()),
        };
        let matching = shard.entries.locks.range::<str, _>((from, Bound::Unbounded));
        let matching = matching.take_while(|(name, _)| name.as_str().starts_with(&query.prefix));
        for (name, state) in matching {
            let is_full = first.len() == query.limit;
            if is_full && first.last_key_value().is_some_and(|(last, _)| name > last) {
                break;
            }
            let Some(holding) = state.live(&moment).holding_told(name, moment.now) else {
                continue;
            };
            first.insert(name.clone(), holding);
            if is_full {
                first.pop_last();
            }
        }
    }

    /// The records of one bucket that the page's query asks for, after `after`, until the page is
    /// full.
    fn list_records_of_bucket(
        &self,
        bucket: u8,
        after: Option<&RecordKey>,
        page: &mut RecordPage<'_>,
    ) {
        let shard = self.shard(bucket);
        let moment = self.moment(&shard);
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let is_of_unfinished = page.query.filter.is_of_unfinished();
        let mut look = |(key, state): (&RecordKey, &RecordState)| {
            page.looks += 1;
            page.last = Some(*key);
            let summary = state.summary(key, &moment);
            page.entries.extend(summary.filter(|record| page.query.filter.admits(record)));
            page.is_full()
        };
        if is_of_unfinished {
            let unfinished = shard.unfinished.range((from, Bound::Unbounded));
            let mut found = unfinished.filter_map(|key| shard.entries.records.get_key_value(key));
            let _ = found.any(&mut look);
        } else {
            let _ = shard.entries.records.range((from, Bound::Unbounded)).any(&mut look);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use keylatch_core::idempotency::{
        BeginCommand, Fingerprint, IdempotencyKey, OnCrash, PhaseName, Principal, RecordCommand,
        RecordFilter, RecordScope, RunEnd, Scope, StoredResponse, UnknownReason,
    };
    use keylatch_core::lock::{FencingToken, TokenHash};
    use keylatch_core::store::Command;

    use super::*;
    use crate::table::Sweep;

    fn end_a_run(table: &Table, number: u32, end: RunEnd) {
        let scope =
            Scope { principal: &Principal::None, method: "POST", path: "/v1/orders", source: "" };
        let (name, token) = (IdempotencyKey::from(number), TokenHash::from_bytes([1; 32]));
        let (key, scope) = (scope.record(&name), RecordScope::new(&scope, &name));
        let begin = BeginCommand {
            key,
            scope,
            token,
            fingerprint: Fingerprint::of_text("an order"),
            lease: Duration::from_secs(60),
            retention: Duration::from_secs(3600),
            on_crash: OnCrash::Unknown,
            has_room: true,
        };
        for command in [RecordCommand::Begin(begin), RecordCommand::Complete { token, end }] {
            table.step(&Command::Record(key, command));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn list_of_unknown_costs_no_look_at_what_is_done() {
        let table = Table::new(FencingToken::NONE);
        for number in 0..2000 {
            end_a_run(&table, number, RunEnd::Done(StoredResponse::Mark(201)));
        }
        for number in 2000..2020 {
            end_a_run(&table, number, RunEnd::Unknown(UnknownReason::Failed));
        }
        let filter = RecordFilter { phase: Some(PhaseName::Unknown), ..RecordFilter::default() };
        let query = ListRecords { filter, limit: 100, cursor: None };
        let mut page = RecordPage { query: &query, entries: Vec::new(), last: None, looks: 0 };
        for bucket in 0..=u8::MAX {
            table.list_records_of_bucket(bucket, None, &mut page);
        }
        assert_eq!((page.looks, page.entries.len()), (20, 20));
        tokio::time::advance(Duration::from_secs(31 * 24 * 3600)).await;
        let mut sweep = Sweep::<RecordState>::default();
        while table.forget_expired(&mut sweep) {}
        let indexed: usize = (0..=u8::MAX).map(|bucket| table.shard(bucket).unfinished.len()).sum();
        assert_eq!(indexed, 0, "an entry of the index outlived its record");
    }
}
