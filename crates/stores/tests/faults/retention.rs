//! Goal: a retention ends after its time, however often the process starts again, and never before.
//!
//! Method: the clock is paused. Time passes between starts of a store on one disk, and the records
//! are looked for after each.

use std::time::Duration;

use keylatch_core::idempotency::{
    BeginReply, RecordView, ResolveCommand, ResolveReply, RunEnd, StoredResponse, UnknownReason,
};
use keylatch_core::store::Store;
use keylatch_stores::test_medium::{TestStore, configure};
use tokio::time::advance;

use crate::disk::Disk;
use crate::requests::{begin, key};

/// The retention of a record that is done, and of one whose outcome is unknown.
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const MONTH: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// How much of a retention a start may give again.
const AGAIN: u32 = 90;

async fn end(store: &dyn Store, record: &str, end: RunEnd) {
    let begin = begin(record, "one");
    assert!(matches!(store.begin(&begin).await.unwrap(), BeginReply::Started(_)));
    store.complete(&begin.key, &begin.token, end).await.unwrap();
}

async fn find(store: &TestStore, record: &str) -> RecordView {
    store.port().find(&key(record)).await.unwrap().expect("a record")
}

/// Lets time pass as a service does, with a sweep now and then.
async fn pass(store: &TestStore, time: Duration) {
    for _ in 0..100 {
        advance(time / 100).await;
        store.sweep().await.unwrap();
    }
}

/// The store after a power cut.
fn start_again(disk: &Disk) -> (Disk, TestStore) {
    let disk = Disk::new(disk.cut(), 1);
    let store = disk.open().unwrap();
    (disk, store)
}

#[tokio::test(start_paused = true)]
async fn a_retention_does_not_begin_again_at_each_start() {
    let mut disk = Disk::formatted(1);
    let mut store = disk.open().unwrap();
    end(store.port(), "done", RunEnd::Done(StoredResponse::Mark(201))).await;
    end(store.port(), "unknown", RunEnd::Unknown(UnknownReason::Failed)).await;
    let mut passed = Duration::ZERO;
    for _ in 0..3 {
        pass(&store, DAY / 4).await;
        passed += DAY / 4;
        (disk, store) = start_again(&disk);
        for (record, retention) in [("done", DAY), ("unknown", MONTH)] {
            let left = find(&store, record).await.expires_in;
            assert!(left >= retention - passed, "{record} ends early: {left:?} after {passed:?}");
            let most = retention - passed + 3 * retention / AGAIN;
            assert!(left <= most, "{record} begins again: {left:?} after {passed:?}");
        }
    }
    pass(&store, DAY / 3).await;
    assert_eq!(store.port().find(&key("done")).await.unwrap(), None);
}

/// The age is that of the outcome that was replaced.
#[tokio::test(start_paused = true)]
async fn an_outcome_that_is_settled_late_is_kept_for_its_whole_retention() {
    let (disk, store) = Disk::with_store();
    end(store.port(), "unknown", RunEnd::Unknown(UnknownReason::Failed)).await;
    pass(&store, MONTH / 2).await;
    let resolve = ResolveCommand {
        key: key("unknown"),
        fencing_token: None,
        end: Some(StoredResponse::Mark(201)).into(),
    };
    let resolved = store.port().resolve(&resolve).await.unwrap();
    assert!(matches!(resolved, ResolveReply::Completed(_)));
    let (_, store) = start_again(&disk);
    assert_eq!(find(&store, "unknown").await.expires_in, DAY);
}

/// The record of the first run expires, and no sweep removes it before the second run.
#[tokio::test(start_paused = true)]
async fn the_outcome_of_a_second_run_is_kept_for_its_whole_retention() {
    let (disk, store) = Disk::with_store();
    end(store.port(), "done", RunEnd::Done(StoredResponse::Mark(201))).await;
    pass(&store, DAY / 2).await;
    advance(DAY / 2).await;
    end(store.port(), "done", RunEnd::Done(StoredResponse::Mark(201))).await;
    let (_, store) = start_again(&disk);
    assert_eq!(find(&store, "done").await.expires_in, DAY);
}

#[tokio::test(start_paused = true)]
async fn an_age_leaves_the_file_with_its_record() {
    let (disk, store) = Disk::with_store();
    end(store.port(), "done", RunEnd::Done(StoredResponse::Mark(201))).await;
    pass(&store, DAY / 2).await;
    assert_eq!(ages(&disk), 1);
    pass(&store, DAY).await;
    assert_eq!(ages(&disk), 0);
}

/// How many ages the file has, beside its head.
fn ages(disk: &Disk) -> i64 {
    let connection = Disk::new(disk.content(), 1).connect().unwrap();
    configure(&connection).unwrap();
    let rows: i64 =
        connection.query_one("SELECT count(*) FROM head", [], |row| row.get(0)).unwrap();
    rows - 1
}
