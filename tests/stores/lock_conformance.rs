//! Goal: every store follows the contract of locks.
//!
//! Method: one function for each sentence of the contract, on every store of the matrix.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::join_all;
use keylatch_core::lock::{
    AcquireReply, Attempt, Holder, Lease, LockName, Owner, ReleaseReply, RenewReply, Token,
    TokenHash, Ttl,
};
use keylatch_core::store::{Cursor, ListLocks, Page};
use keylatch_testkit::{Acquire, Locks, OpenStore, store_test};

/// How far a store's own clock may go on between two steps of a test.
const SLACK: Duration = Duration::from_secs(5);
pub(crate) const TTL: Duration = Duration::from_secs(60);

#[store_test(locks)]
async fn same_token_gets_the_same_grant(store: &Locks) {
    let first = granted(store.acquire(&ask("a", "one", 1)).await.unwrap());
    store.advance(TTL / 2).await;
    let longer = Acquire { ttl: ttl(TTL * 10), owner: None, ..ask("a", "one", 2) };
    let again = repeated(store.acquire(&longer).await.unwrap());
    assert_eq!(
        (again.fencing_token, again.ttl, again.owner),
        (first.fencing_token, first.ttl, first.owner)
    );
    assert_near(again.expires_in, TTL / 2);
}

#[store_test(locks)]
async fn renewal_may_shorten_the_lease(store: &Locks) {
    granted(store.acquire(&ask("a", "one", 1)).await.unwrap());
    renewed(store.renew(&name("a"), &token("one"), ttl(TTL / 4)).await.unwrap());
    store.advance(TTL / 4).await;
    granted(store.acquire(&ask("a", "two", 2)).await.unwrap());
}

#[store_test(locks)]
async fn renewal_without_a_ttl_keeps_that_of_the_lease(store: &Locks) {
    granted(store.acquire(&ask("a", "one", 1)).await.unwrap());
    store.advance(TTL / 2).await;
    let again = renewed(store.renew(&name("a"), &token("one"), None::<Ttl>).await.unwrap());
    assert_eq!(again.ttl, TTL);
    assert_near(again.expires_in, TTL);
}

#[store_test(locks)]
async fn fencing_tokens_rise_over_release_and_expiry(store: &Locks) {
    let mut last = None;
    for attempt in 0..20 {
        let fencing_token =
            granted(store.acquire(&ask("a", "one", attempt)).await.unwrap()).fencing_token;
        assert!(last < Some(fencing_token), "{last:?} then {fencing_token:?}");
        last = Some(fencing_token);
        if attempt % 2 == 0 {
            store.release(&name("a"), &token("one")).await.unwrap();
        } else {
            store.advance(TTL).await;
        }
    }
}

#[store_test(locks)]
async fn fencing_tokens_fit_in_53_bits_and_follow_the_time(store: &Locks) {
    let before = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap() - SLACK;
    let fencing_token =
        granted(store.acquire(&ask("a", "one", 1)).await.unwrap()).fencing_token.get();
    assert!(
        u128::from(fencing_token) > before.as_micros(),
        "{fencing_token} is below the time floor"
    );
    assert!(fencing_token < 1 << 53, "{fencing_token} is too large for JavaScript");
}

#[store_test(locks)]
async fn withdrawal_revokes_the_grant_of_its_attempt(store: &Locks) {
    granted(store.acquire(&ask("a", "one", 1)).await.unwrap());
    // The very same attempt again, as after an answer that got lost within the store's client.
    repeated(store.acquire(&ask("a", "one", 1)).await.unwrap());
    withdraw(store, "a", "one", 1).await;
    assert_eq!(store.look(&name("a")).await.unwrap(), None);
    withdraw(store, "a", "one", 1).await;
}

#[store_test(locks)]
async fn withdrawal_spares_what_another_attempt_or_token_has(store: &Locks) {
    for lock in ["repeated", "renewed", "of another"] {
        granted(store.acquire(&ask(lock, "one", 1)).await.unwrap());
    }
    repeated(store.acquire(&ask("repeated", "one", 2)).await.unwrap());
    withdraw(store, "repeated", "one", 1).await;
    withdraw(store, "repeated", "one", 2).await;
    renewed(store.renew(&name("renewed"), &token("one"), ttl(TTL)).await.unwrap());
    withdraw(store, "renewed", "one", 1).await;
    withdraw(store, "of another", "two", 1).await;
    withdraw(store, "of another", "one", 2).await;
    for lock in ["repeated", "renewed", "of another"] {
        assert!(store.look(&name(lock)).await.unwrap().is_some(), "{lock}");
    }
}

#[store_test(locks)]
async fn one_of_many_concurrent_requests_is_granted(store: &Locks) {
    let asks: Vec<_> = (0..100).map(|n| ask("a", &format!("token {n}"), n)).collect();
    let answers = join_all(asks.iter().map(|ask| store.acquire(ask))).await;
    let grants = answers.iter().filter(|answer| matches!(answer, Ok(AcquireReply::Granted(_))));
    assert_eq!(grants.count(), 1);
    assert!(answers.iter().all(Result::is_ok));
}

