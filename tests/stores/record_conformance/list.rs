//! Goal: an operator finds the records in a state, by the path, on every store.
//!
//! Method: see the module above. The pages of a listing are followed to their end, and what a
//! record was throughout has to be on one of them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use keylatch_core::idempotency::{
    BeginCommand, IdempotencyKey, PhaseName, Principal, RecordFilter, RecordKey, RecordScope,
    RecordStatus, RecordSummary, RunEnd, Scope, StoredResponse, UnknownReason,
};
use keylatch_core::store::{Cursor, ListLocks, ListRecords, Page};
use keylatch_testkit::{FromStore as _, Records, TestStore, store_test};

use super::{LEASE, RETENTION, SLACK, UNKNOWN, assert_near, assert_wall, done, kept, started};

const ORDERS: &str = "/v1/orders";

/// A run of a request to this path under a key of this number.
fn ask_at(path: &str, number: u32) -> BeginCommand {
    let scope =
        Scope { principal: &Principal::User("ann".to_owned()), method: "POST", path, source: "" };
    let key = IdempotencyKey::from(number);
    BeginCommand {
        key: scope.record(&key),
        scope: RecordScope::new(&scope, &key),
        ..super::ask(0, "one")
    }
}

/// What becomes of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    InFlight,
    Unknown,
    Done,
}

const FATES: [Fate; 3] = [Fate::InFlight, Fate::Unknown, Fate::Done];

async fn begin_and_end(store: &Records, ask: &BeginCommand, fate: Fate) {
    started(store.begin(ask).await.unwrap());
    let end = match fate {
        Fate::InFlight => return,
        Fate::Unknown => RunEnd::Unknown(UnknownReason::Failed),
        Fate::Done => RunEnd::Done(StoredResponse::Mark(201)),
    };
    kept(store.complete(&ask.key, &ask.token, end).await.unwrap());
}

fn in_phase(phase: PhaseName) -> RecordFilter {
    RecordFilter { phase: Some(phase), ..RecordFilter::default() }
}

/// A page, of at most as many records as were asked for.
async fn page(
    store: &Records,
    filter: &RecordFilter,
    limit: usize,
    cursor: Option<Cursor>,
) -> Page<RecordSummary> {
    let query = ListRecords { filter: filter.clone(), limit, cursor };
    let page = store.list_records(&query).await.unwrap().expect("the store knows its own cursor");
    assert!(page.entries.len() <= limit, "{} records on a page of {limit}", page.entries.len());
    page
}

/// All that the pages have, by key.
async fn listed(
    store: &Records,
    filter: &RecordFilter,
    limit: usize,
) -> BTreeMap<RecordKey, RecordSummary> {
    let (mut found, mut cursor) = (BTreeMap::new(), None);
    loop {
        let Page { entries, next } = page(store, filter, limit, cursor).await;
        found.extend(entries.into_iter().map(|record| (record.key, record)));
        cursor = next;
        if cursor.is_none() {
            return found;
        }
    }
}

/// The numbers of the records that a filter admits.
async fn numbers(store: &Records, filter: RecordFilter) -> BTreeSet<u32> {
    let found = listed(store, &filter, 100).await;
    found.values().map(number).collect()
}

fn number(record: &RecordSummary) -> u32 {
    record.scope.key().as_str().parse().expect("a number")
}

