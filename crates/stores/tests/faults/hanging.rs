//! Goal: a disk that hangs holds no read, no refusal and not the end of the process.
//!
//! Method: the fault disk stops a sync until the test lets it resume. What must not wait is
//! asserted to be ready at once, without a clock.

use std::pin::pin;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use futures_util::{FutureExt as _, poll};
use keylatch_core::idempotency::{
    AbandonReply, BeginCommand, BeginReply, RecordStatus, RunEnd, StoredResponse,
};
use keylatch_core::lock::{AcquireCommand, AcquireReply, LockLoss, ReleaseReply, RenewReply, Ttl};
use keylatch_core::store::{Effect, ListLocks, StoreError};

use crate::disk::Disk;
use crate::requests::{Acquire, begin, token};

/// What `answer` says without waiting.
#[track_caller]
fn at_once<T: std::fmt::Debug>(answer: impl Future<Output = Result<T, StoreError>>) -> T {
    answer.now_or_never().expect("an answer at once").unwrap()
}

#[tokio::test]
async fn reads_and_refusals_do_not_wait_for_a_disk_that_hangs() {
    let (disk, opened) = Disk::with_store();
    let store = opened.port();
    let (held, done) = (Acquire::new("held", "one"), begin("done", "one"));
    held.run(store).await.unwrap();
    store.begin(&done).await.unwrap();
    store.complete(&done.key, &done.token, RunEnd::Done(StoredResponse::Mark(201))).await.unwrap();
    let acquire = Acquire::new("new", "one").hang(&opened, &disk).await;

    let (name, two) = (&held.name, token("two"));
    assert!(at_once(store.look(name)).is_some());
    let other = AcquireCommand { token: two, ..held.command.clone() };
    assert!(matches!(at_once(store.acquire(name, other)), AcquireReply::Busy(_)));
    let renewed = at_once(store.renew(name, &two, Ttl::DEFAULT));
    assert_eq!(renewed, RenewReply::lost(name, LockLoss::Mismatch));
    assert_eq!(at_once(store.release(name, &two)), ReleaseReply::Mismatch);
    let found = at_once(store.find(&done.key)).expect("a record");
    assert!(matches!(found.phase, RecordStatus::Done { .. }), "{found:?}");
    assert!(matches!(at_once(store.begin(&done)), BeginReply::Found(_)));
    let roomless = BeginCommand { has_room: false, ..begin("unused", "one") };
    assert_eq!(at_once(store.begin(&roomless)), BeginReply::NoRoom);
    // No reader sees what is not on disk.
    let new = Acquire::new("new", "one").name;
    assert_eq!(at_once(store.look(&new)), None);
    let all = ListLocks { prefix: String::new(), limit: 10, cursor: None };
    assert_eq!(at_once(store.list_locks(&all)).expect("a page").entries.len(), 1);
    assert!(store.health().now_or_never().is_none(), "a disk that hangs is not well");

    disk.resume();
    assert!(matches!(acquire.await.unwrap(), Ok(AcquireReply::Granted(_))));
    store.health().await.expect("it answers again");
    assert!(at_once(store.look(&new)).is_some());
}

#[tokio::test]
async fn what_is_still_on_its_way_is_withdrawn_all_the_same() {
    let (disk, opened) = Disk::with_store();
    let store = opened.port();
    let acquired = Acquire::new("new", "one").hang(&opened, &disk).await;
    let (acquire, run) = (Acquire::new("new", "one"), begin("run", "one"));
    let (begun, (), abandoned) = {
        let all = async {
            let steps =
                (store.begin(&run), acquire.withdraw(store), store.abandon(&run.key, &run.token));
            tokio::try_join!(steps.0, steps.1, steps.2).unwrap()
        };
        let mut all = pin!(all);
        assert!(poll!(all.as_mut()).is_pending());
        disk.resume();
        all.await
    };
    assert!(matches!(acquired.await.unwrap(), Ok(AcquireReply::Granted(_))));
    assert!(matches!(begun, BeginReply::Started(_)), "{begun:?}");
    assert_eq!(abandoned, AbandonReply::Done(()));
    assert_eq!(store.look(&acquire.name).await.unwrap(), None);
    assert_eq!(store.find(&run.key).await.unwrap(), None);
}

/// Each change whose caller has gone leaves its work in the queue, for as long as the disk hangs.
#[tokio::test]
async fn a_full_queue_refuses_changes_at_once_until_the_disk_resumes() {
    /// More than any number of clients whose requests are served at once.
    const MANY: u32 = 100_000;
    let (disk, opened) = Disk::with_store();
    let store = opened.port();
    let held = Acquire::new("held", "one");
    held.run(store).await.unwrap();
    let acquired = Acquire::new("new", "one").hang(&opened, &disk).await;
    // As renewals whose deadline is over.
    let renew = || store.renew(&held.name, &held.command.token, Ttl::DEFAULT);
    let refused = (0..MANY).find_map(|_| renew().now_or_never());
    let refused = refused.expect("a bound of the queue").unwrap_err();
    assert_eq!(refused.effect(), Effect::NotExecuted, "{refused:?}");
    let refused = Acquire::new("refused", "one");
    let error = refused.run(store).now_or_never().expect("an answer at once").unwrap_err();
    assert_eq!(error.effect(), Effect::NotExecuted, "{error:?}");
    assert!(at_once(store.look(&held.name)).is_some());

    disk.resume();
    assert!(matches!(acquired.await.unwrap(), Ok(AcquireReply::Granted(_))));
    // Behind what is queued there is room again.
    while store.health().await.is_err() {
        tokio::task::yield_now().await;
    }
    assert_eq!(store.look(&refused.name).await.unwrap(), None);
    assert!(matches!(refused.run(store).await, Ok(AcquireReply::Granted(_))));
}

#[tokio::test]
async fn a_disk_that_hangs_does_not_hold_the_end_of_the_process() {
    let (disk, store) = Disk::with_store();
    let acquire = Acquire::new("new", "one").hang(&store, &disk).await;
    acquire.abort();
    assert!(acquire.await.unwrap_err().is_cancelled());
    let (ended, end) = mpsc::channel();
    thread::spawn(move || {
        drop(Arc::into_inner(store).expect("no other task has it"));
        ended.send(()).expect("the test waits");
    });
    let ended = tokio::task::spawn_blocking(move || end.recv_timeout(Duration::from_secs(20)));
    ended.await.unwrap().expect("the store closes without the disk");
    disk.resume();
}
