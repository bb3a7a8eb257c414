//! What leads a commit: a task of the runtime where that costs no caller its deadline, and the
//! writer's thread where it may.
//!
//! The disk knows the thread of each sync, and counts as quick until a test slows it down. The
//! thread may still be at its work after it answered, so a test that needs a task to lead commits
//! until one does.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::poll;
use keylatch_core::idempotency::{BeginCommand, OnCrash};
use keylatch_core::lock::AcquireReply;
use keylatch_core::store::{Effect, Store, StoreError};
use keylatch_stores::test_medium::TestStore;
use tokio::runtime::Builder;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::disk::{Disk, Files};
use crate::requests::{Acquire, begin};

const THREAD: &str = "keylatch-writer";
/// Longer than any answer takes that is not lost.
const PATIENCE: Duration = Duration::from_secs(60);
/// Among so many commits is one that finds the thread at rest, and they fill the log.
const COMMITS: u32 = 20_000;

/// Lets a test that fails end, whose runtime waits for its workers.
struct ResumeOnDrop(Disk);

impl Drop for ResumeOnDrop {
    fn drop(&mut self) {
        self.0.resume();
    }
}

/// A store on a disk, and locks that no other part of the test has.
struct Bench {
    disk: Disk,
    resume: ResumeOnDrop,
    store: Arc<TestStore>,
    locks: u32,
}

impl Bench {
    fn new() -> Self {
        let (disk, store) = Disk::with_store();
        Self { resume: ResumeOnDrop(disk.clone()), disk, store, locks: 0 }
    }

    fn free_lock(&mut self) -> Acquire {
        self.locks += 1;
        Acquire::new(&format!("lock {}", self.locks), "one")
    }

    /// Acquires a lock in a new task, as a connection does. Gives the thread of the sync.
    async fn commit(&mut self) -> String {
        self.acquire_in_task().await.unwrap().unwrap();
        self.disk.synced_by()
    }

    fn acquire_in_task(&mut self) -> JoinHandle<Result<AcquireReply, StoreError>> {
        let (store, lock) = (Arc::clone(&self.store), self.free_lock());
        tokio::spawn(async move { lock.run(store.port()).await })
    }

    /// Commits until a task leads.
    async fn until_a_task_leads(&mut self) {
        for _ in 0..COMMITS {
            if self.commit().await != THREAD {
                return;
            }
        }
        panic!("the thread led {COMMITS} commits of a store that is alone");
    }

    /// Hangs the disk in a commit that a task leads. Gives the request of that commit.
    async fn hang_a_task(&mut self) -> JoinHandle<Result<AcquireReply, StoreError>> {
        for _ in 0..COMMITS {
            self.until_a_task_leads().await;
            self.disk.hang();
            let request = self.acquire_in_task();
            if self.disk.until_it_hangs().await != THREAD {
                return request;
            }
            self.disk.resume();
            request.await.unwrap().unwrap();
        }
        panic!("no task led while the disk hung");
    }

