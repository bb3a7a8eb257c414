//! Goal: every store that takes steps on several locks takes each of them whole, and wakes a
//! waiting set when its last lock is free.
//!
//! Method: one function for each sentence of the contract, on every store of the matrix that can.

use std::time::Duration;

use futures_util::future::join_all;
use keylatch_core::entry::Few;
use keylatch_core::lock::{
    AcquireCommand, AcquireReply, Attempt, Contention, GrantEnd, Lease, LockLoss, LockSet,
    ReleaseReply, RenewReply,
};
use keylatch_core::store::ListLocks;
use keylatch_testkit::{Locks, TestStore, soon, store_test};

use crate::lock_conformance::{TTL, ask, granted, name, token, ttl};

/// How long a place is kept in these tests.
const PLACE: Duration = Duration::from_secs(120);

#[store_test(sets)]
async fn set_is_granted_whole_and_the_same_token_gets_the_same_grants(store: &Locks) {
    let first = all(store.0.acquire(&set(&["b", "a", "c"]), one(1)).await.unwrap());
    let again = store.0.acquire(&set(&["b", "a", "c"]), one(2)).await.unwrap();
    let AcquireReply::Repeated(again) = again else { panic!("not repeated: {again:?}") };
    assert_eq!(fences(&again), fences(&first));
    for (lock, lease) in ["b", "a", "c"].into_iter().zip(&first) {
        let holder = store.look(&name(lock)).await.unwrap().expect("it is held").first;
        assert_eq!(holder.fencing_token, lease.fencing_token, "{lock}");
    }
    let released = store.leave(&set(&["a", "b", "c"]), &token("one"), None).await.unwrap();
    assert_eq!(losses(&released), []);
    let next = all(store.0.acquire(&set(&["b", "a", "c"]), other("two", 3)).await.unwrap());
    assert!(fences(&first).iter().zip(fences(&next)).all(|(first, next)| *first < next));
}

#[store_test(sets)]
async fn refused_set_gets_nothing_and_waits_nowhere(store: &Locks) {
    granted(store.acquire(&ask("c", "two", 1)).await.unwrap());
    let refused = busy(store.0.acquire(&set(&["a", "b", "c"]), one(2)).await.unwrap());
    assert_eq!(refused.name, name("c"));
    assert!(refused.holding.is_some());
    granted(store.acquire(&ask("a", "three", 3)).await.unwrap());
    assert_eq!(waiting(store, "c").await, 0);
}

#[store_test(sets)]
async fn waiting_set_is_in_every_line_and_is_served_first(store: &Locks) {
    granted(store.acquire(&ask("b", "two", 1)).await.unwrap());
    let both = set(&["a", "b"]);
    busy(store.0.acquire(&both, waits("one", 2)).await.unwrap());
    let later = set(&["b", "a"]);
    assert_eq!(busy(store.0.acquire(&later, waits("three", 3)).await.unwrap()).ahead, 1);
    // The lock that is free is kept for those that came first.
    let AcquireReply::Busy(late) = store.acquire(&ask("a", "four", 4)).await.unwrap() else {
        panic!("it passed two waiters")
    };
    assert_eq!((late.holding, late.ahead), (None, 2));
    store.release(&name("b"), &token("two")).await.unwrap();
    busy(store.0.acquire(&later, waits("three", 5)).await.unwrap());
    all(store.0.acquire(&both, waits("one", 6)).await.unwrap());
    store.leave(&both, &token("one"), None).await.unwrap();
    all(store.0.acquire(&later, waits("three", 7)).await.unwrap());
}

#[store_test(sets)]
async fn places_of_a_set_are_kept_and_lost_together(store: &Locks) {
    for lock in ["a", "b"] {
        let long = AcquireCommand::new(token("two"), ttl(TTL * 20), Attempt::new(1));
        store.0.acquire(&name(lock), long).await.unwrap();
    }
    let both = set(&["a", "b"]);
    for attempt in 2..5 {
        busy(store.0.acquire(&both, waits("one", attempt)).await.unwrap());
        assert_eq!((waiting(store, "a").await, waiting(store, "b").await), (1, 1));
        store.advance(PLACE * 2 / 3).await;
    }
    store.advance(PLACE / 3).await;
    assert_eq!((waiting(store, "a").await, waiting(store, "b").await), (0, 0));
}

