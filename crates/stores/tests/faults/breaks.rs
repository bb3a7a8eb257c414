//! Goal: a store remembers the newest of its breaks, and no more of them than it may, however many
//! names are broken.
//!
//! Method: locks are taken and broken under thousands of names; a sweep; their histories and the
//! rows of the file, before and after a power cut.

use futures_util::future::join_all;
use keylatch_core::lock::{AcquireReply, BreakCommand, BreakReply, Reason};
use keylatch_core::store::Store;
use std::time::Duration;

use crate::disk::Disk;
use crate::requests::{Acquire, name};

/// How many breaks a store remembers at most.
const MOST: usize = 10_240;
/// How many locks are broken at once.
const AT_ONCE: usize = 500;

fn lock(number: usize) -> String {
    format!("lock-{number}")
}

async fn take_and_break(store: &dyn Store, number: usize) {
    let leases = match Acquire::new(&lock(number), "holder").run(store).await.unwrap() {
        AcquireReply::Granted(leases) => leases,
        other => panic!("{other:?}"),
    };
    let command = BreakCommand {
        is_of_wait: false,
        fencing_token: leases[0].fencing_token,
        slot: None,
        reason: Reason::parse("it hangs").unwrap(),
        by: None,
        grace: Some(Duration::ZERO),
    };
    let broken = store.break_lease(&name(&lock(number)), command).await.unwrap();
    assert!(matches!(broken, BreakReply::Broken { .. }), "{broken:?}");
}

/// The numbers of those whose break is remembered.
async fn remembered(store: &dyn Store, names: usize) -> Vec<usize> {
    let mut found = Vec::new();
    for number in 0..names {
        if !store.recall(&name(&lock(number))).await.unwrap().is_empty() {
            found.push(number);
        }
    }
    found
}

#[tokio::test]
async fn breaks_of_more_names_than_may_be_remembered_are_forgotten_oldest_first() {
    const NAMES: usize = 2 * MOST;
    let (disk, store) = Disk::with_store();
    take_and_break(store.port(), 0).await;
    store.sweep().await.unwrap();
    assert_eq!(remembered(store.port(), 1).await, [0], "one is not too many");
    for first in (1..NAMES).step_by(AT_ONCE) {
        let names = first..NAMES.min(first + AT_ONCE);
        join_all(names.map(|number| take_and_break(store.port(), number))).await;
    }
    store.sweep().await.unwrap();
    let found = remembered(store.port(), NAMES).await;
    assert!((MOST * 9 / 10..=MOST).contains(&found.len()), "{} are remembered", found.len());
    let newest = found.iter().filter(|number| **number >= NAMES - MOST / 2).count();
    assert_eq!(newest, MOST / 2, "newer ones were forgotten");
    assert!(!found.contains(&0), "the oldest is remembered");
    drop(store);
    let disk = Disk::new(disk.cut(), 1);
    let store = disk.open().unwrap();
    assert_eq!(remembered(store.port(), NAMES).await, found, "the file has others");
}
