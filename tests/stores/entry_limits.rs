//! Goal: a command whose entry is too large for its store reads `TooLarge`, and commands that fit
//! are carried out.
//!
//! Method: the adapter over an engine with a small limit; etcd's own limit is in `etcd.rs`.

use std::time::Duration;

use futures_util::future::join_all;
use keylatch_core::lock::{AcquireReply, ReleaseReply};
use keylatch_core::store::StoreError;
use keylatch_testkit::{Acquire, FakeEngine, Faults, OpenStore, seed};

use crate::lock_conformance::{ask, granted, name, token};

const WAITERS: usize = 200;

#[tokio::test]
async fn commands_that_fit_are_carried_out_and_the_others_are_too_large() {
    let engine = FakeEngine::new(Faults::HARMLESS, seed()).with_limit(4000);
    let store = OpenStore(keylatch_stores::optimistic(engine));
    granted(store.acquire(&ask("a", "one", 1)).await.unwrap());
    let waiters: Vec<_> = (0..WAITERS)
        .map(|waiter| {
            let queue = Some(Duration::from_secs(60));
            Acquire { queue, ..ask("a", &format!("waiter {waiter}"), 1) }
        })
        .collect();
    let replies = join_all(waiters.iter().map(|waiter| store.acquire(waiter))).await;
    let (mut joined, mut refused) = (0, 0);
    for reply in replies {
        match reply {
            Ok(AcquireReply::Busy(_)) => joined += 1,
            Err(StoreError::TooLarge { bytes, limit: 4000 }) if bytes > 4000 => refused += 1,
            other => panic!("{other:?}"),
        }
    }
    assert!(joined > 0 && refused > 0, "{joined} joined, and {refused} did not");
    let waiting = store.look(&name("a")).await.unwrap().expect("it is held").first.waiting;
    assert_eq!(waiting, joined);
    // What makes it smaller is carried out.
    let released = store.release(&name("a"), &token("one")).await.unwrap();
    assert_eq!(released, ReleaseReply::Released);
}
