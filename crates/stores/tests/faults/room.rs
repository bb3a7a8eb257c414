//! Goal: the file returns its room once what took it is gone, step by step.
//!
//! Method: locks come and go on the fault disk, and after a sweep the size of the file is compared
//! with that at rest.

use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::join_all;
use keylatch_stores::test_medium::TestStore;

use crate::disk::Disk;
use crate::requests::Acquire;

/// What is left at rest may be so many halves of what there was before.
const HALVES: u64 = 3;
/// How many requests come at once: fewer than the queue of the writer takes.
const AT_ONCE: usize = 10_000;
/// How many pages of the file one step returns.
const SLICE: usize = 256;

#[tokio::test]
async fn locks_that_came_and_went_one_after_another_leave_no_room_taken() {
    let (disk, store) = store_at_rest().await;
    let before = disk.used();
    for number in 0..2000 {
        come_and_go(&store, number).await;
    }
    rest(&store).await;
    assert!(disk.used() * 2 <= before * HALVES, "{before} bytes, and then {}", disk.used());
}

#[tokio::test]
async fn locks_that_were_held_at_once_return_their_room_step_by_step() {
    let (disk, store) = store_at_rest().await;
    let before = disk.used();
    let locks = (0..20_000).map(|number| Acquire::new(&format!("lock {number}"), "one"));
    let locks: Vec<_> = locks.collect();
    for some in locks.chunks(AT_ONCE) {
        let granted = join_all(some.iter().map(|lock| lock.run(store.port()))).await;
        assert!(granted.iter().all(Result::is_ok));
    }
    rest(&store).await;
    let held = disk.used();
    assert!(held > 50 * before, "{held} bytes with all locks held");
    for some in locks.chunks(AT_ONCE) {
        let releases =
            some.iter().map(|lock| store.port().release(&lock.name, &lock.command.token));
        assert!(join_all(releases).await.iter().all(Result::is_ok));
    }
    let (mut steps, most) = (0, disk.content()["locks"].len() / 4096 / SLICE + 1);
    while store.compact().await.unwrap() {
        steps += 1;
    }
    // Others come in between two steps.
    assert!(steps > 1 && steps <= most, "{steps} steps where {most} are enough");
    rest(&store).await;
    assert!(disk.used() * 2 <= before * HALVES, "{before}, {held} and then {}", disk.used());
    drop(store);
    let again = Disk::new(disk.content(), 1).open().unwrap();
    assert_eq!(again.port().look(&locks[0].name).await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn sweep_of_a_store_at_rest_asks_nothing_of_its_disk() {
    let (disk, store) = store_at_rest().await;
    let swept = store.sweep().now_or_never();
    assert!(swept.is_some_and(|swept| swept.is_ok()), "the sweep waited for the disk");
    come_and_go(&store, 10).await;
    disk.hang();
    let coming = tokio::spawn({
        let store = Arc::clone(&store);
        async move { come_and_go(&store, 11).await }
    });
    disk.until_it_hangs().await;
    let swept = store.sweep().now_or_never();
    assert!(swept.is_none(), "what was written was not followed by a look at the file");
    disk.resume();
    coming.await.unwrap();
}

/// A store that was used a little.
async fn store_at_rest() -> (Disk, Arc<TestStore>) {
    let (disk, store) = Disk::with_store();
    for number in 0..10 {
        come_and_go(&store, number).await;
    }
    rest(&store).await;
    (disk, store)
}

async fn come_and_go(store: &TestStore, number: u32) {
    let lock = Acquire::new(&format!("lock {number}"), "one");
    lock.run(store.port()).await.unwrap();
    store.port().release(&lock.name, &lock.command.token).await.unwrap();
}

/// The second sweep finds that nothing was written since the first.
async fn rest(store: &TestStore) {
    for _ in 0..2 {
        store.sweep().await.unwrap();
    }
}
