//! Goal: every store that has locks of all kinds follows their contract in its corners, however it
//! keeps and batches what it is asked.
//!
//! Method: one function for each sentence of the contract, on every store of the matrix that can. A
//! model checks the rules themselves in `crates/core/tests/modes`, and the differential test
//! compares random histories.

use std::time::Duration;

use futures_util::future::join_all;
use keylatch_core::lock::{
    AcquireCommand, AcquireReply, Attempt, BreakCommand, EndCause, EntryName, Lease, Limit, Reason,
    ReleaseReply, Slots, Token, TokenHash,
};
use keylatch_testkit::{Locks, store_test};

use crate::lock_conformance::{TTL, granted, name, repeated, token, ttl};

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

    async fn released(&self, holder: &str) {
        let reply = self.0.0.release(&name("lock"), &token(holder)).await.unwrap();
        assert_eq!(reply, ReleaseReply::Released, "{holder}");
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
    let reason = Reason::parse("it stands still").unwrap();
    let (slot, by, grace) = (None, None, Some(Duration::ZERO));
    let command =
        BreakCommand { is_of_wait: false, fencing_token: broken, slot, reason, by, grace };
    store.0.break_lease(&name("lock"), command).await.unwrap();
    lock.granted("four", Limit::Exclusive).await;
    let ends = store.0.recall(&name("lock")).await.unwrap();
    let ends: Vec<_> = ends
        .iter()
        .map(|end| (end.fencing_token, matches!(end.cause, EndCause::Break { .. })))
        .collect();
    assert_eq!(ends, [(expired, false), (broken, true)]);
}
