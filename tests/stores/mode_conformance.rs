//! Goal: every store that has locks of all kinds follows their contract in its corners, however it keeps and
//! batches what it is asked.
//!
//! Method: one function for each sentence of the contract, on every store of the matrix that can. A model checks the
//! rules themselves in `crates/core/tests/modes`, and the differential test compares random histories.

use std::time::Duration;

use futures_util::future::join_all;
use keylatch_core::lock::{
    AcquireCommand, AcquireReply, Attempt, BreakCommand, BreakReply, EndCause, EntryName,
    FencingToken, Lease, Limit, LockLoss, Reason, ReleaseReply, RenewReply, Slots, Token,
    TokenHash,
};
use keylatch_testkit::{Locks, store_test};

use crate::lock_conformance::{TTL, granted, name, repeated, token, ttl};

/// How long a place in the queue is kept in these tests.
const PLACE: Duration = Duration::from_secs(120);

/// One lock of a store.
struct Lock<'a>(&'a Locks);

impl Lock<'_> {
    async fn acquire(&self, command: AcquireCommand) -> AcquireReply {
        self.0.0.acquire(&name("lock"), command).await.unwrap()
    }

    async fn granted(&self, holder: &str, limit: Limit) -> Lease {
        granted(self.acquire(ask(holder, limit)).await)
    }

    async fn refused(&self, holder: &str, limit: Limit) {
        let reply = self.acquire(ask(holder, limit)).await;
        assert!(matches!(reply, AcquireReply::Busy(_)), "{holder}: {reply:?}");
    }

    /// Asks in vain, and keeps a place in the queue.
    async fn waits(&self, holder: &str, limit: Limit) {
        let reply = self.acquire(AcquireCommand { queue: Some(PLACE), ..ask(holder, limit) }).await;
        assert!(matches!(reply, AcquireReply::Busy(_)), "{holder}: {reply:?}");
    }

    async fn released(&self, holder: &str) {
        let reply = self.0.0.release(&name("lock"), &token(holder)).await.unwrap();
        assert_eq!(reply, ReleaseReply::Released, "{holder}");
    }

    async fn renew(&self, holder: &str) -> RenewReply {
        self.0.0.renew(&name("lock"), &token(holder), ttl(TTL)).await.unwrap()
    }

    async fn break_lease(&self, fence: FencingToken, grace: Option<Duration>) -> BreakReply {
        let reason = Reason::parse("it stands still").unwrap();
        let command = BreakCommand { fencing_token: fence, slot: None, reason, by: None, grace };
        self.0.0.break_lease(&name("lock"), command).await.unwrap()
    }
}

fn ask(holder: &str, limit: Limit) -> AcquireCommand {
    of(token(holder), limit)
}

fn of(token: TokenHash, limit: Limit) -> AcquireCommand {
    // An attempt is known by a number that no other one of the token has.
    let attempt = Attempt::new(u64::from(token.as_bytes()[0]));
    AcquireCommand { limit, ..AcquireCommand::new(token, ttl(TTL), attempt) }
}

fn counted(slots: u64) -> Limit {
    Limit::Counted(Slots::new(slots).unwrap())
}

#[store_test(modes)]
async fn smallest_limit_of_the_holders_is_never_exceeded(store: &Locks) {
    let lock = Lock(store);
    lock.granted("one", counted(3)).await;
    lock.granted("two", counted(2)).await;
    lock.refused("three", counted(3)).await;
    lock.refused("three", Limit::Shared).await;
    lock.released("two").await;
    lock.granted("three", Limit::Shared).await;
    lock.granted("four", counted(8)).await;
    lock.refused("five", counted(8)).await;
    lock.refused("five", Limit::Exclusive).await;
}

#[store_test(modes)]
async fn lower_limit_waits_until_few_enough_are_left(store: &Locks) {
    let lock = Lock(store);
    for holder in ["one", "two", "three"] {
        lock.granted(holder, counted(3)).await;
    }
    lock.waits("four", counted(2)).await;
    lock.released("one").await;
    lock.waits("four", counted(2)).await;
    lock.released("two").await;
    assert_eq!(lock.granted("four", counted(2)).await.slot, 0);
    lock.refused("five", counted(8)).await;
}

