//! Goal: a long answer stays on disk, is replayed as it was acknowledged, and is never another one.
//!
//! Method: a store on the fault disk says how many bytes of answers it has in memory. The long
//! answers are longer than all that SQLite keeps of the file, so that each is read from the disk,
//! which fails, hangs or has changed.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{FutureExt as _, poll};
use keylatch_core::idempotency::{
    AbandonReply, Answer, BeginCommand, BeginReply, CompleteReply, EraseReply, IdempotencyService,
    OnceRun, RecordLimits, RecordStatus, RecordView, RunEnd, RunRequest, RunResult, StoredResponse,
};
use keylatch_core::lock::{AcquireRequest, LockError, LockService, Ttl, WaiterLimits};
use keylatch_core::store::{Effect, Store, StoreError};
use keylatch_core::waiters::WaiterLimit;
use keylatch_stores::test_medium::TestStore;
use tokio::time::{advance, pause, resume, timeout};

use crate::disk::Disk;
use crate::requests::{Acquire, begin, key, secret, token};

/// Longer than SQLite's cache of 2 MB.
const LONG: usize = 3 << 20;
/// How long a deadline may take that waits for nothing.
const PATIENCE: Duration = Duration::from_secs(20);
/// The most bytes of an answer that stay in memory.
const IN_MEMORY: u64 = 1024;

/// An answer of so many bytes, which differs from any other of another seed.
fn answer(seed: u8, length: usize) -> StoredResponse {
    let body = (0..length).map(|at| (at / 251) as u8 ^ at as u8 ^ seed).collect::<Vec<_>>();
    let headers = vec![("location".to_owned(), Bytes::from_static(b"/orders/1"))];
    StoredResponse::Answer(Arc::new(Answer { status: 201, headers, body: Bytes::from(body) }))
}

async fn complete(store: &dyn Store, record: &str, kept: &StoredResponse) -> CompleteReply {
    let begin = begin(record, "one");
    store.begin(&begin).await.unwrap();
    store.complete(&begin.key, &begin.token, RunEnd::Done(kept.clone())).await.unwrap()
}

async fn replay(store: &dyn Store, record: &str) -> Result<BeginReply, StoreError> {
    store.begin(&begin(record, "another")).await
}

#[track_caller]
fn kept(view: &RecordView) -> &StoredResponse {
    let RecordStatus::Done { kept, .. } = &view.phase else { panic!("done, not {view:?}") };
    kept
}

#[track_caller]
fn assert_replayed(reply: Result<BeginReply, StoreError>, answer: &StoredResponse) {
    let Ok(BeginReply::Found(view)) = reply else { panic!("found, not {reply:?}") };
    assert!(kept(&view) == answer, "it is another answer");
}

#[track_caller]
fn body(reply: Result<BeginReply, StoreError>) -> Bytes {
    let Ok(BeginReply::Found(view)) = reply else { panic!("found, not {reply:?}") };
    let StoredResponse::Answer(answer) = kept(&view) else { panic!("an answer, not {view:?}") };
    answer.body.clone()
}

/// A store with a long answer under "long" and a short one under "short".
async fn store_with_answers() -> (Disk, Arc<TestStore>, StoredResponse) {
    let ((disk, opened), long) = (Disk::with_store(), answer(1, LONG));
    complete(opened.port(), "long", &long).await;
    complete(opened.port(), "short", &answer(2, 100)).await;
    (disk, opened, long)
}

#[tokio::test]
async fn long_answers_are_on_disk_and_not_in_memory() {
    let lengths = [0, 100, 1000, 1100, 5000, 100_000, 1 << 20, LONG];
    let answers = lengths.map(|length| (length.to_string(), answer(1, length)));
    let (disk, store) = Disk::with_store();
    for (record, answer) in &answers {
        complete(store.port(), record, answer).await;
    }
    let bytes = answers.iter().map(|(_, answer)| answer.kept_bytes());
    let (all, short) = (bytes.clone().sum(), bytes.filter(|bytes| *bytes <= IN_MEMORY).sum());
    let again = Disk::new(disk.cut(), 1);
    for store in [store, Arc::new(again.open().unwrap())] {
        let room = store.port().gauges().room.expect("the records are in this process").bytes();
        assert!(room > all, "{room} bytes, of which answers have {all}");
        assert_eq!(store.answer_bytes_in_memory(), short);
        for (record, answer) in &answers {
            assert_replayed(replay(store.port(), record).await, answer);
            let found = store.port().find(&key(record)).await.unwrap().expect("a record");
            assert!(kept(&found) == answer, "{record}");
        }
        // What was read does not stay.
        assert_eq!(store.answer_bytes_in_memory(), short);
    }
}

