//! A file of format 4 becomes one of format 5, with all that it holds.
//!
//! `tests/files/format-4.sqlite` is such a file; `tests/files/README.md` says what it holds and how it
//! was made.

use keylatch_core::idempotency::{
    BeginCommand, BeginReply, CompleteReply, IdempotencyKey, RecordKey, RecordStatus, RecordView,
    RunEnd, Scope, StoredResponse, UnknownReason,
};
use keylatch_core::lock::{AcquireReply, Attempt, RenewReply, Token, TokenHash, Ttl};
use keylatch_core::store::{ListLocks, Store};
use keylatch_stores::test_medium::{NEWEST_FORMAT, TestStore, read_head};

use crate::disk::{Disk, Files};
use crate::requests::{Acquire, begin, name};

const FORMAT_4: &[u8] = include_bytes!("../files/format-4.sqlite");
/// The largest fencing token in the file.
const LAST_FENCE: u64 = 1_795_332_930_919_969;

#[tokio::test]
async fn a_file_of_format_4_keeps_every_lock_and_record() {
    let disk = Disk::with_data(FORMAT_4, 1);
    assert_eq!(read_head(&disk.connect().unwrap()).unwrap().0, 4);
    let limit = read_head(&disk.connect().unwrap()).unwrap().1;
    let migrated = disk.open().unwrap();
    check(&migrated).await;
    drop(migrated);
    let head = read_head(&disk.connect().unwrap()).unwrap();
    assert_eq!(head, (NEWEST_FORMAT, limit));
    let again = Disk::new(disk.content(), 2).open().unwrap();
    check(&again).await;
    check_proofs(again.port()).await;
}

#[tokio::test]
async fn fencing_tokens_continue_above_those_of_format_4() {
    let disk = Disk::with_data(FORMAT_4, 1);
    let (_, limit) = read_head(&disk.connect().unwrap()).unwrap();
    assert!(limit >= LAST_FENCE, "{limit} is below a fencing token that was given");
    let store = disk.open().unwrap();
    for number in 0..300 {
        let acquired = Acquire::new(&format!("new {number}"), "one").run(store.port()).await;
        let Ok(AcquireReply::Granted(lease)) = acquired else { panic!("{acquired:?}") };
        assert!(lease.fencing_token.get() > limit, "{} after up to {limit}", lease.fencing_token);
    }
}

#[test]
fn a_power_cut_during_the_migration_leaves_one_format_and_loses_nothing() {
    let (mut cut_in_4, mut cut_in_5) = (0, 0);
    for operations in 0.. {
        for seed in 0..8 {
            let disk = Disk::with_data(FORMAT_4, seed);
            disk.cut_after(operations);
            migrate(&disk);
            if disk.has_power() {
                assert!(cut_in_4 > 0 && cut_in_5 > 0, "{cut_in_4} and {cut_in_5} cuts");
                return;
            }
            let left = disk.cut();
            match check_left(left, seed) {
                4 => cut_in_4 += 1,
                NEWEST_FORMAT => cut_in_5 += 1,
                other => panic!("format {other} after {operations} operations"),
            }
        }
    }
}

/// Opens the store, whether or not the power goes meanwhile.
#[tokio::main(flavor = "current_thread")]
async fn migrate(disk: &Disk) {
    disk.open().unwrap();
}

/// The format that a power cut left. The store on it is checked.
#[tokio::main(flavor = "current_thread")]
async fn check_left(left: Files, seed: u64) -> u64 {
    let disk = Disk::new(left, seed);
    let (format, _) = read_head(&disk.connect().unwrap()).unwrap();
    check(&disk.open().unwrap()).await;
    format
}

/// Whether the store has what the file of format 4 had.
async fn check(store: &TestStore) {
    check_locks(store.port()).await;
    check_records(store.port()).await;
}

async fn check_locks(store: &dyn Store) {
    let all = ListLocks { prefix: String::new(), limit: 10, cursor: None };
    let page = store.list_locks(&all).await.unwrap().expect("a page");
    let mut found: Vec<_> = page
        .entries
        .iter()
        .map(|lock| {
            let lock = &lock.first;
            let owner = lock.owner.as_ref().map_or("", |owner| owner.as_str());
            (
                lock.name.as_str(),
                owner,
                lock.fencing_token.get(),
                lock.acquired_at_millis,
                lock.waiting,
            )
        })
        .collect();
    found.sort_unstable();
    let held = [
        ("owned", "alice", 1_795_332_929_667_827, 1_795_332_929_667, 0),
        ("plain", "", 1_795_332_929_732_726, 1_795_332_929_732, 0),
        ("renewed", "Zoë, line 7", 1_795_332_929_838_520, 1_795_332_929_838, 0),
    ];
    assert_eq!(found, held);
    let ttls = [("owned", 600_000), ("plain", 86_400_000), ("renewed", 7_200_000)];
    for (lock, ttl) in ttls {
        let mut acquire = Acquire::new(lock, "any");
        (acquire.command.token, acquire.command.attempt) = (token(lock), Attempt::new(2));
        let again = acquire.run(store).await;
        let Ok(AcquireReply::Repeated(lease)) = again else { panic!("{lock}: {again:?}") };
        assert_eq!(lease.ttl.as_millis(), ttl, "{lock}");
    }
}

