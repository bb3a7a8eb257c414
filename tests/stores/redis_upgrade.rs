//! Goal: instances of the version that kept locks and records as hashes share one Redis with this one while
//! they are replaced, and then no lock is held twice, no key runs twice, and fencing tokens rise.
//!
//! Method: the scripts of that version, which lie beside this file as they were, run by `EVAL` on the same
//! names while stores of this version work on them. What only one may have is noted here, by hand.

mod older;
mod over_http;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use keylatch_core::idempotency::{
    BeginReply, PhaseName, RecordFilter, RecordStatus, ResolveCommand, RunEnd, UnknownReason,
};
use keylatch_core::lock::{AcquireReply, RenewReply};
use keylatch_core::store::{Effect, ListLocks, ListRecords, StoreError};
use keylatch_testkit::{OpenStore, RedisServer, config, soon};

use self::older::{LEASE, Older, RETENTION, is, lock_keys, mark, record_keys};
use crate::lock_conformance::{ask as ask_lock, granted, held, name, token as holder_token};
use crate::record_conformance::{ask, done, found, started, token};

async fn open(redis: &RedisServer) -> OpenStore {
    let settings = config("memory:").redis;
    OpenStore(keylatch_stores::redis(&redis.url(), &settings).await.expect("the store opens"))
}

/// Who holds which lock, and each lock's last fencing token.
#[derive(Default)]
struct Ledger(Mutex<HashMap<String, (Option<String>, u64)>>);

impl Ledger {
    #[track_caller]
    fn enter(&self, lock: &str, who: &str, fence: u64) {
        let mut locks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (holder, last) = locks.entry(lock.to_owned()).or_default();
        assert_eq!(*holder, None, "{lock} was given to {who} as well");
        assert!(fence > *last, "{lock}: {fence} after {last}");
        (*holder, *last) = (Some(who.to_owned()), fence);
    }

    fn leave(&self, lock: &str) {
        let mut locks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        locks.get_mut(lock).expect("it is held").0 = None;
    }
}

const TTL: Duration = Duration::from_secs(600);
const SECOND: Duration = Duration::from_secs(1);

/// Instances of both versions on the same three locks.
struct Contest<'a> {
    redis: &'a RedisServer,
    ledger: Ledger,
    /// How many grants there were of the older version, and of this one.
    grants: [AtomicU32; 2],
}

