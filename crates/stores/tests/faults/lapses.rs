//! Goal: what a client read of a lease that is over stays true, whatever was not on disk at that
//! moment.
//!
//! Method: the fault disk holds a sync for longer than a lease lasts, while tokio's clock is moved;
//! or the power goes after a client has read that a lease is over.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::poll;
use keylatch_core::idempotency::{
    BeginCommand, BeginReply, CompleteReply, OnCrash, RecordStatus, RecordView, RunEnd,
    StoredResponse,
};
use keylatch_core::lock::{AcquireCommand, LockLoss, LockSet, ReleaseReply, RenewReply, Ttl};
use keylatch_core::store::Effect;
use keylatch_stores::test_medium::TestStore;
use tokio::time::advance;

use crate::disk::Disk;
use crate::requests::{Acquire, begin, name, token};

/// For how long a lease of these tests lasts.
const SHORT: Duration = Duration::from_secs(60);

fn short_lock(lock: &str) -> Acquire {
    let lock = Acquire::new(lock, "one");
    let ttl = Ttl::from_millis(60_000).unwrap();
    Acquire { command: AcquireCommand { ttl, ..lock.command.clone() }, ..lock }
}

fn short_run(record: &str, runner: &str, on_crash: OnCrash) -> BeginCommand {
    BeginCommand { lease: SHORT, on_crash, ..begin(record, runner) }
}

fn end() -> RunEnd {
    RunEnd::Done(StoredResponse::Mark(201))
}

fn is_done(view: &RecordView) -> bool {
    matches!(view.phase, RecordStatus::Done { .. })
}

/// What `asked` reads that comes when a lease is over, while the disk has a change of before its
/// end.
async fn ask_meanwhile<T: Send + 'static, U>(
    disk: &Disk,
    changed: impl Future<Output = T> + Send + 'static,
    asked: impl Future<Output = U>,
) -> (T, U) {
    disk.hang();
    let changed = tokio::spawn(changed);
    disk.until_it_hangs().await;
    advance(2 * SHORT).await;
    let mut asked = pin!(asked);
    assert!(poll!(asked.as_mut()).is_pending(), "the disk has not said yet how it ended");
    disk.resume();
    (changed.await.unwrap(), asked.await)
}

fn open(disk: &Disk) -> Arc<TestStore> {
    Arc::new(disk.open().unwrap())
}