#[store_test(modes)]
async fn readers_of_an_era_share_a_fencing_token_and_the_next_grant_has_a_larger_one(
    store: &Locks,
) {
    let lock = Lock(store);
    let era = lock.granted("one", Limit::Shared).await.fencing_token;
    assert_eq!(lock.granted("two", Limit::Shared).await.fencing_token, era);
    lock.released("one").await;
    assert_eq!(lock.granted("three", Limit::Shared).await.fencing_token, era, "the era lasts");
    lock.released("two").await;
    lock.released("three").await;
    let writer = lock.granted("writer", Limit::Exclusive).await.fencing_token;
    assert!(writer > era);
    lock.released("writer").await;
    assert!(lock.granted("one", Limit::Shared).await.fencing_token > writer);
}

#[store_test(modes)]
async fn holder_has_at_most_64_entries(store: &Locks) {
    let lock = Lock(store);
    lock.granted("one", Limit::Exclusive).await;
    let enter = |number: u8| {
        let entry = EntryName::parse(&format!("entry {number}")).ok();
        lock.acquire(AcquireCommand { entry, ..ask("one", Limit::Exclusive) })
    };
    let entered = join_all((2..=64).map(enter)).await;
    assert!(entered.iter().all(|reply| matches!(reply, AcquireReply::Repeated(_))), "{entered:?}");
    assert_eq!(enter(65).await, AcquireReply::Full);
    assert_eq!(repeated(enter(2).await).entries.len(), 63, "a repeat is none too many");
}

#[store_test(modes)]
async fn lock_has_at_most_1000_holders(store: &Locks) {
    let lock = Lock(store);
    let reader = |number: usize| {
        let token = Token::parse(&format!("token-of-the-reader-{number}")).unwrap().hash();
        lock.acquire(of(token, Limit::Shared))
    };
    let granted = join_all((0..Limit::HOLDERS_MAX).map(reader)).await;
    let refused = granted.iter().find(|reply| !matches!(reply, AcquireReply::Granted(_)));
    assert_eq!(refused, None);
    assert_eq!(reader(1000).await, AcquireReply::Full);
    let holding = store.look(&name("lock")).await.unwrap().expect("it is held");
    assert_eq!(holding.count, Limit::HOLDERS_MAX);
}

#[store_test(modes)]
async fn broken_lease_ends_when_it_would_and_is_not_renewed(store: &Locks) {
    let lock = Lock(store);
    let broken = lock.granted("one", Limit::Exclusive).await;
    for _ in 0..2 {
        let reply = lock.break_lease(broken.fencing_token, None).await;
        let BreakReply::Broken { ends_in } = reply else { panic!("{reply:?}") };
        assert!(ends_in <= TTL && ends_in > TTL / 2, "{ends_in:?}");
    }
    assert!(matches!(lock.renew("one").await, RenewReply::Lost(LockLoss::Broken(_))));
    lock.refused("two", Limit::Exclusive).await;
    store.advance(TTL).await;
    assert!(
        matches!(lock.renew("one").await, RenewReply::Lost(LockLoss::Broken(_))),
        "its holder reads why"
    );
    assert!(lock.granted("two", Limit::Exclusive).await.fencing_token > broken.fencing_token);
}

#[store_test(modes)]
async fn grace_ends_a_lease_sooner_and_never_later(store: &Locks) {
    let lock = Lock(store);
    let lease = lock.granted("one", Limit::Exclusive).await;
    let reply = lock.break_lease(lease.fencing_token, Some(TTL * 10)).await;
    assert!(matches!(reply, BreakReply::Broken { ends_in } if ends_in <= TTL), "{reply:?}");
    let reply = lock.break_lease(lease.fencing_token, Some(Duration::ZERO)).await;
    assert_eq!(reply, BreakReply::Broken { ends_in: Duration::ZERO });
    lock.granted("two", Limit::Exclusive).await;
}

#[store_test(modes)]
async fn history_has_breaks_and_expiries_in_their_order_and_no_releases(store: &Locks) {
    let lock = Lock(store);
    lock.granted("one", Limit::Exclusive).await;
    lock.released("one").await;
    // An expiry is kept while the lock has a holder still, and a break for a day.
    let expired = lock.granted("two", counted(2)).await.fencing_token;
    let long = AcquireCommand { ttl: ttl(TTL * 3), ..ask("three", counted(2)) };
    let broken = granted(lock.acquire(long).await).fencing_token;
    store.advance(TTL).await;
    lock.refused("four", Limit::Exclusive).await;
    lock.break_lease(broken, Some(Duration::ZERO)).await;
    lock.granted("four", Limit::Exclusive).await;
    let ends = store.0.recall(&name("lock")).await.unwrap();
    let ends: Vec<_> = ends
        .iter()
        .map(|end| (end.fencing_token, matches!(end.cause, EndCause::Break { .. })))
        .collect();
    assert_eq!(ends, [(expired, false), (broken, true)]);
}