impl Contest<'_> {
    /// How many grants each version gets.
    const GRANTS: u32 = 150;

    fn is_over(&self) -> bool {
        self.grants.iter().all(|count| count.load(Ordering::Relaxed) >= Self::GRANTS)
    }

    fn lock_of(number: u32) -> String {
        format!("lock-{}", number % 3)
    }

    /// Holds a lock that was granted, until another could find it free.
    async fn hold(&self, lock: &str, who: &str, fence: u64) {
        self.ledger.enter(lock, who, fence);
        let _: String = self.redis.run(&["PING"]).await;
        self.ledger.leave(lock);
    }

    async fn run_older(&self, worker: u32) {
        let older = Older(self.redis);
        for number in (worker..).take_while(|_| !self.is_over()) {
            let (lock, who) = (Self::lock_of(number), format!("older {worker} {number}"));
            let token = holder_token(&who);
            if let Some(fence) = older.acquire_or_wait(&lock, &token, TTL).await {
                self.ledger.enter(&lock, &who, fence);
                is(&older.renew(&lock, &token, TTL).await, "renewed");
                self.ledger.leave(&lock);
                is(&older.release(&lock, &token).await, "released");
                self.grants[0].fetch_add(1, Ordering::Relaxed);
            } else {
                // It leaves the queue, or no other of its version would be granted the lock.
                older.withdraw(&lock, &token).await;
            }
        }
    }

    async fn run_this(&self, worker: u32, store: &OpenStore) {
        for number in (worker..).take_while(|_| !self.is_over()) {
            let (lock, who) = (Self::lock_of(number), format!("this {worker} {number}"));
            match store.acquire(&ask_lock(&lock, &who, u64::from(number))).await {
                Ok(AcquireReply::Granted(lease)) => {
                    self.hold(&lock, &who, lease.fencing_token.get()).await;
                    store.release(&name(&lock), &holder_token(&who)).await.unwrap();
                    self.grants[1].fetch_add(1, Ordering::Relaxed);
                }
                Ok(AcquireReply::Busy(_)) => tokio::task::yield_now().await,
                Ok(other) => panic!("{other:?}"),
                Err(error) => assert_eq!(error.effect(), Effect::NotExecuted, "{error}"),
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn instances_of_two_versions_hold_no_lock_twice() {
    let redis = RedisServer::start().await;
    let stores = [open(&redis).await, open(&redis).await];
    let contest = Contest { redis: &redis, ledger: Ledger::default(), grants: Default::default() };
    let all = async {
        tokio::join!(
            contest.run_older(0),
            contest.run_older(1),
            contest.run_this(0, &stores[0]),
            contest.run_this(1, &stores[1]),
            contest.run_this(2, &stores[1])
        )
    };
    soon("the grants of both", all).await;
}

/// Runs a key at an older instance, if it may, and resolves every second outcome. Whether it ran.
async fn run_at_older(older: &Older<'_>, number: u8) -> bool {
    let (key, runner) = (ask(number, "").key, token(&format!("older {number}")));
    if older.begin(&key, &runner).await.is_none() {
        return false;
    }
    is(&older.extend(&key, &runner).await, "extended");
    let stage = if number.is_multiple_of(2) { "done" } else { "unknown" };
    is(&older.complete(&key, &runner, stage).await, "kept");
    is(&older.resolve(&key, true).await, "completed");
    true
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn instances_of_two_versions_run_no_key_twice() {
    const KEYS: u8 = 200;
    let redis = RedisServer::start().await;
    let (store, older) = (open(&redis).await, Older(&redis));
    let runs: Arc<Vec<AtomicU32>> = Arc::new((0..KEYS).map(|_| AtomicU32::new(0)).collect());
    let key = |number: u8| ask(number, "").key;
    let of_older = async {
        for number in 0..KEYS {
            if run_at_older(&older, number).await {
                runs[usize::from(number)].fetch_add(1, Ordering::Relaxed);
            }
        }
    };
    let of_this = async {
        for number in (0..KEYS).rev() {
            let runner = format!("this {number}");
            match store.begin(&ask(number, &runner)).await {
                Ok(BeginReply::Started(_)) => {
                    runs[usize::from(number)].fetch_add(1, Ordering::Relaxed);
                    let end = RunEnd::Done(mark());
                    store.complete(&key(number), &token(&runner), end).await.unwrap();
                }
                Ok(BeginReply::Found(_)) => {}
                Ok(other) => panic!("{other:?}"),
                Err(error) => assert_eq!(error.effect(), Effect::NotExecuted, "{error}"),
            }
        }
    };
    let all = async { tokio::join!(of_older, of_this) };
    soon("the runs of both", all).await;
    for number in 0..KEYS {
        assert_eq!(runs[usize::from(number)].load(Ordering::Relaxed), 1, "key {number}");
        // Whichever version ran it, this one replays it, and the older runs nothing again.
        let replayed = found(store.begin(&ask(number, "later")).await.unwrap());
        let RecordStatus::Done { kept, .. } = replayed.phase else { panic!("{replayed:?}") };
        assert_eq!(kept, mark());
        assert_eq!(older.begin(&key(number), &token("later")).await, None);
    }
}

#[tokio::test]
async fn lock_of_an_older_instance_is_seen_until_it_ends() {
    let redis = RedisServer::start().await;
    let (store, older) = (open(&redis).await, Older(&redis));
    let fence = older.acquire("a", &holder_token("one"), TTL).await.expect("a free lock");
    let holder = held(store.acquire(&ask_lock("a", "two", 1)).await.unwrap());
    assert_eq!(holder.fencing_token.get(), fence);
    assert_eq!(holder.owner.as_ref().map(|owner| owner.as_str()), Some("older"));
    assert!(holder.expires_in <= TTL && holder.expires_in > TTL / 2, "{holder:?}");
    let seen = store.look(&name("a")).await.unwrap().expect("it is held");
    assert_eq!(seen.first.fencing_token, holder.fencing_token);
    let all = ListLocks { prefix: String::new(), limit: 100, cursor: None };
    let listed = store.list_locks(&all).await.unwrap().expect("a first page").entries;
    assert_eq!(listed.iter().map(|held| held.first.name.as_str()).collect::<Vec<_>>(), ["a"]);
    // What would change it is for an instance of its own version.
    let ttl = ask_lock("a", "one", 1).ttl;
    let renewed = store.renew(&name("a"), &holder_token("one"), ttl).await;
    is_refused(&renewed);
    is_refused(&store.release(&name("a"), &holder_token("one")).await);
    assert_eq!(
        store.renew(&name("a"), &holder_token("two"), ttl).await.unwrap(),
        RenewReply::Mismatch
    );
    redis.advance(TTL + SECOND);
    let next = granted(store.acquire(&ask_lock("a", "two", 2)).await.unwrap());
    assert!(next.fencing_token.get() > fence);
    // And the other way round.
    assert_eq!(older.acquire("a", &holder_token("one"), TTL).await, None);
    store.release(&name("a"), &holder_token("two")).await.unwrap();
    let last = older.acquire("a", &holder_token("one"), TTL).await.expect("a free lock");
    assert!(last > next.fencing_token.get());
    is(&older.release("a", &holder_token("one")).await, "released");
}

#[tokio::test]
async fn run_of_an_older_instance_is_not_run_again() {
    let redis = RedisServer::start().await;
    let (store, older) = (open(&redis).await, Older(&redis));
    let key = ask(1, "").key;
    older.begin(&key, &token("one")).await.expect("a free key");
    let running = found(store.begin(&ask(1, "two")).await.unwrap());
    assert!(matches!(running.phase, RecordStatus::InFlight { .. }), "{running:?}");
    is_refused(&store.complete(&key, &token("one"), done("a")).await);
    redis.advance(LEASE + SECOND);
    let over = found(store.begin(&ask(1, "two")).await.unwrap());
    assert!(matches!(over.phase, RecordStatus::Unknown { .. }), "{over:?}");
    assert_eq!(count_unknown(&store).await, 1);
}

async fn count_unknown(store: &OpenStore) -> usize {
    let unknown = RecordFilter { phase: Some(PhaseName::Unknown), ..RecordFilter::default() };
    let query = ListRecords { filter: unknown, limit: 10, cursor: None };
    store.list_records(&query).await.unwrap().expect("a first page").entries.len()
}

#[tokio::test]
async fn lock_that_an_older_instance_renews_is_held_for_its_new_ttl() {
    let redis = RedisServer::start().await;
    let (store, older) = (open(&redis).await, Older(&redis));
    let fence = older.acquire("a", &holder_token("one"), TTL).await.expect("a free lock");
    held(store.acquire(&ask_lock("a", "two", 1)).await.unwrap());
    redis.advance(TTL - SECOND);
    is(&older.renew("a", &holder_token("one"), TTL * 2).await, "renewed");
    redis.advance(TTL + SECOND);
    let holder = held(store.acquire(&ask_lock("a", "two", 2)).await.unwrap());
    assert_eq!(holder.fencing_token.get(), fence);
    assert!(holder.expires_in <= TTL && holder.expires_in > TTL / 2, "{holder:?}");
    redis.advance(TTL);
    let next = granted(store.acquire(&ask_lock("a", "two", 3)).await.unwrap());
    assert!(next.fencing_token.get() > fence);
}

#[tokio::test]
async fn fencing_tokens_of_both_versions_rise_although_the_clock_is_set_back() {
    let redis = RedisServer::start().await;
    let (store, older) = (open(&redis).await, Older(&redis));
    let mut last = 0;
    for attempt in 0..3 {
        let fence = older.acquire("a", &holder_token("one"), TTL).await.expect("a free lock");
        assert!(fence > last, "{fence} after {last}");
        is(&older.release("a", &holder_token("one")).await, "released");
        redis.set_back(TTL);
        let lease = granted(store.acquire(&ask_lock("a", "two", attempt)).await.unwrap());
        last = lease.fencing_token.get();
        assert!(last > fence, "{last} after {fence}");
        store.release(&name("a"), &holder_token("two")).await.unwrap();
        redis.set_back(TTL);
    }
}

/// Its queue has a key of its own, so it leaves although the lock is no hash any more.
#[tokio::test]
async fn waiter_of_an_older_instance_leaves_its_queue() {
    let redis = RedisServer::start().await;
    let (store, older) = (open(&redis).await, Older(&redis));
    let waiters = async || redis.run::<u64>(&["ZCARD", &lock_keys("a")[1]]).await;
    let [one, two, three] = ["one", "two", "three"].map(holder_token);
    older.acquire("a", &one, TTL).await.expect("a free lock");
    assert_eq!(older.acquire_or_wait("a", &two, TTL).await, None);
    assert_eq!(waiters().await, 1);
    is(&older.withdraw("a", &two).await, "held");
    assert_eq!(waiters().await, 0);

    assert_eq!(older.acquire_or_wait("a", &two, TTL).await, None);
    is(&older.release("a", &one).await, "released");
    let lease = granted(store.acquire(&ask_lock("a", "other", 1)).await.unwrap());
    assert_eq!(older.ask("a", &two, TTL, "4000").await, None);
    assert_eq!(older.withdraw("a", &two).await, None);
    assert_eq!(waiters().await, 0);
    store.release(&name("a"), &holder_token("other")).await.unwrap();
    let next = older.acquire("a", &three, TTL).await.expect("a free lock without waiters");
    assert!(next > lease.fencing_token.get());
}

#[tokio::test]
async fn older_instance_changes_no_lock_of_this_version() {
    let redis = RedisServer::start().await;
    let (store, older) = (open(&redis).await, Older(&redis));
    let lease = granted(store.acquire(&ask_lock("a", "one", 1)).await.unwrap());
    let row = async || redis.run::<Vec<u8>>(&["GET", &lock_keys("a")[0]]).await;
    let before = row().await;
    for token in ["one", "two"].map(holder_token) {
        assert_eq!(older.ask("a", &token, TTL, "").await, None);
        assert_eq!(older.ask("a", &token, TTL, "4000").await, None);
        assert_eq!(older.renew("a", &token, TTL).await, None);
        assert_eq!(older.withdraw("a", &token).await, None);
        assert_eq!(older.release("a", &token).await, None);
        assert_eq!(older.look("a").await, None);
    }
    assert_eq!(row().await, before);
    let renewed =
        store.renew(&name("a"), &holder_token("one"), ask_lock("a", "one", 1).ttl).await.unwrap();
    let RenewReply::Renewed(renewed) = renewed else { panic!("{renewed:?}") };
    assert_eq!(renewed.fencing_token, lease.fencing_token);
}

#[tokio::test]
async fn older_instance_changes_no_record_of_this_version() {
    let redis = RedisServer::start().await;
    let (store, older) = (open(&redis).await, Older(&redis));
    let key = ask(1, "").key;
    started(store.begin(&ask(1, "one")).await.unwrap());
    let row = async || redis.run::<Vec<u8>>(&["GET", &record_keys(&key)[0]]).await;
    let before = row().await;
    for runner in ["one", "two"].map(token) {
        assert_eq!(older.begin(&key, &runner).await, None);
        assert_eq!(older.extend(&key, &runner).await, None);
        assert_eq!(older.complete(&key, &runner, "done").await, None);
        assert_eq!(older.complete(&key, &runner, "unknown").await, None);
        assert_eq!(older.abandon(&key, &runner).await, None);
        assert_eq!(older.resolve(&key, true).await, None);
        assert_eq!(older.resolve(&key, false).await, None);
        assert_eq!(older.find(&key).await, None);
    }
    assert_eq!(row().await, before);
    store.complete(&key, &token("one"), done("a")).await.unwrap();
    let replayed = found(store.begin(&ask(1, "two")).await.unwrap());
    assert!(matches!(replayed.phase, RecordStatus::Done { .. }), "{replayed:?}");
}

#[tokio::test]
async fn run_that_an_older_instance_extends_is_in_flight() {
    let redis = RedisServer::start().await;
    let (store, older) = (open(&redis).await, Older(&redis));
    let (key, runner) = (ask(1, "").key, token("one"));
    older.begin(&key, &runner).await.expect("a free key");
    for _ in 0..2 {
        let running = found(store.begin(&ask(1, "two")).await.unwrap());
        let RecordStatus::InFlight { lease } = running.phase else { panic!("{running:?}") };
        assert!(lease <= LEASE && lease > LEASE / 2, "{lease:?}");
        redis.advance(LEASE - SECOND * 10);
        is(&older.extend(&key, &runner).await, "extended");
    }
    redis.advance(LEASE + SECOND);
    let over = found(store.begin(&ask(1, "two")).await.unwrap());
    assert!(matches!(over.phase, RecordStatus::Unknown { .. }), "{over:?}");
    is(&older.extend(&key, &runner).await, "lost");
}

#[tokio::test]
async fn outcome_that_an_older_instance_resolves_is_replayed() {
    let redis = RedisServer::start().await;
    let (store, older) = (open(&redis).await, Older(&redis));
    let (key, runner) = (ask(1, "").key, token("one"));
    older.begin(&key, &runner).await.expect("a free key");
    is(&older.complete(&key, &runner, "unknown").await, "kept");
    let unknown = found(store.begin(&ask(1, "two")).await.unwrap());
    let RecordStatus::Unknown { reason, .. } = unknown.phase else { panic!("{unknown:?}") };
    assert_eq!((reason, count_unknown(&store).await), (UnknownReason::Failed, 1));
    let resolve = ResolveCommand { key, fencing_token: None, end: Some(mark()) };
    is_refused(&store.resolve(&resolve).await);
    is(&older.resolve(&key, true).await, "completed");
    let replayed = found(store.begin(&ask(1, "two")).await.unwrap());
    let RecordStatus::Done { kept, .. } = replayed.phase else { panic!("{replayed:?}") };
    assert_eq!((kept, count_unknown(&store).await), (mark(), 0));
}

#[tokio::test]
async fn key_that_an_older_instance_frees_runs_again() {
    let redis = RedisServer::start().await;
    let (store, older) = (open(&redis).await, Older(&redis));
    for (number, is_resolved) in [(1, true), (2, false)] {
        let (key, runner) = (ask(number, "").key, token("one"));
        let fence = older.begin(&key, &runner).await.expect("a free key");
        if is_resolved {
            redis.advance(LEASE + SECOND);
            found(store.begin(&ask(number, "two")).await.unwrap());
            is(&older.resolve(&key, false).await, "freed");
        } else {
            is(&older.abandon(&key, &runner).await, "abandoned");
        }
        let run = started(store.begin(&ask(number, "two")).await.unwrap());
        assert!(run.fencing_token.get() > fence);
        assert_eq!(older.begin(&key, &runner).await, None);
    }
}

#[tokio::test]
async fn key_runs_again_when_the_record_of_an_older_instance_ends_by_time() {
    for stage in ["done", "unknown"] {
        let redis = RedisServer::start().await;
        let (store, older) = (open(&redis).await, Older(&redis));
        let (key, runner) = (ask(1, "").key, token("one"));
        let fence = older.begin(&key, &runner).await.expect("a free key");
        is(&older.complete(&key, &runner, stage).await, "kept");
        redis.advance(RETENTION - SECOND * 60);
        found(store.begin(&ask(1, "two")).await.unwrap());
        redis.advance(SECOND * 61);
        let run = started(store.begin(&ask(1, "two")).await.unwrap());
        assert!(run.fencing_token.get() > fence, "{run:?} after {fence}");
        assert_eq!((run.attempts, count_unknown(&store).await), (1, 0));
        assert_eq!(older.begin(&key, &runner).await, None);
    }
}

/// Which of the two versions runs it again is never in doubt: the one that began it.
#[tokio::test]
async fn interrupted_run_of_an_older_instance_runs_again_at_an_older_one() {
    let redis = RedisServer::start().await;
    let (store, older) = (open(&redis).await, Older(&redis));
    let key = ask(1, "").key;
    let fence = older.begin_as(&key, &token("one"), "rerun").await.expect("a free key");
    redis.advance(LEASE + SECOND);
    is_refused(&store.begin(&ask(1, "two")).await);
    let later = older.begin_as(&key, &token("three"), "rerun").await.expect("it may run again");
    assert!(later > fence);
    found(store.begin(&ask(1, "two")).await.unwrap());
    redis.advance(LEASE + RETENTION + SECOND);
    let run = started(store.begin(&ask(1, "two")).await.unwrap());
    assert!(run.fencing_token.get() > later);
}

#[track_caller]
fn is_refused<T: std::fmt::Debug>(result: &Result<T, StoreError>) {
    let Err(error) = result else { panic!("{result:?}") };
    assert_eq!(error.effect(), Effect::NotExecuted, "{error}");
    let causes =
        std::iter::successors(Some(error as &dyn std::error::Error), |error| error.source());
    let causes: Vec<_> = causes.map(ToString::to_string).collect();
    assert!(causes.iter().any(|cause| cause.contains("older version")), "{causes:?}");
}
