//! A file of an earlier format becomes one of the newest, with all that it holds.
//!
//! `tests/files` has such files; the `README.md` there says what they hold and how they were made.

use keylatch_core::idempotency::{
    BeginCommand, BeginReply, CompleteReply, IdempotencyKey, RecordKey, RecordStatus, RecordView,
    RunEnd, Scope, StoredResponse, UnknownReason,
};
use keylatch_core::lock::{AcquireReply, Attempt, RenewReply, Token, TokenHash, Ttl};
use keylatch_core::store::{ListLocks, Store};
use keylatch_stores::OpenError;
use keylatch_stores::test_medium::{NEWEST_FORMAT, TestStore, read_head};

use crate::disk::{Disk, Files};
use crate::requests::{Acquire, begin, name};

/// A file that a build of an earlier format left, and what differs between it and the others.
struct OldFile {
    format: u64,
    data: &'static [u8],
    /// The fencing tokens of the locks and when they were acquired: owned, plain, renewed.
    locks: [(u64, u64); 3],
    /// The fencing tokens of these records.
    in_flight: u64,
    failed: u64,
    /// When these records ended.
    done_at: u64,
    mark_at: u64,
    failed_at: u64,
    /// The largest fencing token.
    last_fence: u64,
    /// Whether a record has an answer that is kept out of memory.
    has_long_answer: bool,
}

const FORMAT_4: OldFile = OldFile {
    format: 4,
    data: include_bytes!("../files/format-4.sqlite"),
    locks: [
        (1_795_332_929_667_827, 1_795_332_929_667),
        (1_795_332_929_732_726, 1_795_332_929_732),
        (1_795_332_929_838_520, 1_795_332_929_838),
    ],
    in_flight: 1_795_332_930_370_962,
    failed: 1_795_332_930_919_969,
    done_at: 1_795_332_930_788,
    mark_at: 1_795_332_930_859,
    failed_at: 1_795_332_930_921,
    last_fence: 1_795_332_930_919_969,
    has_long_answer: false,
};

const FORMAT_5: OldFile = OldFile {
    format: 5,
    data: include_bytes!("../files/format-5.sqlite"),
    locks: [
        (1_795_765_742_470_629, 1_795_765_742_470),
        (1_795_765_742_482_486, 1_795_765_742_482),
        (1_795_765_742_494_568, 1_795_765_742_494),
    ],
    in_flight: 1_795_765_742_550_670,
    failed: 1_795_765_742_627_893,
    done_at: 1_795_765_742_586,
    mark_at: 1_795_765_742_609,
    failed_at: 1_795_765_742_629,
    last_fence: 1_795_765_759_787_190,
    has_long_answer: true,
};

#[tokio::test]
async fn a_file_of_format_4_keeps_every_lock_and_record() {
    keeps_every_lock_and_record(&FORMAT_4).await;
}

#[tokio::test]
async fn a_file_of_format_5_keeps_every_lock_and_record() {
    keeps_every_lock_and_record(&FORMAT_5).await;
}

async fn keeps_every_lock_and_record(file: &OldFile) {
    let disk = Disk::with_data(file.data, 1);
    let (format, limit) = read_head(&disk.connect().unwrap()).unwrap();
    assert_eq!(format, file.format);
    let migrated = disk.open().unwrap();
    file.check(&migrated).await;
    drop(migrated);
    let head = read_head(&disk.connect().unwrap()).unwrap();
    assert_eq!(head, (NEWEST_FORMAT, limit));
    let again = Disk::new(disk.content(), 2).open().unwrap();
    file.check(&again).await;
    file.check_proofs(again.port()).await;
}

#[tokio::test]
async fn fencing_tokens_continue_above_those_of_format_4() {
    fencing_tokens_continue(&FORMAT_4).await;
}

#[tokio::test]
async fn fencing_tokens_continue_above_those_of_format_5() {
    fencing_tokens_continue(&FORMAT_5).await;
}

