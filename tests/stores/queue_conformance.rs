//! Goal: every store with a queue serves waiters in order and wakes the right one.
//!
//! Method: one function for each sentence of the contract, on every store of the matrix that has a
//! queue.

use std::time::Duration;

use futures_util::{FutureExt as _, StreamExt as _};
use keylatch_core::lock::{
    AcquireReply, Attempt, BreakCommand, Change, Contention, EndCause, HolderId, Lease, Owner,
    Reason, ReleaseReply, Waiter,
};
use keylatch_core::store::{Hint, ListLocks};
use keylatch_testkit::{Acquire, Locks, soon, store_test};

use crate::lock_conformance::{TTL, ask, granted, held, name, repeated, token, ttl, withdraw};

/// How long a place is kept in these tests.
const PLACE: Duration = Duration::from_secs(120);

#[store_test(queue)]
async fn many_waiters_are_served_in_order(store: &Locks) {
    let holder = |number: u64| format!("holder {number}");
    granted(store.acquire(&ask("a", &holder(0), 0)).await.unwrap());
    // The order of their tokens is another than that in which they come.
    for number in 1..150 {
        assert_eq!(join(store, "a", &holder(number), number).await.ahead, number - 1);
    }
    for number in 1..149 {
        store.release(&name("a"), &token(&holder(number - 1))).await.unwrap();
        assert_eq!(join(store, "a", &holder(149), 149).await.ahead, 149 - number);
        granted(store.acquire(&place("a", &holder(number), number)).await.unwrap());
    }
    assert_eq!(waiting(store, "a").await, 1);
}

#[store_test(queue)]
async fn withdrawal_spares_the_queue_entry_of_another_attempt(store: &Locks) {
    granted(store.acquire(&ask("a", "one", 1)).await.unwrap());
    join(store, "a", "two", 2).await;
    join(store, "a", "three", 3).await;
    let last = u64::MAX - 1;
    join(store, "a", "two", last).await;
    withdraw(store, "a", "two", 2).await;
    withdraw(store, "a", "two", last - 2).await;
    withdraw(store, "a", "one", last).await;
    assert_eq!(join(store, "a", "three", 3).await.ahead, 1);
    withdraw(store, "a", "two", last).await;
    assert_eq!(join(store, "a", "three", 3).await.ahead, 0);
}

#[store_test(queue)]
async fn older_request_that_leaves_takes_no_place_of_a_newer_one(store: &Locks) {
    granted(store.acquire(&ask("a", "one", 1)).await.unwrap());
    let [mut old, mut new, other] = [1, 2, 3].map(Attempt::first_of);
    join(store, "a", "two", old.get()).await;
    join(store, "a", "three", other.get()).await;
    // The client has lost its connection and asks again, and the service has not missed the old
    // request.
    join(store, "a", "two", new.get()).await;
    (old, new) = (old.next(true), new.next(true));
    join(store, "a", "two", old.get()).await;
    withdraw(store, "a", "two", old.get()).await;
    assert_eq!(join(store, "a", "two", new.get()).await.ahead, 0, "the place is gone");
    // The old request is granted the lock, and then it is missed.
    (old, new) = (old.next(true), new.next(true));
    store.release(&name("a"), &token("one")).await.unwrap();
    granted(store.acquire(&place("a", "two", old.get())).await.unwrap());
    withdraw(store, "a", "two", old.get()).await;
    repeated(store.acquire(&place("a", "two", new.get())).await.unwrap());
}

#[store_test(queue)]
async fn request_takes_over_the_place_of_one_that_has_ended(store: &Locks) {
    granted(store.acquire(&ask("a", "one", 1)).await.unwrap());
    let [old, new, other] = [1, 2, 3].map(Attempt::first_of);
    join(store, "a", "two", old.get()).await;
    join(store, "a", "three", other.get()).await;
    join(store, "a", "two", new.get()).await;
    withdraw(store, "a", "two", old.get()).await;
    let new = new.next(true);
    assert_eq!(join(store, "a", "two", new.get()).await.ahead, 0, "the old one took the place");
    withdraw(store, "a", "two", new.get()).await;
    assert_eq!(join(store, "a", "three", other.get()).await.ahead, 0, "the new one left none");
}