#[store_test(records)]
async fn each_record_is_in_the_list_of_its_state(store: &Records) {
    for (number, fate) in (1..).zip(FATES) {
        begin_and_end(store, &ask_at(ORDERS, number), fate).await;
    }
    let names = [PhaseName::InFlight, PhaseName::Unknown, PhaseName::Done];
    for (number, name) in (1..).zip(names) {
        let found = listed(store, &in_phase(name), 10).await;
        let [record] = &*found.into_values().collect::<Vec<_>>() else { panic!("one is {name:?}") };
        let ask = ask_at(ORDERS, number);
        assert_eq!((record.key, record.attempts), (ask.key, 1));
        let scope = &record.scope;
        assert_eq!(
            (scope.principal().to_string(), scope.method(), scope.path()),
            ("user:ann".into(), "POST", ORDERS)
        );
        assert_eq!(*scope, ask.scope);
        assert!(scope.leads_to(&record.key));
        let view = store.find(&ask.key).await.unwrap().expect("a record");
        assert_eq!(record.fencing_token, view.fencing_token);
        assert_eq!(record.begun_at_millis, view.begun_at_millis);
        assert!(record.age < SLACK, "{:?}", record.age);
        match record.phase {
            RecordStatus::InFlight { lease } => assert_near(lease, LEASE),
            RecordStatus::Unknown { since_millis, reason, .. } => {
                assert_eq!(reason, UnknownReason::Failed);
                assert_wall(since_millis, Duration::ZERO);
            }
            RecordStatus::Done { at_millis, ref kept } => {
                assert_eq!(*kept, StoredResponse::Mark(201));
                assert_wall(at_millis, Duration::ZERO);
            }
        }
    }
    assert_eq!(numbers(store, RecordFilter::default()).await, BTreeSet::from([1, 2, 3]));
}

#[store_test(records)]
async fn list_is_of_a_path_or_of_its_prefix(store: &Records) {
    let long = format!("/v1/{}", "x".repeat(2 * RecordScope::MAX_PATH_BYTES));
    let paths = ["/v1/orders", "/v1/orders/9", "/v1/[a-z]*", "/v2/payments", &long];
    for (number, path) in (1..).zip(paths) {
        for (decade, fate) in (1..).zip(FATES) {
            begin_and_end(store, &ask_at(path, 10 * decade + number), fate).await;
        }
    }
    for (phase, decade) in [(PhaseName::InFlight, 1), (PhaseName::Unknown, 2), (PhaseName::Done, 3)]
    {
        let expect = |last: &[u32]| last.iter().map(|last| 10 * decade + last).collect();
        let filter = |path: Option<&str>, prefix: &str| RecordFilter {
            phase: Some(phase),
            path: path.map(str::to_owned),
            path_prefix: prefix.to_owned(),
            key_prefix: String::new(),
            reader: None,
        };
        let expected: [(_, _, BTreeSet<u32>); 9] = [
            (Some("/v1/orders"), "", expect(&[1])),
            (Some("/v1/order"), "", expect(&[])),
            (Some("/v1/[a-z]*"), "", expect(&[3])),
            (Some(&*long), "", expect(&[5])),
            (None, "/v1/orders", expect(&[1, 2])),
            (None, "/v1/[a", expect(&[3])),
            (None, "/v1/", expect(&[1, 2, 3, 5])),
            (Some("/v1/orders"), "/v1/", expect(&[1])),
            (Some("/v1/orders"), "/v2/", expect(&[])),
        ];
        for (path, prefix, expected) in expected {
            let found = numbers(store, filter(path, prefix)).await;
            assert_eq!(found, expected, "{phase:?}, {path:?}, prefix {prefix:?}");
        }
        let of_key =
            RecordFilter { key_prefix: format!("{decade}2"), ..filter(None, "/v1/orders") };
        assert_eq!(numbers(store, of_key).await, expect(&[2]), "{phase:?}, by key");
    }
}