async fn fencing_tokens_continue(file: &OldFile) {
    let disk = Disk::with_data(file.data, 1);
    let (_, limit) = read_head(&disk.connect().unwrap()).unwrap();
    assert!(limit >= file.last_fence, "{limit} is below a fencing token that was given");
    let store = disk.open().unwrap();
    for number in 0..300 {
        let acquired = Acquire::new(&format!("new {number}"), "one").run(store.port()).await;
        let Ok(AcquireReply::Granted(lease)) = acquired else { panic!("{acquired:?}") };
        assert!(lease.fencing_token.get() > limit, "{} after up to {limit}", lease.fencing_token);
    }
}

#[test]
fn a_power_cut_during_the_migration_of_format_4_leaves_one_format_and_loses_nothing() {
    a_power_cut_loses_nothing(&FORMAT_4);
}

#[test]
fn a_power_cut_during_the_migration_of_format_5_leaves_one_format_and_loses_nothing() {
    a_power_cut_loses_nothing(&FORMAT_5);
}

fn a_power_cut_loses_nothing(file: &OldFile) {
    let (mut cut_before, mut cut_after) = (0, 0);
    for operations in 0.. {
        for seed in 0..8 {
            let disk = Disk::with_data(file.data, seed);
            disk.cut_after(operations);
            migrate(&disk);
            if disk.has_power() {
                assert!(cut_before > 0 && cut_after > 0, "{cut_before} and {cut_after} cuts");
                return;
            }
            match check_left(file, disk.cut(), seed) {
                NEWEST_FORMAT => cut_after += 1,
                format => {
                    assert_eq!(format, file.format, "after {operations} operations");
                    cut_before += 1;
                }
            }
        }
    }
}

#[tokio::test]
async fn a_full_disk_ends_the_migration_of_format_5_and_loses_nothing() {
    for refused in 0..1000 {
        let disk = Disk::with_data(FORMAT_5.data, 1);
        disk.fill_up_to(refused * 4096);
        let refusal = disk.open().err();
        disk.mend();
        FORMAT_5.check(&disk.open().unwrap()).await;
        let Some(error) = refusal else {
            assert!(refused > 1, "{refused} times it had no room");
            return;
        };
        assert!(matches!(error, OpenError::Directory { .. }), "{error}");
    }
    panic!("there is never room");
}

/// Opens the store, whether or not the power goes meanwhile.
#[tokio::main(flavor = "current_thread")]
async fn migrate(disk: &Disk) {
    disk.open().unwrap();
}

/// The format that a power cut left. The store on it is checked.
#[tokio::main(flavor = "current_thread")]
async fn check_left(file: &OldFile, left: Files, seed: u64) -> u64 {
    let disk = Disk::new(left, seed);
    let (format, _) = read_head(&disk.connect().unwrap()).unwrap();
    file.check(&disk.open().unwrap()).await;
    format
}

impl OldFile {
    /// Whether the store has what the file had.
    async fn check(&self, store: &TestStore) {
        self.check_locks(store.port()).await;
        self.check_records(store.port()).await;
    }

    async fn check_locks(&self, store: &dyn Store) {
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
        let [owned, plain, renewed] = self.locks;
        let held = [
            ("owned", "alice", owned.0, owned.1, 0),
            ("plain", "", plain.0, plain.1, 0),
            ("renewed", "Zoë, line 7", renewed.0, renewed.1, 0),
        ];
        assert_eq!(found, held);
        let ttls = [("owned", 600_000), ("plain", 86_400_000), ("renewed", 7_200_000)];
        for (lock, ttl) in ttls {
            let mut acquire = Acquire::new(lock, "any");
            (acquire.command.token, acquire.command.attempt) = (self.token(lock), Attempt::new(2));
            let again = acquire.run(store).await;
            let Ok(AcquireReply::Repeated(lease)) = again else { panic!("{lock}: {again:?}") };
            assert_eq!(lease.ttl.as_millis(), ttl, "{lock}");
        }
    }