async fn check_records(store: &dyn Store) {
    let in_flight = find(store, "in-flight").await;
    assert_eq!((in_flight.fencing_token.get(), in_flight.attempts), (1_795_332_930_370_962, 1));
    assert_eq!(in_flight.begun_at_millis, 1_795_332_930_370);
    assert_eq!(in_flight.expires_in.as_secs(), 7200);
    assert!(matches!(in_flight.phase, RecordStatus::InFlight { .. }), "{in_flight:?}");
    let rerun = find(store, "rerun").await;
    assert!(matches!(rerun.phase, RecordStatus::InFlight { .. }), "{rerun:?}");
    let done = find(store, "done").await;
    let RecordStatus::Done { at_millis, kept: StoredResponse::Answer(answer) } = done.phase else {
        panic!("{done:?}")
    };
    assert_eq!((at_millis, answer.status), (1_795_332_930_788, 201));
    assert_eq!(answer.body, br#"{"message_id":4711}"#[..]);
    let location = |(name, value): &(String, _)| name == "location" && value == "/mails/4711";
    assert!(answer.headers.iter().any(location), "{:?}", answer.headers);
    let mark = find_guarded(store, "mark", "/v1/orders").await;
    let marked =
        RecordStatus::Done { at_millis: 1_795_332_930_859, kept: StoredResponse::Mark(201) };
    assert_eq!(mark.phase, marked);
    let failed = find_guarded(store, "failed", "/v1/payments").await;
    let since_millis = 1_795_332_930_921;
    assert_eq!(failed.phase, RecordStatus::Unknown { since_millis, reason: UnknownReason::Failed });
    assert_eq!(failed.fencing_token.get(), LAST_FENCE);
    let interrupted = find(store, "interrupted").await;
    let is_interrupted = matches!(
        interrupted.phase,
        RecordStatus::Unknown { reason: UnknownReason::Interrupted, .. }
    );
    assert!(is_interrupted, "{interrupted:?}");
}

/// The proofs of the file still prove what they did, and those of no entry do not.
async fn check_proofs(store: &dyn Store) {
    let renewed = store.renew(&name("owned"), &token("plain"), Ttl::DEFAULT).await;
    assert_eq!(renewed.unwrap(), RenewReply::Mismatch);
    let renewed = store.renew(&name("owned"), &token("owned"), Ttl::DEFAULT).await;
    assert!(matches!(renewed.unwrap(), RenewReply::Renewed(_)));
    let (key, end) = (record("in-flight"), RunEnd::Done(StoredResponse::Mark(204)));
    let other = store.complete(&key, &token("rerun"), end.clone()).await;
    assert!(matches!(other.unwrap(), CompleteReply::Refused(_)));
    let own = store.complete(&key, &token("in-flight"), end).await;
    assert!(matches!(own.unwrap(), CompleteReply::Kept(_)));
    let other = BeginCommand { key: record("done"), ..begin("done", "another") };
    let reused = store.begin(&other).await.unwrap();
    assert!(matches!(reused, BeginReply::Reused(_)), "another fingerprint: {reused:?}");
}

async fn find(store: &dyn Store, key: &str) -> RecordView {
    store.find(&record(key)).await.unwrap().expect("a record")
}

async fn find_guarded(store: &dyn Store, key: &str, path: &str) -> RecordView {
    let scope = Scope { principal: "", method: "POST", path };
    let key = scope.record(&IdempotencyKey::parse(key).unwrap());
    store.find(&key).await.unwrap().expect("a record")
}

/// The record of a key that was begun by the API.
fn record(key: &str) -> RecordKey {
    let scope = Scope { principal: "", method: "", path: "" };
    scope.record(&IdempotencyKey::parse(key).unwrap())
}

fn token(entry: &str) -> TokenHash {
    Token::parse(&format!("format-4-token-of-{entry}")).unwrap().hash()
}