#[store_test(sets)]
async fn withdrawal_takes_all_that_its_attempt_got_and_no_more(store: &Locks) {
    let both = set(&["a", "b"]);
    all(store.0.acquire(&both, one(1)).await.unwrap());
    store.withdraw(&both, &token("one"), Attempt::new(2)).await.unwrap();
    assert!(store.look(&name("a")).await.unwrap().is_some(), "another attempt took it");
    store.withdraw(&both, &token("one"), Attempt::new(1)).await.unwrap();
    for lock in ["a", "b"] {
        assert_eq!(store.look(&name(lock)).await.unwrap(), None, "{lock}");
    }
    granted(store.acquire(&ask("b", "two", 3)).await.unwrap());
    busy(store.0.acquire(&both, waits("one", 4)).await.unwrap());
    store.withdraw(&both, &token("one"), Attempt::new(4)).await.unwrap();
    granted(store.acquire(&ask("a", "three", 5)).await.unwrap());
    assert_eq!(waiting(store, "b").await, 0);
}

#[store_test(sets)]
async fn renewal_is_of_all_or_of_none(store: &Locks) {
    let all_three = set(&["a", "b", "c"]);
    let first = all(store.0.acquire(&all_three, one(1)).await.unwrap());
    store.advance(TTL / 2).await;
    let renewed = store.renew(&all_three, &token("one"), ttl(TTL * 2)).await.unwrap();
    let RenewReply::Renewed(renewed) = renewed else { panic!("not renewed: {renewed:?}") };
    assert_eq!(fences(&renewed), fences(&first));
    assert!(renewed.iter().all(|lease| lease.ttl == TTL * 2));
    store.release(&name("b"), &token("one")).await.unwrap();
    let lost = store.renew(&all_three, &token("one"), ttl(TTL * 10)).await.unwrap();
    assert_eq!(lost, RenewReply::lost(&name("b"), LockLoss::NotHeld));
    store.advance(TTL * 2).await;
    for lock in ["a", "c"] {
        assert_eq!(store.look(&name(lock)).await.unwrap(), None, "{lock} was renewed");
    }
    let released = store.leave(&set(&["b", "a"]), &token("one"), None).await.unwrap();
    assert_eq!(losses(&released), [LockLoss::NotHeld, LockLoss::NotHeld]);
}

#[store_test(sets)]
async fn each_lock_of_a_set_is_renewed_and_released_by_itself(store: &Locks) {
    let both = set(&["a", "b"]);
    all(store.0.acquire(&both, one(1)).await.unwrap());
    store.renew(&name("a"), &token("one"), ttl(TTL * 4)).await.unwrap();
    store.advance(TTL).await;
    assert_eq!(store.look(&name("b")).await.unwrap(), None);
    assert_eq!(store.release(&name("a"), &token("one")).await.unwrap(), ReleaseReply::Released);
    all(store.0.acquire(&both, other("two", 2)).await.unwrap());
}

#[store_test(sets)]
async fn release_of_the_last_lock_wakes_the_set(store: &Locks) {
    for lock in ["a", "b"] {
        granted(store.acquire(&ask(lock, "two", 1)).await.unwrap());
    }
    let both = set(&["a", "b"]);
    let wakeups = ["a", "b"].map(|lock| store.wakeup(&name(lock), &token("one")));
    busy(store.0.acquire(&both, waits("one", 2)).await.unwrap());
    store.release(&name("b"), &token("two")).await.unwrap();
    store.release(&name("a"), &token("two")).await.unwrap();
    for wakeup in wakeups {
        soon("a wakeup", wakeup).await;
    }
    all(store.0.acquire(&both, waits("one", 3)).await.unwrap());
    // A set that is released wakes those that wait for one of its locks, and sets.
    let wakeup = store.wakeup(&name("b"), &token("three"));
    busy(store.0.acquire(&set(&["b", "c"]), waits("three", 4)).await.unwrap());
    store.leave(&both, &token("one"), None).await.unwrap();
    soon("a wakeup", wakeup).await;
}

