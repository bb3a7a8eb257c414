use futures_util::future::join_all;

use super::super::*;
use super::disk::Disk;
use super::store::{ask, open};

/// What is left at rest may be so many halves of what there was before.
const HALVES: u64 = 3;

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
async fn locks_that_were_held_at_once_give_their_room_back_step_by_step() {
    let (disk, store) = store_at_rest().await;
    let before = disk.used();
    let asks: Vec<_> = (0..20_000).map(|number| ask(&format!("lock {number}"), "one")).collect();
    assert!(join_all(asks.iter().map(|ask| store.acquire(ask))).await.iter().all(Result::is_ok));
    rest(&store).await;
    let held = disk.used();
    assert!(held > 50 * before, "{held} bytes with all locks held");
    let ends = asks.iter().map(|ask| store.release(&ask.name, &ask.token));
    assert!(join_all(ends).await.iter().all(Result::is_ok));
    let (mut steps, most) = (0, disk.content()["locks"].len() / 4096 / tables::SLICE + 1);
    while store.writer.tidy().await.unwrap() {
        steps += 1;
    }
    // Others come in between two steps.
    assert!(steps > 1 && steps <= most, "{steps} steps where {most} are enough");
    rest(&store).await;
    assert!(disk.used() * 2 <= before * HALVES, "{before}, {held} and then {}", disk.used());
    drop(store);
    let again = open(&Disk::new(disk.content(), 1)).unwrap();
    assert_eq!(again.get(&asks[0].name).await.unwrap(), None);
}

/// A store that was used a little.
async fn store_at_rest() -> (Disk, EmbeddedStore) {
    let disk = Disk::formatted(1);
    let store = open(&disk).unwrap();
    for number in 0..10 {
        come_and_go(&store, number).await;
    }
    rest(&store).await;
    (disk, store)
}

async fn come_and_go(store: &EmbeddedStore, number: u32) {
    let ask = ask(&format!("lock {number}"), "one");
    store.acquire(&ask).await.unwrap();
    store.release(&ask.name, &ask.token).await.unwrap();
}

/// The second sweep finds that nothing was written since the first.
async fn rest(store: &EmbeddedStore) {
    for _ in 0..2 {
        store.sweep().await.unwrap();
    }
}
