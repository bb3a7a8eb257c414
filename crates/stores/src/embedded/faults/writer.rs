use std::pin::pin;
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::poll;

use super::super::*;
use super::disk::Disk;
use super::store::{ask, begin, open, token};
use keylatch_core::idempotency::{Begin, OnCrash, Phase, RecordStore as _};
use keylatch_core::lock::FencingToken;
use row::Head;

#[tokio::test]
async fn changes_that_come_together_share_a_sync() {
    let disk = Disk::formatted(1);
    let store = open(&disk).unwrap();
    disk.hang();
    let locks: Vec<_> = (0..100).map(|n| ask(&format!("lock {n}"), "one")).collect();
    let runs: Vec<_> = (0..100).map(|n| begin(&format!("record {n}"), "one")).collect();
    let mut acquires = pin!(join_all(locks.iter().map(|ask| store.acquire(ask))));
    let mut begins = pin!(join_all(runs.iter().map(|begin| store.begin(begin))));
    let hanging = disk.clone();
    assert!(poll!(acquires.as_mut()).is_pending() && poll!(begins.as_mut()).is_pending());
    tokio::task::spawn_blocking(move || hanging.hangs()).await.unwrap();
    let before = disk.syncs();
    disk.go_on();
    assert!(acquires.await.iter().all(Result::is_ok) && begins.await.iter().all(Result::is_ok));
    // One for what the first commit was given, one for the rest, and the file may have to grow.
    let syncs = disk.syncs() - before;
    assert!(syncs <= 6, "{syncs} syncs for 200 changes");
}

#[tokio::test]
async fn a_task_is_alone_until_another_one_changes_or_reads_anything() {
    let disk = Disk::formatted(1);
    let store = Arc::new(open(&disk).unwrap());
    let is_alone = async || store.writer.callers.call().await.is_alone();
    let (held, free) = (ask("held", "one"), ask("free", "one"));
    store.acquire(&held).await.unwrap();
    assert!(is_alone().await, "nobody else was there");
    let all = ListLocks { prefix: String::new(), limit: 10, cursor: None };
    for what in ["change", "refusal", "look", "list"] {
        let (store, held, free, all) =
            (Arc::clone(&store), held.clone(), free.clone(), all.clone());
        let other = tokio::spawn(async move {
            match what {
                "change" => drop(store.acquire(&free).await.unwrap()),
                "refusal" => drop(store.release(&held.name, &token("two")).await.unwrap()),
                "look" => drop(store.get(&held.name).await.unwrap()),
                _ => drop(store.list(&all).await.unwrap()),
            }
        });
        other.await.unwrap();
        assert!(!is_alone().await, "after another one's {what}");
        assert!(is_alone().await, "since the {what}");
    }
}

#[tokio::test]
async fn fences_rise_over_a_grant_and_release_in_one_batch() {
    let disk = ahead_of_the_clock();
    let store = open(&disk).unwrap();
    let (ask, mut last) = (ask("lock", "one"), FencingToken::NONE);
    for _ in 0..50 {
        let (acquire, release) = (ask.clone(), Return { token: ask.token });
        let both = tokio::join!(
            store.writer.run(ask.name.clone(), on_lock(acquire)),
            store.writer.run(ask.name.clone(), on_lock(release))
        );
        let (Ok(Acquisition::Granted(lease)), Ok(Release::Released)) = both else {
            panic!("granted and released, not {both:?}");
        };
        assert!(lease.fence > last, "{:?} after {last:?}", lease.fence);
        last = lease.fence;
    }
    let again = open(&Disk::new(disk.durable(), 1)).unwrap();
    assert!(again.last_fence() >= last, "{:?} after a power cut", again.last_fence());
}

#[tokio::test]
async fn what_a_batch_takes_back_itself_is_not_written() {
    let disk = ahead_of_the_clock();
    let store = open(&disk).unwrap();
    disk.hang();
    let (first, ask) = (ask("first", "one"), ask("lock", "one"));
    let mut acquired = pin!(store.acquire(&first));
    let hanging = disk.clone();
    assert!(poll!(acquired.as_mut()).is_pending());
    tokio::task::spawn_blocking(move || hanging.hangs()).await.unwrap();
    let acquire = store.writer.run(ask.name.clone(), on_lock(ask.clone()));
    let release = store.writer.run(ask.name.clone(), on_lock(Return { token: ask.token }));
    let mut both = pin!(async { tokio::join!(acquire, release) });
    assert!(poll!(both.as_mut()).is_pending());
    disk.go_on();
    acquired.await.unwrap();
    let syncs = disk.syncs();
    assert!(matches!(both.await, (Ok(Acquisition::Granted(_)), Ok(Release::Released))));
    assert_eq!(disk.syncs(), syncs, "a lock that came and went was synced");
}

#[tokio::test]
async fn a_grant_that_expires_on_its_way_leaves_the_disk_as_well() {
    let disk = Disk::formatted(1);
    let store = open(&disk).unwrap();
    tokio::time::pause();
    let ask = Acquire { ttl: Ttl::from_millis(100).unwrap(), ..ask("lock", "one") };
    store.acquire(&ask).await.unwrap();
    tokio::time::advance(Duration::from_secs(1)).await;
    let expired = store.table.look::<LockState>(&ask.name).0;
    store.table.install(&ask.name, expired);
    store.sweep().await.unwrap();
    drop(store);
    let again = open(&Disk::new(disk.content(), 1)).unwrap();
    assert_eq!(again.get(&ask.name).await.unwrap(), None);
}

#[tokio::test]
async fn what_expires_or_ends_by_itself_is_written_down() {
    let disk = Disk::formatted(1);
    let store = open(&disk).unwrap();
    tokio::time::pause();
    let short = Duration::from_secs(60);
    let gone =
        Begin { on_crash: OnCrash::Rerun, lease: short, retention: short, ..begin("gone", "one") };
    let unknown = Begin { lease: short, ..begin("unknown", "one") };
    for begin in [&gone, &unknown] {
        store.begin(begin).await.unwrap();
    }
    tokio::time::advance(2 * short).await;
    store.forget_expired().await.unwrap();
    drop(store);
    let again = open(&Disk::new(disk.content(), 1)).unwrap();
    assert_eq!(again.find(&gone.key).await.unwrap(), None);
    let view = again.find(&unknown.key).await.unwrap().expect("a record");
    assert!(matches!(view.phase, Phase::Unknown { .. }), "{view:?}");
}

#[tokio::test]
async fn a_change_after_the_first_is_one_page_of_the_log() {
    let disk = ahead_of_the_clock();
    let store = open(&disk).unwrap();
    let ask = ask("lock", "one");
    store.acquire(&ask).await.unwrap();
    store.release(&ask.name, &ask.token).await.unwrap();
    let before = disk.content()["locks-wal"].len();
    store.acquire(&ask).await.unwrap();
    assert_eq!(disk.content()["locks-wal"].len() - before, 24 + 4096);
}

/// A disk whose fencing tokens are ahead of the clock, as after the clock was set back.
fn ahead_of_the_clock() -> Disk {
    let disk = Disk::formatted(1);
    let connection = (disk.medium().open)().unwrap();
    let head = Head { fence_limit: 1 << 52, ..tables::head(&connection).unwrap() };
    tables::write_head(&connection, &head).unwrap();
    disk
}