#[store_test(locks)]
async fn similar_names_are_different_locks(store: &Locks) {
    let names = [
        "a",
        "A",
        "a ",
        "a/b",
        "a%2Fb",
        "a:b",
        "{a}",
        "{a}b",
        "a{",
        "}a{",
        "..",
        ".",
        "*",
        "a*",
        "?",
        "[a]",
        "\\a",
        "é",
        "e\u{301}",
        "{3f}:lock:a",
        "a}:lock:b",
        "日本語",
        "🔒",
    ];
    let mut fences = BTreeMap::new();
    for (attempt, text) in (0..).zip(names) {
        let lease = granted(store.acquire(&ask(text, "one", attempt)).await.unwrap());
        fences.insert(text, lease.fencing_token);
    }
    for text in names {
        let holder = store.look(&name(text)).await.unwrap().expect("it is held").first;
        assert_eq!((holder.name.as_str(), holder.fencing_token), (text, fences[text]));
    }
    let listed = list_all(store, "", 5).await;
    assert_eq!(listed.len(), names.len());
}

#[store_test(locks)]
async fn owners_and_names_are_returned_unchanged(store: &Locks) {
    let long = "ö".repeat(127);
    for (attempt, text) in (0..).zip(["x", " \"quoted\" \\ and 日本語", &long]) {
        let owner = Owner::parse(text).unwrap();
        let ask = Acquire { owner: owner.clone(), ..ask(text, "one", attempt) };
        assert_eq!(granted(store.acquire(&ask).await.unwrap()).owner, owner);
        let holder = store.look(&name(text)).await.unwrap().expect("it is held").first;
        assert_eq!((holder.owner, holder.name.as_str()), (owner, text));
    }
    let nobody = Acquire { owner: None, ..ask("nobody", "one", 9) };
    assert_eq!(granted(store.acquire(&nobody).await.unwrap()).owner, None);
    assert_eq!(store.look(&name("nobody")).await.unwrap().expect("it is held").first.owner, None);
}

#[store_test(locks)]
async fn listing_has_every_lock_once(store: &Locks) {
    let mut expected = BTreeMap::new();
    for attempt in 0..500 {
        let text = format!("lock {attempt}");
        // On a busy machine the six listings take longer than the usual TTL.
        let long = Acquire { ttl: ttl(TTL * 60), ..ask(&text, "one", attempt) };
        let lease = granted(store.acquire(&long).await.unwrap());
        expected.insert(text, lease.fencing_token);
    }
    for limit in [1000, 500, 499, 100, 7, 1] {
        let listed = list_all(store, "", limit).await;
        let found: BTreeMap<_, _> =
            listed.iter().map(|held| (held.name.as_str().to_owned(), held.fencing_token)).collect();
        assert_eq!(found, expected, "pages of {limit}");
        assert_eq!(listed.len(), expected.len(), "pages of {limit}");
    }
}

#[store_test(locks)]
async fn listing_keeps_to_its_prefix(store: &Locks) {
    for (attempt, text) in
        (0..).zip(["job:1", "job:2", "job", "jobs*", "jobs?", "[job", "Job:1", "x"])
    {
        granted(store.acquire(&ask(text, "one", attempt)).await.unwrap());
    }
    for (prefix, count) in
        [("", 8), ("job", 5), ("job:", 2), ("jobs*", 1), ("[", 1), ("*", 0), ("job:1x", 0)]
    {
        let listed = list_all(store, prefix, 2).await;
        assert_eq!(listed.len(), count, "{prefix}: {listed:?}");
        assert!(listed.iter().all(|held| held.name.as_str().starts_with(prefix)));
    }
}

#[store_test(locks, ordered)]
async fn listing_is_in_the_order_of_names(store: &Locks) {
    let names = ["é", "b", "a/10", "a/9", "B", "日本", "a", "a/", "a b", "🔒", "~"];
    for (attempt, text) in (0..).zip(names) {
        granted(store.acquire(&ask(text, "one", attempt)).await.unwrap());
    }
    for prefix in ["", "a", "a/"] {
        let mut expected: Vec<_> =
            names.iter().filter(|name| name.starts_with(prefix)).copied().collect();
        expected.sort_unstable();
        for limit in [100, 4, 1] {
            let listed = list_all(store, prefix, limit).await;
            let listed: Vec<_> = listed.iter().map(|held| held.name.as_str()).collect();
            assert_eq!(listed, expected, "those with {prefix:?}, by {limit}");
        }
    }
}