    /// The store, once no other task has it.
    fn into_store(self) -> (TestStore, ResumeOnDrop) {
        (Arc::into_inner(self.store).expect("no other task has it"), self.resume)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_leads_where_commits_are_quick_and_the_thread_after_a_slow_one() {
    let mut bench = Bench::new();
    bench.until_a_task_leads().await;
    bench.disk.slow_down();
    bench.commit().await;
    for _ in 0..10 {
        assert_eq!(bench.commit().await, THREAD, "after a slow commit");
    }
    bench.disk.mend();
    bench.until_a_task_leads().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_does_not_lead_after_a_commit_that_failed() {
    let mut bench = Bench::new();
    for _ in 0..20 {
        bench.until_a_task_leads().await;
        bench.disk.turn_read_only();
        assert!(bench.acquire_in_task().await.unwrap().is_err());
        bench.disk.mend();
        assert_eq!(bench.commit().await, THREAD, "after a failure");
    }
}

#[test]
fn one_worker_never_leads() {
    let one_thread = Builder::new_current_thread().enable_all().build().unwrap();
    let one_worker = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    for runtime in [one_thread, one_worker] {
        let leaders: BTreeSet<_> = runtime.block_on(async {
            let (mut bench, mut leaders) = (Bench::new(), BTreeSet::new());
            for _ in 0..200 {
                leaders.insert(bench.commit().await);
            }
            leaders
        });
        assert_eq!(leaders, BTreeSet::from([THREAD.to_owned()]));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_hangs_as_leader_holds_no_deadline_and_no_read() {
    let mut bench = Bench::new();
    let held = bench.free_lock();
    held.run(bench.store.port()).await.unwrap();
    let leaders_own = bench.hang_a_task().await;
    let deadline = Duration::from_millis(50);
    let others: Vec<_> = (0..50)
        .map(|_| {
            let (store, lock) = (Arc::clone(&bench.store), bench.free_lock());
            tokio::spawn(async move { timeout(deadline, lock.run(store.port())).await.is_err() })
        })
        .collect();
    let reader = Arc::clone(&bench.store);
    let name = held.name.clone();
    let read = tokio::spawn(async move { reader.port().look(&name).await });
    let read = timeout(PATIENCE, read).await.expect("a read waits for no disk").unwrap();
    assert!(read.unwrap().is_some());
    for other in others {
        let ended = timeout(PATIENCE, other).await.expect("a deadline waits for no disk");
        assert!(ended.unwrap(), "a disk that hangs gave an answer");
    }
    assert!(!leaders_own.is_finished());
    bench.disk.resume();
    assert!(matches!(leaders_own.await.unwrap(), Ok(AcquireReply::Granted(_))));
    bench.store.port().health().await.expect("it answers again");
}

/// The caller whose request made the task lead has a deadline as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_hangs_as_leader_does_not_hold_its_own_caller() {
    let mut bench = Bench::new();
    for _ in 0..COMMITS {
        bench.until_a_task_leads().await;
        bench.disk.hang();
        let (store, lock) = (Arc::clone(&bench.store), bench.free_lock());
        let deadline = Duration::from_millis(50);
        let caller =
            tokio::spawn(async move { timeout(deadline, lock.run(store.port())).await.is_err() });
        let leader = bench.disk.until_it_hangs().await;
        let ended = timeout(PATIENCE, caller).await.expect("a deadline waits for no disk");
        assert!(ended.unwrap(), "a disk that hangs gave an answer");
        bench.disk.resume();
        if leader != THREAD {
            return;
        }
        bench.commit().await;
    }
    panic!("no task led while the disk hung");
}

/// A task that a leader wakes cannot move to another worker while the leader blocks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_does_not_wait_for_the_log_to_be_shortened() {
    let mut bench = Bench::new();
    bench.disk.hang_data();
    let disk = bench.disk.clone();
    let mut hanging = pin!(disk.until_it_hangs());
    for number in 0..COMMITS {
        let log = bench.disk.log();
        let mut request = bench.acquire_in_task();
        let shortener = tokio::select! {
            answered = &mut request => {
                answered.unwrap().unwrap();
                continue;
            }
            shortener = &mut hanging => shortener,
        };
        // A commit that is not in the log waits behind, and no answer to it is late.
        if bench.disk.log() != log {
            let answered = timeout(PATIENCE, request).await;
            answered
                .unwrap_or_else(|_| panic!("the answer to commit {number} hangs"))
                .unwrap()
                .unwrap();
        }
        assert_eq!(shortener, THREAD);
        return;
    }
    panic!("{COMMITS} commits do not have the log shortened");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_is_dropped_while_a_task_leads_loses_nothing() {
    let mut bench = Bench::new();
    let leaders_own = bench.hang_a_task().await;
    leaders_own.abort();
    let (disk, last) = (bench.disk.clone(), bench.locks);
    assert!(leaders_own.await.unwrap_err().is_cancelled());
    let (store, _resume) = bench.into_store();
    let dropped = tokio::task::spawn_blocking(move || drop(store));
    disk.resume();
    dropped.await.unwrap();
    assert_holds_all(disk.content(), last).await;
}

/// A task that its own worker has not begun to run: the worker closes the store first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_is_dropped_before_a_task_leads_loses_nothing() {
    for _ in 0..20 {
        let mut bench = Bench::new();
        bench.until_a_task_leads().await;
        let (disk, lock) = (bench.disk.clone(), bench.free_lock());
        let last = bench.locks;
        let closing = tokio::spawn(async move {
            let (store, _resume) = bench.into_store();
            {
                let mut acquire = pin!(lock.run(store.port()));
                assert!(poll!(acquire.as_mut()).is_pending());
            }
            drop(store);
            // As another process finds it that opens the file now.
            disk.content()
        });
        assert_holds_all(closing.await.unwrap(), last).await;
    }
}

/// A rule that panics is a defect of keylatch, and takes no other request with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_in_a_batch_of_a_task_ends_that_batch_alone() {
    let mut bench = Bench::new();
    for number in 0..20 {
        bench.until_a_task_leads().await;
        panic_in_a_batch(bench.store.port(), number).await;
        bench.commit().await;
    }
}

#[tokio::test]
async fn a_panic_in_a_batch_of_the_thread_ends_that_batch_alone() {
    let mut bench = Bench::new();
    for number in 0..3 {
        panic_in_a_batch(bench.store.port(), number).await;
        let next = timeout(PATIENCE, bench.commit()).await;
        assert_eq!(next.expect("the next batch is committed"), THREAD);
    }
    bench.store.port().health().await.expect("it works");
}

/// The work of the thread between two batches is no caller's, so only a restart of the process
/// helps.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_that_ended_by_a_panic_is_dead_and_leaves_no_request_waiting() {
    let mut bench = Bench::new();
    bench.commit().await;
    assert!(bench.store.port().gauges().is_alive);
    bench.disk.panic_where_the_log_is_moved();
    for _ in 0..COMMITS {
        let request = bench.acquire_in_task();
        let answered = timeout(PATIENCE, request).await.expect("an answer");
        if answered.unwrap().is_err() {
            break;
        }
    }
    while bench.store.port().gauges().is_alive {
        tokio::task::yield_now().await;
    }
    let refused = timeout(PATIENCE, bench.free_lock().run(bench.store.port())).await;
    assert_eq!(refused.expect("an answer").unwrap_err().effect(), Effect::NotExecuted);
}

/// Runs a batch in which the rules panic, at the end of a retention that no clock can show. No
/// caller over HTTP can ask for one.
async fn panic_in_a_batch(store: &dyn Store, number: u32) {
    let begin = begin(&format!("record {number}"), "one");
    let endless = BeginCommand { on_crash: OnCrash::Rerun, retention: Duration::MAX, ..begin };
    store.begin(&endless).await.unwrap();
    let panicked = timeout(PATIENCE, store.abandon(&endless.key, &endless.token)).await;
    let error = panicked.expect("an answer").unwrap_err();
    assert_eq!(error.effect(), Effect::Unknown, "{error:?}");
}

/// Whether the file is closed and has the locks up to number `last`.
async fn assert_holds_all(content: Files, last: u32) {
    assert_eq!(content["locks-wal"].len(), 0, "the file was not closed");
    let again = Disk::new(content, 1).open().unwrap();
    for number in 1..=last {
        let name = Acquire::new(&format!("lock {number}"), "one").name;
        assert!(again.port().look(&name).await.unwrap().is_some(), "{name:?} of {last} is lost");
    }
}