/// Both requests of a double click have their answers, and the lock does not stand idle.
#[store_test(queue)]
async fn last_of_two_requests_that_keep_a_place_takes_it_along(store: &Locks) {
    let [mut old, mut new, other] = [1, 2, 3].map(Attempt::first_of);
    for old_is_last in [true, false] {
        granted(store.acquire(&ask("a", "one", other.get())).await.unwrap());
        join(store, "a", "two", old.get()).await;
        join(store, "a", "three", other.get()).await;
        join(store, "a", "two", new.get()).await;
        for _ in 0..2 {
            (old, new) = (old.next(true), new.next(true));
            join(store, "a", "two", old.get()).await;
            join(store, "a", "two", new.get()).await;
        }
        let (first, last) = if old_is_last { (new, old) } else { (old, new) };
        withdraw(store, "a", "two", first.get()).await;
        assert_eq!(join(store, "a", "three", other.get()).await.ahead, 1, "the other is here");
        withdraw(store, "a", "two", last.get()).await;
        assert_eq!(join(store, "a", "three", other.get()).await.ahead, 0, "nobody is here");
        store.release(&name("a"), &token("one")).await.unwrap();
        granted(store.acquire(&place("a", "three", other.get())).await.unwrap());
        store.release(&name("a"), &token("three")).await.unwrap();
        (old, new) = (Attempt::first_of(4), Attempt::first_of(5));
    }
}

#[store_test(queue)]
async fn holder_shows_the_number_of_waiters(store: &Locks) {
    for lock in ["a", "b"] {
        granted(store.acquire(&ask(lock, "one", 1)).await.unwrap());
    }
    for number in 0..5 {
        let holder = join(store, "a", &format!("waiter {number}"), number).await.holding;
        assert_eq!(holder.expect("it is held").first.waiting, number + 1);
        assert_eq!(waiting(store, "a").await, number + 1);
    }
    assert_eq!(held(store.acquire(&ask("a", "two", 9)).await.unwrap()).waiting, 5);
    let all = ListLocks { prefix: String::new(), limit: 10, cursor: None };
    let page = store.list_locks(&all).await.unwrap().expect("a first page");
    let mut seen: Vec<_> =
        page.entries.iter().map(|lock| (lock.first.name.as_str(), lock.first.waiting)).collect();
    seen.sort_unstable();
    assert_eq!(seen, [("a", 5), ("b", 0)]);
}

#[store_test(queue)]
async fn queue_shows_its_waiters_in_order_with_label_and_time(store: &Locks) {
    const MINUTE: Duration = Duration::from_secs(60);
    let labelled = |holder, owner: &str, attempt| Acquire {
        owner: Owner::parse(owner).unwrap(),
        ..place("a", holder, attempt)
    };
    assert_eq!(store.look_at_queue(&name("a")).await.unwrap(), []);
    granted(store.acquire(&long("a", "one", 1)).await.unwrap());
    assert_eq!(store.look_at_queue(&name("a")).await.unwrap(), []);
    busy(store.acquire(&labelled("two", "alice", 2)).await.unwrap());
    store.advance(MINUTE).await;
    busy(store.acquire(&labelled("three", "", 3)).await.unwrap());
    busy(store.acquire(&labelled("four", "Zoë, line 7", 4)).await.unwrap());
    assert_eq!(waiters(store, "a").await, ["alice: 1", "-: 0", "Zoë, line 7: 0"]);
    // Keeping an entry resets no time, and its last request says the label.
    busy(store.acquire(&labelled("two", "alice", 5)).await.unwrap());
    busy(store.acquire(&labelled("three", "bob", 6)).await.unwrap());
    store.advance(MINUTE).await;
    assert_eq!(waiters(store, "a").await, ["alice: 2", "bob: 1", "Zoë, line 7: 1"]);
    // A waiter that left joins again at the end, for the first time.
    withdraw(store, "a", "two", 5).await;
    busy(store.acquire(&labelled("two", "alice", 7)).await.unwrap());
    assert_eq!(waiters(store, "a").await, ["bob: 1", "Zoë, line 7: 1", "alice: 0"]);
    // So does one whose entry has expired.
    store.advance(PLACE).await;
    assert_eq!(store.look_at_queue(&name("a")).await.unwrap(), []);
    busy(store.acquire(&labelled("four", "Zoë, line 7", 8)).await.unwrap());
    assert_eq!(waiters(store, "a").await, ["Zoë, line 7: 0"]);
}