#[tokio::test]
async fn an_answer_that_is_replayed_to_many_is_in_memory_once() {
    let (disk, store, long) = store_with_answers().await;
    let one = body(replay(store.port(), "long").await);
    disk.break_down();
    // From the memory of the first client's answer.
    let two = body(replay(store.port(), "long").await);
    assert_eq!(one.as_ptr(), two.as_ptr());
    drop(one);
    let three = body(replay(store.port(), "long").await);
    assert_eq!(two.as_ptr(), three.as_ptr());
    drop((two, three));
    replay(store.port(), "long").await.expect_err("no client has it any more");
    disk.mend();
    assert_replayed(replay(store.port(), "long").await, &long);
}

#[tokio::test]
async fn a_disk_that_cannot_be_read_gives_an_error_and_no_other_answer() {
    let (disk, store, long) = store_with_answers().await;
    disk.break_down();
    let error = replay(store.port(), "long").await.unwrap_err();
    assert_eq!(error.effect(), Effect::NotExecuted, "{error:?}");
    store.port().find(&key("long")).await.unwrap_err();
    assert_replayed(replay(store.port(), "short").await, &answer(2, 100));
    disk.mend();
    assert_replayed(replay(store.port(), "long").await, &long);
    // One that cannot be written can still be read.
    disk.turn_read_only();
    Acquire::new("new", "one").run(store.port()).await.unwrap_err();
    assert_replayed(replay(store.port(), "long").await, &long);
}

#[tokio::test]
async fn an_answer_that_has_changed_on_disk_gives_an_error_and_no_other_answer() {
    let (disk, store, _) = store_with_answers().await;
    // Its first bytes are no longer in any cache.
    disk.damage(&body_of(&answer(1, LONG))[..64]);
    for _ in 0..2 {
        let error = replay(store.port(), "long").await.unwrap_err();
        assert_eq!(error.effect(), Effect::NotExecuted, "{error:?}");
    }
    assert_replayed(replay(store.port(), "short").await, &answer(2, 100));
    // It can still be erased, and its key stays used.
    let erased = store.port().erase(&key("long")).await.unwrap();
    assert!(matches!(erased, EraseReply::Done(_)), "{erased:?}");
    assert_replayed(replay(store.port(), "long").await, &StoredResponse::Mark(201));
}

fn body_of(kept: &StoredResponse) -> Bytes {
    let StoredResponse::Answer(answer) = kept else { panic!("an answer, not {kept:?}") };
    answer.body.clone()
}

#[tokio::test]
async fn a_disk_that_hangs_holds_a_long_answer_and_nothing_else() {
    let (disk, store, long) = store_with_answers().await;
    let acquire = Acquire::new("new", "one").hang(&store, &disk).await;
    let mut replayed = pin!(replay(store.port(), "long"));
    assert!(poll!(replayed.as_mut()).is_pending());
    // Callers that have gone wait for nothing.
    for _ in 0..100 {
        assert!(replay(store.port(), "long").now_or_never().is_none());
    }
    let short = replay(store.port(), "short").now_or_never().expect("an answer at once");
    assert_replayed(short, &answer(2, 100));
    assert!(store.port().find(&key("none")).now_or_never().expect("an answer at once").is_ok());
    disk.resume();
    acquire.await.unwrap().unwrap();
    assert_replayed(replayed.await, &long);
}

/// SQLite reads on the connection that writes, so changes wait for the read. No deadline does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_that_hangs_holds_changes_until_their_deadline_and_nothing_else() {
    /// For how long a request may wait for the store.
    const DEADLINE: Duration = Duration::from_millis(100);
    let (disk, opened, long) = store_with_answers().await;
    let (held, new) = (Acquire::new("held", "one"), Acquire::new("new", "two"));
    held.run(opened.port()).await.unwrap();
    let records = IdempotencyService::start(opened.shared(), DEADLINE);
    let limits = WaiterLimits { each: 10, all: 10 };
    let locks = LockService::start(opened.shared(), DEADLINE, limits).unwrap();
    let again = || records.begin(begin("long", "two"), true);

    disk.hang_reads();
    let (one, two, _) =
        patiently(async { tokio::join!(again(), again(), disk.until_it_hangs()) }).await;
    for replayed in [one, two] {
        assert!(matches!(replayed, Err(StoreError::Deadline(_))), "{replayed:?}");
    }
    let acquired = patiently(locks.acquire(AcquireRequest::new(new.name.clone(), Ttl::MAX))).await;
    assert!(matches!(acquired, Err(LockError::Store(StoreError::Deadline(_)))), "{acquired:?}");
    let release = patiently(locks.leave(&held.name, &secret("one"), None)).await;
    assert!(matches!(release, Err(StoreError::Deadline(_))), "{release:?}");
    // `/readyz` says it, and not `/livez`: a restart would not help.
    assert!(patiently(locks.health()).await.is_err());
    assert!(locks.is_alive());
    assert!(locks.look(&held.name).now_or_never().expect("an answer at once").unwrap().is_some());
    let short = opened.port().begin(&begin("short", "two")).now_or_never();
    assert_replayed(short.expect("an answer at once"), &answer(2, 100));

    disk.resume();
    patiently(until(async || locks.health().await.is_ok())).await;
    assert_replayed(patiently(replay(opened.port(), "long")).await, &long);
    // What was answered as unknown was carried out: the release stays, and the grant is withdrawn.
    for name in [&held.name, &new.name] {
        patiently(until(async || locks.look(name).await.unwrap().is_none())).await;
    }
}