    async fn check_records(&self, store: &dyn Store) {
        let in_flight = find(store, "in-flight").await;
        assert_eq!((in_flight.fencing_token.get(), in_flight.attempts), (self.in_flight, 1));
        assert_eq!(in_flight.begun_at_millis, self.in_flight / 1000);
        assert_eq!(in_flight.expires_in.as_secs(), 7200);
        assert!(matches!(in_flight.phase, RecordStatus::InFlight { .. }), "{in_flight:?}");
        let rerun = find(store, "rerun").await;
        assert!(matches!(rerun.phase, RecordStatus::InFlight { .. }), "{rerun:?}");
        let done = find(store, "done").await;
        let RecordStatus::Done { at_millis, kept: StoredResponse::Answer(answer) } = done.phase
        else {
            panic!("{done:?}")
        };
        assert_eq!((at_millis, answer.status), (self.done_at, 201));
        assert_eq!(answer.body, br#"{"message_id":4711}"#[..]);
        let location = |(name, value): &(String, _)| name == "location" && value == "/mails/4711";
        assert!(answer.headers.iter().any(location), "{:?}", answer.headers);
        let mark = find_guarded(store, "mark", "/v1/orders").await;
        let marked =
            RecordStatus::Done { at_millis: self.mark_at, kept: StoredResponse::Mark(201) };
        assert_eq!(mark.phase, marked);
        let failed = find_guarded(store, "failed", "/v1/payments").await;
        let since_millis = self.failed_at;
        assert_eq!(
            failed.phase,
            RecordStatus::Unknown { since_millis, reason: UnknownReason::Failed }
        );
        assert_eq!(failed.fencing_token.get(), self.failed);
        let interrupted = find(store, "interrupted").await;
        let is_interrupted = matches!(
            interrupted.phase,
            RecordStatus::Unknown { reason: UnknownReason::Interrupted, .. }
        );
        assert!(is_interrupted, "{interrupted:?}");
        if self.has_long_answer {
            check_long_answer(store).await;
        }
    }

    /// The proofs of the file still prove what they did, and those of no entry do not.
    async fn check_proofs(&self, store: &dyn Store) {
        let renewed = store.renew(&name("owned"), &self.token("plain"), Ttl::DEFAULT).await;
        assert_eq!(renewed.unwrap(), RenewReply::Mismatch);
        let renewed = store.renew(&name("owned"), &self.token("owned"), Ttl::DEFAULT).await;
        assert!(matches!(renewed.unwrap(), RenewReply::Renewed(_)));
        let (key, end) = (record("in-flight"), RunEnd::Done(StoredResponse::Mark(204)));
        let other = store.complete(&key, &self.token("rerun"), end.clone()).await;
        assert!(matches!(other.unwrap(), CompleteReply::Refused(_)));
        let own = store.complete(&key, &self.token("in-flight"), end).await;
        assert!(matches!(own.unwrap(), CompleteReply::Kept(_)));
        let other = BeginCommand { key: record("done"), ..begin("done", "another") };
        let reused = store.begin(&other).await.unwrap();
        assert!(matches!(reused, BeginReply::Reused(_)), "another fingerprint: {reused:?}");
    }

    fn token(&self, entry: &str) -> TokenHash {
        Token::parse(&format!("format-{}-token-of-{entry}", self.format)).unwrap().hash()
    }
}

/// An answer that memory has not is found in the row of its run.
async fn check_long_answer(store: &dyn Store) {
    let RecordStatus::Done { kept: StoredResponse::Answer(answer), .. } =
        find(store, "long").await.phase
    else {
        panic!("a long answer")
    };
    let text = "long ".repeat(1000);
    assert_eq!(answer.body, format!(r#"{{"text":"{text}"}}"#).as_bytes());
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
