use std::pin::pin;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use futures_util::{FutureExt as _, poll};
use tokio::task::JoinHandle;

use super::super::*;
use super::disk::Disk;
use super::store::{ask, begin, open, token};
use keylatch_core::idempotency::{
    Abandonment, Begun, Complete, End, Kept, Phase, RecordStore as _,
};

/// An acquire that waits for a disk that hangs.
async fn waiting(
    store: &Arc<EmbeddedStore>,
    disk: &Disk,
    lock: &str,
) -> JoinHandle<Result<Acquisition, StoreError>> {
    disk.hang();
    let (store, ask, hanging) = (Arc::clone(store), ask(lock, "one"), disk.clone());
    let acquire = tokio::spawn(async move { store.acquire(&ask).await });
    tokio::task::spawn_blocking(move || hanging.hangs()).await.unwrap();
    acquire
}

/// What `answer` says without waiting.
#[track_caller]
fn at_once<T: std::fmt::Debug>(answer: impl Future<Output = Result<T, StoreError>>) -> T {
    answer.now_or_never().expect("an answer at once").unwrap()
}

#[tokio::test]
async fn reads_and_refusals_do_not_wait_for_a_disk_that_hangs() {
    let disk = Disk::formatted(1);
    let store = Arc::new(open(&disk).unwrap());
    let (held, done) = (ask("held", "one"), begin("done", "one"));
    store.acquire(&held).await.unwrap();
    store.begin(&done).await.unwrap();
    let end = End::Done(Kept::Mark(201));
    store.complete(&Complete { key: done.key, token: done.token, end }).await.unwrap();
    let acquire = waiting(&store, &disk, "new").await;

    let name = &held.name;
    assert!(at_once(store.get(name)).is_some());
    let other = Acquire { token: token("two"), ..held.clone() };
    assert!(matches!(at_once(store.acquire(&other)), Acquisition::Held(_)));
    assert_eq!(at_once(store.renew(name, &other.token, Ttl::DEFAULT)), Renewal::Mismatch);
    assert_eq!(at_once(store.release(name, &other.token)), Release::Mismatch);
    let found = at_once(store.find(&done.key)).expect("a record");
    assert!(matches!(found.phase, Phase::Done { .. }), "{found:?}");
    assert!(matches!(at_once(store.begin(&done)), Begun::Found(_)));
    // What is not on disk is told to nobody.
    assert_eq!(at_once(store.get(&ask("new", "one").name)), None);
    let all = ListLocks { prefix: String::new(), limit: 10, cursor: None };
    assert_eq!(at_once(store.list(&all)).expect("a page").locks.len(), 1);
    assert!(store.ping().now_or_never().is_none(), "a disk that hangs is not well");

    disk.go_on();
    assert!(matches!(acquire.await.unwrap(), Ok(Acquisition::Granted(_))));
    store.ping().await.expect("it goes on");
    assert!(at_once(store.get(&ask("new", "one").name)).is_some());
}

#[tokio::test]
async fn what_is_still_on_its_way_is_taken_back_all_the_same() {
    let disk = Disk::formatted(1);
    let store = Arc::new(open(&disk).unwrap());
    let acquire = waiting(&store, &disk, "new").await;
    let (ask, run) = (ask("new", "one"), begin("run", "one"));
    let (begun, (), abandoned) = {
        let all = async {
            let steps = (
                store.begin(&run),
                store.withdraw(&ask.name, &ask.token, ask.attempt),
                store.abandon(&run.key, &run.token),
            );
            tokio::try_join!(steps.0, steps.1, steps.2).unwrap()
        };
        let mut all = pin!(all);
        assert!(poll!(all.as_mut()).is_pending());
        disk.go_on();
        all.await
    };
    assert!(matches!(acquire.await.unwrap(), Ok(Acquisition::Granted(_))));
    assert!(matches!(begun, Begun::Started(_)), "{begun:?}");
    assert_eq!(abandoned, Abandonment::Abandoned);
    assert_eq!(store.get(&ask.name).await.unwrap(), None);
    assert_eq!(store.find(&run.key).await.unwrap(), None);
}

#[tokio::test]
async fn a_disk_that_hangs_does_not_hold_the_end_of_the_process() {
    let disk = Disk::formatted(1);
    let store = Arc::new(open(&disk).unwrap());
    let acquire = waiting(&store, &disk, "new").await;
    acquire.abort();
    assert!(acquire.await.unwrap_err().is_cancelled());
    let (ended, end) = mpsc::channel();
    thread::spawn(move || {
        drop(Arc::into_inner(store).expect("nobody else has it"));
        ended.send(()).expect("the test waits");
    });
    let ended = tokio::task::spawn_blocking(move || end.recv_timeout(Duration::from_secs(20)));
    ended.await.unwrap().expect("the store lets go of the disk");
    disk.go_on();
}
