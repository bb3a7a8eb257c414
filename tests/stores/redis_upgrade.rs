//! Goal: instances of the version that kept locks and records as hashes share one Redis with this one while
//! they are replaced, and then no lock is held twice, no key runs twice, and fencing tokens rise.
//!
//! Method: the scripts of that version, which lie beside this file as they were, run by `EVAL` on the same
//! names while stores of this version work on them. What only one may have is noted here, by hand.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use keylatch_core::idempotency::{
    BeginReply, PhaseName, RecordFilter, RecordKey, RecordStatus, RunEnd, StoredResponse,
};
use keylatch_core::lock::{AcquireReply, RenewReply, TokenHash};
use keylatch_core::store::{Effect, ListLocks, ListRecords, StoreError};
use keylatch_testkit::{OpenStore, RedisServer, config, soon};
use redis::{RedisResult, Value, from_redis_value};

use crate::lock_conformance::{ask as ask_lock, granted, held, name, token as holder_token};
use crate::record_conformance::{ask, done, found, token};

const ACQUIRE: &str = concat!(
    include_str!("redis_upgrade/fence.lua"),
    include_str!("redis_upgrade/queue.lua"),
    include_str!("redis_upgrade/acquire.lua")
);
const RELEASE: &str =
    concat!(include_str!("redis_upgrade/queue.lua"), include_str!("redis_upgrade/release.lua"));
const BEGIN: &str = concat!(
    include_str!("redis_upgrade/fence.lua"),
    include_str!("redis_upgrade/record.lua"),
    include_str!("redis_upgrade/record_begin.lua")
);
const COMPLETE: &str = concat!(
    include_str!("redis_upgrade/record.lua"),
    include_str!("redis_upgrade/record_complete.lua")
);

/// An instance of the older version.
struct Older<'a>(&'a RedisServer);

impl Older<'_> {
    /// Runs a script; what it found, or that the key has a row of this version.
    async fn run(&self, script: &str, keys: &[String], args: &[&str]) -> Option<Vec<Value>> {
        let count = keys.len().to_string();
        let keys = keys.iter().map(String::as_str);
        let command: Vec<_> = ["EVAL", script, &count].into_iter().chain(keys).collect();
        let reply: RedisResult<Vec<Value>> = self.0.try_run(&[&command, args].concat()).await;
        match reply {
            Ok(reply) => Some(reply),
            Err(error) => {
                let code = error.code().map(ToOwned::to_owned);
                assert_eq!(code.as_deref(), Some("WRONGTYPE"), "{error}");
                None
            }
        }
    }

    /// Acquires a lock; its fencing token.
    async fn acquire(&self, lock: &str, token: &TokenHash, ttl: Duration) -> Option<u64> {
        let keys = lock_keys(lock);
        let ttl = ttl.as_millis().to_string();
        let args = [&text(token), &*ttl, "older", "7", "", "keylatch:turns", ""];
        let reply = self.run(ACQUIRE, &keys, &args).await?;
        let word: String = from_redis_value(reply[0].clone()).unwrap();
        (word == "granted").then(|| from_redis_value(reply[1].clone()).unwrap())
    }

    async fn release(&self, lock: &str, token: &TokenHash) {
        let args = [&text(token), "keylatch:turns", ""];
        let reply = self.run(RELEASE, &lock_keys(lock)[..4], &args).await.expect("its own type");
        assert_eq!(from_redis_value::<String>(reply[0].clone()).unwrap(), "released");
    }

    /// Begins a run; whether it may.
    async fn begin(&self, record: &RecordKey, runner: &str) -> bool {
        let fingerprint = keylatch_core::idempotency::Fingerprint::of_text("an order");
        let args = [
            &text(&token(runner)),
            &*URL_SAFE_NO_PAD.encode(fingerprint.as_bytes()),
            "60000",
            "86400000",
            "unknown",
            "86400000",
            "",
        ];
        let [key, index] = record_keys(record);
        let counter = format!("keylatch:{{{:02x}}}:fence", record.bucket());
        let reply = self.run(BEGIN, &[key, counter, index], &args).await;
        reply
            .is_some_and(|reply| from_redis_value::<String>(reply[0].clone()).unwrap() == "started")
    }

    async fn complete(&self, record: &RecordKey, runner: &str) {
        let end = String::from_utf8(mark().to_bytes().unwrap()).unwrap();
        let args = [&text(&token(runner)), "done", &*end, "86400000"];
        let reply = self.run(COMPLETE, &record_keys(record), &args).await.expect("its own type");
        assert_eq!(from_redis_value::<String>(reply[0].clone()).unwrap(), "kept");
    }
}