#[store_test(locks, ordered)]
async fn listing_has_each_lock_once_in_order_while_others_come_and_go(store: &Locks) {
    let throughout: Vec<_> = (0..40).map(|number| format!("lock {number:03}")).collect();
    for (attempt, text) in (0..).zip(&throughout) {
        granted(store.acquire(&ask(text, "one", attempt)).await.unwrap());
    }
    let (mut listed, mut cursor, mut round) = (Vec::new(), None, 0);
    loop {
        // On both sides of wherever the page ends.
        for number in (0..40).step_by(3) {
            let text = format!("lock {number:03} for a page");
            let reply = if round % 2 == 0 {
                let ask = ask(&text, "two", 1000 + 100 * round + number);
                matches!(store.acquire(&ask).await.unwrap(), AcquireReply::Granted(_))
            } else {
                let released = store.release(&name(&text), &token("two")).await.unwrap();
                released == ReleaseReply::Released
            };
            assert!(reply, "{text} in round {round}");
        }
        let query = ListLocks { prefix: "lock".to_owned(), limit: 7, cursor };
        let page = store.list_locks(&query).await.unwrap().expect("its own cursor");
        listed.extend(page.entries.iter().map(|held| held.first.name.as_str().to_owned()));
        (cursor, round) = (page.next, round + 1);
        if cursor.is_none() {
            break;
        }
    }
    assert!(listed.is_sorted_by(|one, next| one < next), "{listed:?}");
    listed.retain(|name| throughout.contains(name));
    assert_eq!(listed, throughout);
}

#[store_test(locks)]
async fn listing_rejects_foreign_cursors(store: &Locks) {
    for text in ["-", "x.y", "_", "1.99.0.", "1.2.0.A", "0.YQ.bQ"] {
        let query = ListLocks {
            prefix: String::new(),
            limit: 10,
            cursor: Some(Cursor::parse(text).unwrap()),
        };
        assert_eq!(store.list_locks(&query).await.unwrap(), None, "{text}");
    }
}

#[store_test(locks)]
async fn sweep_removes_expired_locks(store: &Locks) {
    for attempt in 0..50 {
        granted(store.acquire(&ask(&format!("lock {attempt}"), "one", attempt)).await.unwrap());
    }
    store.advance(TTL).await;
    assert_eq!(list_all(store, "", 10).await, []);
    store.pass_a_sweep().await;
    assert_eq!(list_all(store, "", 10).await, []);
    granted(store.acquire(&ask("lock 1", "two", 99)).await.unwrap());
}

/// All pages of a listing.
pub(crate) async fn list_all(store: &OpenStore, prefix: &str, limit: usize) -> Vec<Holder> {
    let mut locks = Vec::new();
    let mut cursor = None;
    loop {
        let query = ListLocks { prefix: prefix.to_owned(), limit, cursor };
        let Page { entries: some, next } =
            store.list_locks(&query).await.unwrap().expect("the store knows its own cursor");
        assert!(some.len() <= limit, "a page of {} with a limit of {limit}", some.len());
        locks.extend(some.into_iter().map(|held| *held.first));
        cursor = next;
        if cursor.is_none() {
            return locks;
        }
    }
}

pub(crate) async fn withdraw(store: &OpenStore, lock: &str, holder: &str, attempt: u64) {
    let (name, token) = (name(lock), token(holder));
    store.withdraw(&name, &token, Attempt::new(attempt)).await.unwrap();
}

pub(crate) fn ask(lock: &str, holder: &str, attempt: u64) -> Acquire {
    Acquire {
        name: name(lock),
        token: token(holder),
        ttl: ttl(TTL),
        owner: Owner::parse(holder).unwrap(),
        attempt: Attempt::new(attempt),
        queue: None,
    }
}

pub(crate) fn name(text: &str) -> LockName {
    LockName::parse(text).unwrap()
}

pub(crate) fn token(holder: &str) -> TokenHash {
    let padded: String = holder.chars().map(|c| if c == ' ' { '-' } else { c }).collect();
    Token::parse(&format!("token-of-the-holder-{padded}")).unwrap().hash()
}

pub(crate) fn ttl(duration: Duration) -> Ttl {
    Ttl::from_millis(u64::try_from(duration.as_millis()).unwrap()).unwrap()
}

#[track_caller]
pub(crate) fn granted(found: AcquireReply) -> Lease {
    let AcquireReply::Granted(leases) = found else { panic!("granted, not {found:?}") };
    leases[0].clone()
}

#[track_caller]
pub(crate) fn repeated(found: AcquireReply) -> Lease {
    let AcquireReply::Repeated(leases) = found else { panic!("repeated, not {found:?}") };
    leases[0].clone()
}

#[track_caller]
pub(crate) fn held(found: AcquireReply) -> Holder {
    let AcquireReply::Busy(busy) = found else { panic!("held, not {found:?}") };
    *busy.holding.expect("a holder").first
}

#[track_caller]
fn renewed(found: RenewReply) -> Lease {
    let RenewReply::Renewed(leases) = found else { panic!("renewed, not {found:?}") };
    leases[0].clone()
}

#[track_caller]
fn assert_near(left: Duration, expected: Duration) {
    assert!(left <= expected && left + SLACK > expected, "{left:?}, not about {expected:?}");
}