#[tokio::test(start_paused = true)]
async fn refusal_by_a_lapse_waits_for_a_renewal_that_is_on_its_way() {
    let disk = Disk::formatted(1);
    let opened = open(&disk);
    let (store, lock, two) = (opened.port(), short_lock("lock"), token("two"));
    for step in ["look", "renew", "release"] {
        lock.run(store).await.unwrap();
        let (its, lock) = (Arc::clone(&opened), lock.clone());
        let name = lock.name.clone();
        let renewed = async move {
            its.port().renew(&lock.name, &lock.command.token, Ttl::MAX).await.unwrap()
        };
        let asked = async {
            match step {
                "look" => assert!(store.look(&name).await.unwrap().is_some()),
                "renew" => {
                    let renewed = store.renew(&name, &two, Ttl::MAX).await.unwrap();
                    assert_eq!(renewed, RenewReply::lost(&name, LockLoss::Mismatch));
                }
                _ => {
                    let released = store.release(&name, &two).await.unwrap();
                    assert_eq!(released, ReleaseReply::Mismatch);
                }
            }
        };
        let (renewed, ()) = ask_meanwhile(&disk, renewed, asked).await;
        assert!(matches!(renewed, RenewReply::Renewed(_)), "{renewed:?}");
        store.release(&name, &token("one")).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn refusal_of_a_set_by_a_lapse_waits_for_a_renewal_that_is_on_its_way() {
    let disk = Disk::formatted(1);
    let opened = open(&disk);
    let (store, lock) = (opened.port(), short_lock("lock"));
    let set = LockSet::new(vec![lock.name.clone(), name("other")]).unwrap();
    store.acquire(&set, lock.command.clone()).await.unwrap();
    let (its, of_all, one) = (Arc::clone(&opened), set.clone(), lock.command.token);
    let renewed = async move { its.port().renew(&of_all, &one, Ttl::MAX).await.unwrap() };
    let asked = store.renew(&set, &one, Ttl::MAX);
    let (renewed, again) = ask_meanwhile(&disk, renewed, asked).await;
    assert!(matches!(renewed, RenewReply::Renewed(_)), "{renewed:?}");
    assert!(matches!(again.unwrap(), RenewReply::Renewed(_)));
}

#[tokio::test(start_paused = true)]
async fn refusal_by_a_lapse_waits_for_an_end_of_the_run_that_is_on_its_way() {
    for on_crash in [OnCrash::Unknown, OnCrash::Rerun] {
        let disk = Disk::formatted(1);
        let opened = open(&disk);
        let store = opened.port();
        for (step, record) in [(0, "found"), (1, "begun"), (2, "completed")] {
            let run = short_run(record, "one", on_crash);
            store.begin(&run).await.unwrap();
            let (its, key, token) = (Arc::clone(&opened), run.key, run.token);
            let completed = async move { its.port().complete(&key, &token, end()).await.unwrap() };
            let asked = async {
                match step {
                    0 => assert!(is_done(&store.find(&run.key).await.unwrap().unwrap())),
                    1 => {
                        let other = short_run(record, "two", on_crash);
                        let found = store.begin(&other).await.unwrap();
                        assert!(matches!(&found, BeginReply::Found(view) if is_done(view)));
                    }
                    _ => {
                        let again = store.complete(&run.key, &run.token, end()).await.unwrap();
                        assert!(matches!(again, CompleteReply::Done(_)), "{again:?}");
                    }
                }
            };
            let (completed, ()) = ask_meanwhile(&disk, completed, asked).await;
            assert!(matches!(completed, CompleteReply::Done(_)), "{completed:?}");
        }
    }
}

/// Nobody is told that it does not run again, and then it runs.
#[tokio::test(start_paused = true)]
async fn refusal_by_a_lapse_waits_for_an_abandonment_that_is_on_its_way() {
    let disk = Disk::formatted(1);
    let opened = open(&disk);
    let (store, run) = (opened.port(), short_run("run", "one", OnCrash::Unknown));
    store.begin(&run).await.unwrap();
    let (its, key, token) = (Arc::clone(&opened), run.key, run.token);
    let abandoned = async move { its.port().abandon(&key, &token).await.unwrap() };
    let other = short_run("run", "two", OnCrash::Unknown);
    let (_, begun) = ask_meanwhile(&disk, abandoned, store.begin(&other)).await;
    assert!(matches!(begun.unwrap(), BeginReply::Started(_)));
}

#[tokio::test(start_paused = true)]
async fn end_that_a_client_read_outlives_a_power_cut() {
    let disk = Disk::formatted(1);
    let opened = open(&disk);
    let store = opened.port();
    let (renewed, looked, run) =
        (short_lock("a"), short_lock("b"), short_run("run", "one", OnCrash::Unknown));
    let of_set = short_lock("c");
    let set = LockSet::new(vec![of_set.name.clone(), name("d")]).unwrap();
    renewed.run(store).await.unwrap();
    looked.run(store).await.unwrap();
    store.acquire(&set, of_set.command.clone()).await.unwrap();
    store.begin(&run).await.unwrap();
    advance(2 * SHORT).await;
    let one = token("one");
    let lost = store.renew(&renewed.name, &one, Ttl::MAX).await.unwrap();
    assert_eq!(lost, RenewReply::lost(&renewed.name, LockLoss::NotHeld));
    assert_eq!(store.look(&looked.name).await.unwrap(), None);
    let lost = store.renew(&set, &one, Ttl::MAX).await.unwrap();
    assert!(matches!(lost, RenewReply::Lost(_)), "{lost:?}");
    let found = store.find(&run.key).await.unwrap().unwrap();
    assert!(matches!(found.phase, RecordStatus::Unknown { .. }), "{found:?}");

    let again = Disk::new(disk.durable(), 1).open().unwrap();
    for name in [&renewed.name, &looked.name, &set.names()[0], &set.names()[1]] {
        assert_eq!(again.port().look(name).await.unwrap(), None, "{name} is back");
    }
    let found = again.port().find(&run.key).await.unwrap().unwrap();
    assert!(matches!(found.phase, RecordStatus::Unknown { .. }), "it runs again: {found:?}");
}

/// The disk takes nothing, and what is over is over all the same.
#[tokio::test(start_paused = true)]
async fn end_is_told_although_the_disk_takes_nothing() {
    let disk = Disk::formatted(1);
    let opened = open(&disk);
    let (store, lock) = (opened.port(), short_lock("lock"));
    lock.run(store).await.unwrap();
    disk.turn_read_only();
    let refused = Acquire::new("new", "one").run(store).await.unwrap_err();
    assert_eq!(refused.effect(), Effect::NotExecuted);
    advance(2 * SHORT).await;
    assert_eq!(store.look(&lock.name).await.unwrap(), None);
    let renewed = store.renew(&lock.name, &lock.command.token, Ttl::MAX).await;
    assert_eq!(renewed.unwrap(), RenewReply::lost(&lock.name, LockLoss::NotHeld));
}