fn text(token: &TokenHash) -> String {
    URL_SAFE_NO_PAD.encode(token.as_bytes())
}

/// A stored response whose bytes are text.
fn mark() -> StoredResponse {
    StoredResponse::Mark(80)
}

fn lock_keys(lock: &str) -> Vec<String> {
    let bucket = name(lock).bucket();
    let parts = ["lock", "line", "places", "attempts"].map(|part| format!("{part}:{lock}"));
    let parts = parts.into_iter().chain(["fence".to_owned()]);
    parts.map(|part| format!("keylatch:{{{bucket:02x}}}:{part}")).collect()
}

fn record_keys(record: &RecordKey) -> [String; 2] {
    let bucket = record.bucket();
    let hash = URL_SAFE_NO_PAD.encode(record.as_bytes());
    [format!("record:{hash}"), "unfinished".to_owned()]
        .map(|part| format!("keylatch:{{{bucket:02x}}}:{part}"))
}

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
            if let Some(fence) = older.acquire(&lock, &holder_token(&who), TTL).await {
                self.hold(&lock, &who, fence).await;
                older.release(&lock, &holder_token(&who)).await;
                self.grants[0].fetch_add(1, Ordering::Relaxed);
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn instances_of_two_versions_run_no_key_twice() {
    const KEYS: u8 = 200;
    let redis = RedisServer::start().await;
    let (store, older) = (open(&redis).await, Older(&redis));
    let runs: Arc<Vec<AtomicU32>> = Arc::new((0..KEYS).map(|_| AtomicU32::new(0)).collect());
    let key = |number: u8| ask(number, "").key;
    let of_older = async {
        for number in 0..KEYS {
            let runner = format!("older {number}");
            if older.begin(&key(number), &runner).await {
                runs[usize::from(number)].fetch_add(1, Ordering::Relaxed);
                older.complete(&key(number), &runner).await;
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
        assert!(!older.begin(&key(number), "later").await);
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
    redis.advance(TTL);
    let next = granted(store.acquire(&ask_lock("a", "two", 2)).await.unwrap());
    assert!(next.fencing_token.get() > fence);
    // And the other way round.
    assert_eq!(older.acquire("a", &holder_token("one"), TTL).await, None);
    store.release(&name("a"), &holder_token("two")).await.unwrap();
    let last = older.acquire("a", &holder_token("one"), TTL).await.expect("a free lock");
    assert!(last > next.fencing_token.get());
    older.release("a", &holder_token("one")).await;
}

#[tokio::test]
async fn run_of_an_older_instance_is_not_run_again() {
    let redis = RedisServer::start().await;
    let (store, older) = (open(&redis).await, Older(&redis));
    let key = ask(1, "").key;
    assert!(older.begin(&key, "one").await);
    let running = found(store.begin(&ask(1, "two")).await.unwrap());
    assert!(matches!(running.phase, RecordStatus::InFlight { .. }), "{running:?}");
    is_refused(&store.complete(&key, &token("one"), done("a")).await);
    redis.advance(Duration::from_secs(61));
    let over = found(store.begin(&ask(1, "two")).await.unwrap());
    assert!(matches!(over.phase, RecordStatus::Unknown { .. }), "{over:?}");
    let unknown = RecordFilter { phase: Some(PhaseName::Unknown), ..RecordFilter::default() };
    let query = ListRecords { filter: unknown, limit: 10, cursor: None };
    let page = store.list_records(&query).await.unwrap().expect("a first page");
    assert_eq!(page.entries.len(), 1);
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