#[store_test(sets)]
async fn sets_and_single_locks_at_once_never_share_a_lock(store: &Locks) {
    let names = ["a", "b", "c", "d"];
    let clients = (0..24_u64).map(async |number| {
        let (mut got, owner) = (0, format!("client {number}"));
        for round in 0..20 {
            let attempt = number * 1000 + round;
            let at = usize::try_from(number + round).expect("a small number");
            let chosen = set(&[names[at % 4], names[(at + 1 + at / 4 % 3) % 4]]);
            match store.0.acquire(&chosen, other(&owner, attempt)).await.unwrap() {
                AcquireReply::Granted(leases) => {
                    got += 1;
                    for (lock, lease) in chosen.names().iter().zip(&leases) {
                        let holding = store.look(lock).await.unwrap().expect("it is held");
                        assert_eq!(holding.first.fencing_token, lease.fencing_token);
                    }
                    let released = store.leave(&chosen, &token(&owner), None).await.unwrap();
                    assert_eq!(losses(&released), []);
                }
                AcquireReply::Busy(_) => {}
                unexpected => panic!("{unexpected:?}"),
            }
            let lock = names[at % 4];
            if let AcquireReply::Granted(leases) =
                store.acquire(&ask(lock, &owner, attempt)).await.unwrap()
            {
                let holding = store.look(&name(lock)).await.unwrap().expect("it is held");
                assert_eq!(holding.first.fencing_token, leases[0].fencing_token);
                let released = store.release(&name(lock), &token(&owner)).await.unwrap();
                assert_eq!(released, ReleaseReply::Released);
            }
        }
        got
    });
    let got: u64 = join_all(clients).await.into_iter().sum();
    assert!(got > 0, "no set was ever granted");
}

#[store_test(sets, restart)]
async fn set_outlives_the_process(store: &TestStore) {
    let both = set(&["a", "b"]);
    let first = store.open().await;
    let leases = all(first.0.acquire(&both, one(1)).await.unwrap());
    drop(first);
    let second = store.open().await;
    let again = second.0.acquire(&both, one(2)).await.unwrap();
    let AcquireReply::Repeated(again) = again else { panic!("not repeated: {again:?}") };
    assert_eq!(fences(&again), fences(&leases));
}

/// The stores that keep no lock as a whole, or each lock at another place.
#[cfg(feature = "test-engines")]
#[tokio::test]
async fn cluster_and_redlock_take_no_sets_and_say_so_every_time() {
    use keylatch_core::store::StoreError;
    let stores = [
        keylatch_testkit::engines::stores::cluster().await,
        keylatch_testkit::engines::stores::redlock().await,
        keylatch_testkit::stores::divided().await,
    ];
    for started in stores {
        let store = started.open().await;
        let refused = store.0.acquire(&set(&["a", "b"]), one(1)).await;
        assert!(matches!(refused, Err(StoreError::Unsupported)), "{refused:?}");
        // So does a step that would change nothing.
        let refused = store.leave(&set(&["a", "b"]), &token("one"), None).await;
        assert!(matches!(refused, Err(StoreError::Unsupported)), "{refused:?}");
    }
}

fn set(names: &[&str]) -> LockSet {
    LockSet::new(names.iter().map(|lock| name(lock)).collect()).expect("a set")
}

fn one(attempt: u64) -> AcquireCommand {
    other("one", attempt)
}

fn other(holder: &str, attempt: u64) -> AcquireCommand {
    AcquireCommand::new(token(holder), ttl(TTL), Attempt::new(attempt))
}

fn waits(holder: &str, attempt: u64) -> AcquireCommand {
    AcquireCommand { queue: Some(PLACE), ..other(holder, attempt) }
}

/// How those locks had been lost that the token did not hold.
pub(crate) fn losses(released: &[(ReleaseReply, Option<GrantEnd>)]) -> Vec<LockLoss> {
    released.iter().filter_map(|(reply, _)| reply.loss()).collect()
}

fn all(reply: AcquireReply) -> Few<Lease> {
    match reply {
        AcquireReply::Granted(leases) => leases,
        other => panic!("not granted: {other:?}"),
    }
}

fn busy(reply: AcquireReply) -> Contention {
    match reply {
        AcquireReply::Busy(contention) => contention,
        other => panic!("not busy: {other:?}"),
    }
}

fn fences(leases: &[Lease]) -> Vec<u64> {
    leases.iter().map(|lease| lease.fencing_token.get()).collect()
}

async fn waiting(store: &Locks, lock: &str) -> u64 {
    let query = ListLocks { prefix: lock.to_owned(), limit: 10, cursor: None };
    let page = store.list_locks(&query).await.unwrap().expect("a page");
    page.entries.first().map_or(0, |holding| holding.first.waiting)
}