#[store_test(queue)]
async fn release_wakes_only_the_first_waiter(store: &Locks) {
    hears(store).await;
    // Names that are hard to tell from what stands around them.
    for lock in ["a", "{3f}:lock:a", "a}:lock:b", ":", "日本語 🔒", &"é".repeat(127)] {
        granted(store.acquire(&ask(lock, "one", 1)).await.unwrap());
        let [first, second, other] =
            ["two", "three", "four"].map(|holder| store.wakeup(&name(lock), &token(holder)));
        join(store, lock, "two", 2).await;
        join(store, lock, "three", 3).await;
        store.release(&name(lock), &token("one")).await.unwrap();
        soon("the turn of the first", first).await;
        hears(store).await;
        is_not_called(second);
        is_not_called(other);

        let second = store.wakeup(&name(lock), &token("three"));
        granted(store.acquire(&place(lock, "two", 4)).await.unwrap());
        store.release(&name(lock), &token("two")).await.unwrap();
        soon("the turn of the second", second).await;
    }
}

#[store_test(queue)]
async fn withdrawal_wakes_the_next_waiter(store: &Locks) {
    hears(store).await;
    granted(store.acquire(&ask("a", "one", 1)).await.unwrap());
    let [two, three] = ["two", "three"].map(|holder| store.wakeup(&name("a"), &token(holder)));
    join(store, "a", "two", 2).await;
    join(store, "a", "three", 3).await;
    // The grant is withdrawn; then the first waiter leaves without having acquired.
    withdraw(store, "a", "one", 1).await;
    soon("the turn of the first", two).await;
    hears(store).await;
    withdraw(store, "a", "two", 2).await;
    soon("the turn of the second", three).await;
    granted(store.acquire(&place("a", "three", 4)).await.unwrap());
}

#[store_test(queue)]
async fn joining_the_queue_of_a_free_lock_wakes_the_first_waiter(store: &Locks) {
    hears(store).await;
    granted(store.acquire(&ask("a", "one", 1)).await.unwrap());
    join(store, "a", "two", 2).await;
    let turn = store.wakeup(&name("a"), &token("two"));
    // No store announces that a lease has expired.
    store.advance(TTL).await;
    let Contention { holding, ahead, first, .. } = join(store, "a", "three", 3).await;
    let first = first.and_then(|first| first.owner);
    assert_eq!((holding, ahead, first.as_ref().map(Owner::as_str)), (None, 1, Some("two")));
    soon("the turn", turn).await;
}

#[store_test(queue)]
async fn queue_change_wakes_no_waiter_while_the_lock_is_held(store: &Locks) {
    hears(store).await;
    granted(store.acquire(&ask("a", "one", 1)).await.unwrap());
    let turn = store.wakeup(&name("a"), &token("three"));
    join(store, "a", "two", 2).await;
    join(store, "a", "three", 3).await;
    withdraw(store, "a", "two", 2).await;
    hears(store).await;
    is_not_called(turn);
}

#[store_test(queue)]
async fn withdrawn_grant_is_reported_as_released(store: &Locks) {
    hears(store).await;
    let mut changes = store.changes(&name("a"));
    let lease = granted(store.acquire(&ask("a", "one", 1)).await.unwrap());
    withdraw(store, "a", "one", 1).await;
    let acquired = soon("a change", changes.next()).await;
    assert!(
        matches!(&acquired, Some(Hint::Changed(Change::Acquired(by))) if by.fencing_token == lease.fencing_token)
    );
    let released = soon("a change", changes.next()).await;
    assert_eq!(released, Some(Hint::Changed(Change::Released(id_of(&lease)))));
}