async fn until(holds: impl AsyncFn() -> bool) {
    while !holds().await {
        tokio::task::yield_now().await;
    }
}

/// What `step` comes to, before the test gives up.
async fn patiently<T>(step: impl Future<Output = T>) -> T {
    timeout(PATIENCE, step).await.expect("no deadline waits for the disk")
}

/// Requests that were decided while the disk hung, and read after what came before them.
#[tokio::test(start_paused = true)]
async fn an_answer_that_goes_before_it_is_read_gives_what_is_true_then() {
    let (disk, store, long) = store_with_answers().await;
    complete(store.port(), "erased", &long).await;
    let acquire = Acquire::new("new", "one").hang(&store, &disk).await;
    let port = store.port();
    // It takes all that is read before the next batch.
    let mut first = pin!(replay(port, "long"));
    let mut erased = pin!(replay(port, "erased"));
    let erasure = key("erased");
    let mut erase = pin!(port.erase(&erasure));
    assert!(poll!(first.as_mut()).is_pending() && poll!(erased.as_mut()).is_pending());
    assert!(poll!(erase.as_mut()).is_pending());
    disk.resume();
    assert_replayed(first.await, &long);
    assert_replayed(erased.await, &StoredResponse::Mark(201));
    assert!(matches!(erase.await, Ok(EraseReply::Done(_))));
    acquire.await.unwrap().unwrap();

    let acquire = Acquire::new("newer", "one").hang(&store, &disk).await;
    let mut expired = pin!(replay(port, "long"));
    assert!(poll!(expired.as_mut()).is_pending());
    advance(Duration::from_secs(25 * 3600)).await;
    disk.resume();
    let begun = expired.await;
    assert!(matches!(begun, Ok(BeginReply::Started(_))), "{begun:?}");
    let found = port.find(&key("long")).await.unwrap().expect("a record");
    assert!(matches!(found.phase, RecordStatus::InFlight { .. }), "{found:?}");
    acquire.await.unwrap().unwrap();
}

/// A repeat that has no room for an answer of its own reads what is kept, and the retention ends
/// meanwhile.
#[tokio::test]
async fn an_answer_that_goes_while_it_is_read_does_not_begin_a_run_without_room() {
    let (disk, store, long) = store_with_answers().await;
    let limits = RecordLimits { kept_bytes: 1, unknown: 1, waiters: WaiterLimit::new(1) };
    let records = IdempotencyService::start_within(store.shared(), PATIENCE, limits);
    let work = |_| async { RunResult { answer: (), end: None, late: None } };
    let mut repeat = pin!(records.once(request("long"), work));
    disk.hang_reads();
    assert!(poll!(repeat.as_mut()).is_pending());
    disk.until_it_hangs().await;
    let mut behind = pin!(replay(store.port(), "long"));
    assert!(poll!(behind.as_mut()).is_pending());
    disk.resume();
    // The repeat was answered by the store before, and has not read that yet.
    assert_replayed(behind.await, &long);
    pause();
    advance(Duration::from_secs(25 * 3600)).await;
    resume();
    let repeated = repeat.await;
    assert!(matches!(&repeated, Ok(OnceRun::Found(view)) if *kept(view) == long), "{repeated:?}");
}

/// What begins as `begin` does.
fn request(record: &str) -> RunRequest {
    let BeginCommand { key, scope, fingerprint, lease, retention, on_crash, .. } =
        begin(record, "one");
    RunRequest {
        key,
        scope,
        fingerprint,
        lease,
        retention,
        on_crash,
        panic_releases: false,
        wait: Duration::ZERO,
        step_limit: None,
        answer_bytes: 1024,
    }
}

/// Two answers of one length and status have the same stub.
#[tokio::test]
async fn a_completion_is_compared_with_the_answer_on_disk() {
    let (disk, store, long) = store_with_answers().await;
    let complete = async |kept: &StoredResponse| {
        store.port().complete(&key("long"), &token("one"), RunEnd::Done(kept.clone())).await
    };
    assert!(matches!(complete(&long).await, Ok(CompleteReply::Done(view)) if *kept(&view) == long));
    for other in [answer(2, LONG), answer(1, LONG - 1), StoredResponse::Mark(201)] {
        let reply = complete(&other).await;
        assert!(matches!(&reply, Ok(CompleteReply::Refused(view)) if *kept(view) == long));
    }
    // It undoes a step that may be on its way, so the writer decides it.
    let abandoned = store.port().abandon(&key("long"), &token("one")).await;
    assert!(matches!(abandoned, Ok(AbandonReply::Refused(view)) if *kept(&view) == long));
    disk.break_down();
    complete(&long).await.expect_err("it could not be compared");
}