#[store_test(records)]
async fn pages_have_every_record_although_others_change(store: &Records) {
    const EACH: u32 = 70;
    for number in 0..3 * EACH {
        begin_and_end(store, &ask_at(ORDERS, number), FATES[number as usize % 3]).await;
    }
    let of = |fate: u32| move |number: &u32| number % 3 == fate;
    for (phase, fate) in [(PhaseName::InFlight, 0), (PhaseName::Unknown, 1), (PhaseName::Done, 2)] {
        let (mut found, mut cursor, mut other) = (BTreeSet::new(), None, 1000 * (fate + 1));
        loop {
            let Page { entries, next } = page(store, &in_phase(phase), 7, cursor).await;
            found.extend(entries.iter().map(number).filter(|number| *number < 3 * EACH));
            // Another record comes, and another one goes.
            other += 1;
            begin_and_end(store, &ask_at(ORDERS, other), FATES[fate as usize]).await;
            let gone = ask_at(ORDERS, other - 1);
            let _ = store.complete(&gone.key, &gone.token, done("a")).await.unwrap();
            cursor = next;
            if cursor.is_none() {
                break;
            }
            assert!(other < 1000 * (fate + 1) + 900, "a listing that has no end");
        }
        let expected: BTreeSet<_> = (0..3 * EACH).filter(of(fate)).collect();
        assert_eq!(found, expected, "{phase:?}");
    }
    let all = listed(store, &RecordFilter::default(), 11).await;
    let all: BTreeSet<_> = all.values().map(number).filter(|number| *number < 3 * EACH).collect();
    assert_eq!(all.len(), 3 * EACH as usize);
}

#[store_test(records)]
async fn cursor_of_no_listing_of_records_is_refused(store: &Records) {
    for number in 0..8 {
        begin_and_end(store, &ask_at(ORDERS, number), Fate::Unknown).await;
    }
    let filters = [RecordFilter::default(), in_phase(PhaseName::Unknown)];
    for text in ["x", "1", "r", "r.", "r.AAAA", "AAAA.AAAA", "-1", "u.999.0.AAAA", "u.0.x."] {
        for filter in &filters {
            let cursor = Some(Cursor::parse(text).unwrap());
            let query = ListRecords { filter: filter.clone(), limit: 1, cursor };
            assert_eq!(store.list_records(&query).await.unwrap(), None, "{text}");
        }
    }
    let next = page(store, &filters[1], 1, None).await.next;
    let query = ListLocks { prefix: String::new(), limit: 1, cursor: next };
    assert_eq!(store.list_locks(&query).await.unwrap(), None);
}

#[store_test(records)]
async fn list_forgets_a_record_with_its_retention(store: &Records) {
    let short = |number| BeginCommand { retention: RETENTION, ..ask_at(ORDERS, number) };
    let rerun = BeginCommand { on_crash: super::rerun(0, "").on_crash, ..short(4) };
    for (number, fate) in (1..).zip(FATES) {
        begin_and_end(store, &short(number), fate).await;
    }
    begin_and_end(store, &rerun, Fate::InFlight).await;
    let all = RecordFilter::default;
    store.advance(LEASE + RETENTION + SLACK).await;
    assert_eq!(numbers(store, all()).await, BTreeSet::from([1, 2]), "their outcome is unknown");
    assert_eq!(numbers(store, in_phase(PhaseName::InFlight)).await, BTreeSet::new());
    store.pass_a_sweep().await;
    assert_eq!(numbers(store, in_phase(PhaseName::Unknown)).await, BTreeSet::from([1, 2]));
    store.advance(UNKNOWN).await;
    for _ in 0..2 {
        for phase in [PhaseName::InFlight, PhaseName::Unknown, PhaseName::Done] {
            assert_eq!(numbers(store, in_phase(phase)).await, BTreeSet::new(), "{phase:?}");
        }
        assert_eq!(numbers(store, all()).await, BTreeSet::new());
        store.pass_a_sweep().await;
    }
}

#[store_test(records, restart)]
async fn list_of_the_unfinished_outlives_the_process(store: &TestStore) {
    let records = Records::from_store(store).await;
    for number in 0..60 {
        begin_and_end(&records, &ask_at(ORDERS, number), FATES[number as usize % 3]).await;
    }
    drop(records);
    let records = Records::from_store(store).await;
    for (phase, fate) in [(PhaseName::InFlight, 0), (PhaseName::Unknown, 1), (PhaseName::Done, 2)] {
        let expected: BTreeSet<_> = (0..60).filter(|number| number % 3 == fate).collect();
        assert_eq!(numbers(&records, in_phase(phase)).await, expected, "{phase:?}");
    }
}