#[store_test(queue)]
async fn expiry_is_reported_once_by_the_step_that_finds_it(store: &Locks) {
    let mut ends = store.ends();
    let lease = granted(store.acquire(&ask("a", "one", 1)).await.unwrap());
    // Redis would forget a lock without a line together with its lease.
    join(store, "a", "two", 2).await;
    store.advance(TTL).await;
    granted(store.acquire(&ask("a", "two", 2)).await.unwrap());
    let end = soon("an end", ends.next()).await;
    let Some(Hint::Ended(lock, end)) = end else { panic!("not an end: {end:?}") };
    assert_eq!((lock, end.fencing_token), (name("a"), lease.fencing_token));
    assert_eq!((end.cause.clone(), end.token), (EndCause::Expiry, token("one")));
    assert_eq!(store.release(&name("a"), &token("two")).await.unwrap(), ReleaseReply::Released);
    granted(store.acquire(&ask("a", "three", 3)).await.unwrap());
    assert!(ends.next().now_or_never().is_none(), "a release, or an end that was reported before");
}

#[store_test(queue)]
async fn broken_lease_is_reported_when_it_ends_and_its_release_says_no_time(store: &Locks) {
    let mut ends = store.ends();
    let lease = granted(store.acquire(&ask("a", "one", 1)).await.unwrap());
    let command = BreakCommand {
        is_of_wait: false,
        fencing_token: lease.fencing_token,
        slot: None,
        reason: Reason::parse("it hangs").unwrap(),
        by: None,
        grace: None,
    };
    store.break_lease(&name("a"), command).await.unwrap();
    assert!(ends.next().now_or_never().is_none(), "it lasts until its end");
    let left = store.leave(&name("a"), &token("one"), None).await.unwrap();
    let (ReleaseReply::Released, Some(end)) = &left[0] else { panic!("released, not {left:?}") };
    assert_eq!(end.fencing_token, lease.fencing_token);
    assert!(end.broken().is_some(), "{end:?}");
    let end = soon("an end", ends.next()).await;
    let Some(Hint::Ended(_, end)) = end else { panic!("not an end: {end:?}") };
    assert!(end.broken().is_some(), "{end:?}");
}

/// A place in the line of a lock that is not to be had.
/// Which grant a lease is, as watchers know it.
pub(crate) fn id_of(lease: &Lease) -> HolderId {
    HolderId { fencing_token: lease.fencing_token, slot: lease.slot }
}

async fn join(store: &Locks, lock: &str, holder: &str, attempt: u64) -> Contention {
    busy(store.acquire(&place(lock, holder, attempt)).await.unwrap())
}

fn place(lock: &str, holder: &str, attempt: u64) -> Acquire {
    Acquire { queue: Some(PLACE), ..ask(lock, holder, attempt) }
}

/// For a lock that is held for longer than places last.
fn long(lock: &str, holder: &str, attempt: u64) -> Acquire {
    Acquire { ttl: ttl(PLACE * 10), ..ask(lock, holder, attempt) }
}

/// The label of each waiter, and for how many minutes it has waited.
async fn waiters(store: &Locks, lock: &str) -> Vec<String> {
    let waiters = store.look_at_queue(&name(lock)).await.unwrap();
    let shown = waiters.into_iter().map(|Waiter { owner, waited, .. }| {
        let owner = owner.as_ref().map_or("-", Owner::as_str);
        format!("{owner}: {}", (waited.as_secs() + 5) / 60)
    });
    shown.collect()
}

async fn waiting(store: &Locks, lock: &str) -> u64 {
    store.look(&name(lock)).await.unwrap().expect("it is held").first.waiting
}

/// Waits until the store hears of turns, and of all of them that were called before this.
async fn hears(store: &Locks) {
    granted(store.acquire(&ask("hears", "one", 1)).await.unwrap());
    let turn = store.wakeup(&name("hears"), &token("two"));
    join(store, "hears", "two", 2).await;
    store.release(&name("hears"), &token("one")).await.unwrap();
    soon("the turn", turn).await;
    withdraw(store, "hears", "two", 2).await;
}

#[track_caller]
fn is_not_called(turn: impl Future<Output = ()>) {
    assert_eq!(turn.now_or_never(), None, "called out of turn");
}

#[track_caller]
fn busy(found: AcquireReply) -> Contention {
    let AcquireReply::Busy(busy) = found else { panic!("held, not {found:?}") };
    busy
}
