//! What a list of unknown records costs, and whether the index follows the records: engine by
//! engine.
//!
//! Method: many records are done and a few are not; then the engine itself says what a list read.
//! No time is measured. The conformance tests say what a list has; these say that it does not walk.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use keylatch_core::idempotency::{
    BeginCommand, IdempotencyKey, PhaseName, Principal, RecordFilter, RecordKey, RecordScope,
    RecordStatus, RecordSummary, RunEnd, Scope, StoredResponse, UnknownReason,
};
use keylatch_core::store::{ListRecords, Store};
use keylatch_stores::optimistic;
use keylatch_testkit::{Dice, FakeEngine, Faults, eventually, scaled, seed};

use crate::conditional::{BAD_DAYS, pass, stopped};
use crate::record_conformance::{ask, token};

#[cfg(feature = "test-engines")]
mod engines;
#[cfg(feature = "test-redis")]
mod one_redis;

const DONE: u32 = 2000;
const UNKNOWN: u32 = 20;

/// A run of an order under a key of this number.
fn order(number: u32) -> BeginCommand {
    let scope =
        Scope { principal: &Principal::None, method: "POST", path: "/v1/orders", source: "" };
    let key = IdempotencyKey::from(number);
    BeginCommand { key: scope.record(&key), scope: RecordScope::new(&scope, &key), ..ask(0, "one") }
}

/// Runs orders that end in this way.
async fn run_orders(store: &dyn Store, numbers: std::ops::Range<u32>, end: &RunEnd) {
    let numbers: Vec<_> = numbers.collect();
    for some in numbers.chunks(100) {
        join_all(some.iter().map(async |number| {
            let order = order(*number);
            store.begin(&order).await.unwrap();
            store.complete(&order.key, &order.token, end.clone()).await.unwrap();
        }))
        .await;
    }
}

/// Many records that are done, and a few whose outcome is unknown.
async fn fill(store: &dyn Store) {
    run_orders(store, 0..DONE, &RunEnd::Done(StoredResponse::Mark(201))).await;
    run_orders(store, DONE..DONE + UNKNOWN, &RunEnd::Unknown(UnknownReason::Failed)).await;
}

async fn listed(store: &dyn Store, phase: PhaseName) -> Vec<RecordSummary> {
    listed_by(store, RecordFilter { phase: Some(phase), ..RecordFilter::default() }).await
}

async fn listed_by(store: &dyn Store, filter: RecordFilter) -> Vec<RecordSummary> {
    let mut query = ListRecords { filter, limit: 1000, cursor: None };
    let mut found = Vec::new();
    loop {
        let page = store.list_records(&query).await.unwrap().expect("its own cursor");
        found.extend(page.entries);
        query.cursor = page.next;
        if query.cursor.is_none() {
            return found;
        }
    }
}

#[test]
fn conditional_list_of_unknown_reads_no_row_that_is_done() {
    for engine in [FakeEngine::new, FakeEngine::without_clock] {
        stopped().block_on(async {
            let engine = engine(Faults::default(), seed());
            let store = optimistic(engine.clone());
            fill(&*store).await;
            let before = engine.looks();
            assert_eq!(listed(&*store, PhaseName::Unknown).await.len(), UNKNOWN as usize);
            // A mark and a row each.
            assert_eq!(engine.looks() - before, u64::from(2 * UNKNOWN));
            assert_eq!(engine.marked_rows(), UNKNOWN as usize);
            tokio::time::advance(Duration::from_secs(31 * 24 * 3600)).await;
            // Long enough for the sweeps that see a dead row and remove it.
            pass(Duration::from_secs(180)).await;
            assert_eq!(engine.marked_rows(), 0, "an entry of the index outlived its record");
        });
    }
}

#[tokio::test(start_paused = true)]
async fn conditional_list_has_a_record_that_comes_after_many_others() {
    let store = optimistic(FakeEngine::new(Faults::default(), seed()));
    fill(&*store).await;
    for number in 1990..DONE {
        let filter = RecordFilter { key_prefix: number.to_string(), ..Default::default() };
        assert_eq!(listed_by(&*store, filter).await.len(), 1, "order {number}");
    }
}

/// What becomes of records in three processes, on an engine that does all that it may.
async fn work(store: &dyn Store, dice: &mut Dice, records: u32) {
    for _ in 0..scaled(60) {
        let mut order = order(u32::try_from(dice.below(records.into())).expect("a small number"));
        order.lease = Duration::from_secs(10);
        order.token = token(&dice.below(3).to_string());
        // A lost answer leaves it unknown what the engine did, and the index has to follow all the
        // same.
        let _ = match dice.below(5) {
            0 | 1 => store.begin(&order).await.err(),
            2 => {
                let end = RunEnd::Done(StoredResponse::Mark(201));
                store.complete(&order.key, &order.token, end).await.err()
            }
            3 => {
                let end = RunEnd::Unknown(UnknownReason::Failed);
                store.complete(&order.key, &order.token, end).await.err()
            }
            _ => store.abandon(&order.key, &order.token).await.err(),
        };
        pass(Duration::from_millis(dice.below(2000))).await;
    }
}

/// The records that are not done, by a look at each.
async fn look_at_each(store: &dyn Store, records: u32) -> BTreeSet<RecordKey> {
    let mut unfinished = BTreeSet::new();
    for number in 0..records {
        let key = order(number).key;
        let view = eventually(async || store.find(&key).await.ok()).await;
        let is_done = |status: &RecordStatus| matches!(status, RecordStatus::Done { .. });
        if view.is_some_and(|view| !is_done(&view.phase)) {
            unfinished.insert(key);
        }
    }
    unfinished
}

/// The records that a list of what is unknown has.
async fn list_unknown(store: &dyn Store) -> BTreeSet<RecordKey> {
    let filter = RecordFilter { phase: Some(PhaseName::Unknown), ..RecordFilter::default() };
    let query = ListRecords { filter, limit: 1000, cursor: None };
    let page = eventually(async || store.list_records(&query).await.ok().flatten()).await;
    page.entries.into_iter().map(|record| record.key).collect()
}

#[test]
fn conditional_index_follows_the_records_on_bad_days() {
    const RECORDS: u32 = 12;
    for engine in [FakeEngine::new, FakeEngine::without_clock] {
        stopped().block_on(async {
            let engine = engine(BAD_DAYS, seed());
            let stores: Vec<Arc<dyn Store>> = (0..3).map(|_| optimistic(engine.clone())).collect();
            let working = stores.iter().zip(1..).map(async |(store, number)| {
                work(&**store, &mut Dice(seed() + number), RECORDS).await;
            });
            join_all(working).await;
            // What was carried out late has come.
            pass(Duration::from_secs(15)).await;
            let unfinished = look_at_each(&*stores[0], RECORDS).await;
            let found = list_unknown(&*stores[0]).await;
            assert_eq!(found, unfinished);
            assert_eq!(
                engine.marked_rows(),
                unfinished.len(),
                "the marks are not those of the rows"
            );
        });
    }
}
