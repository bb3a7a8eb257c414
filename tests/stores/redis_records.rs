//! Goal: records in Redis take few round trips, stand foreign data and a full server, and survive
//! lost replies.
//!
//! Method: one real Redis, what it counts (`INFO commandstats`), and a proxy.

use std::error::Error;
use std::iter::successors;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use keylatch_core::idempotency::{
    AbandonReply, BeginCommand, CompleteReply, IdempotencyError, IdempotencyService, OnCrash,
    OnceRun, RecordStatus, ResolveCommand, RunRenewal, RunRequest, RunResult,
};
use keylatch_core::lock::{AcquireReply, Attempt, LockName, Ttl};
use keylatch_core::store::{Effect, ListLocks, StoreError};
use keylatch_testkit::{Acquire, OpenStore, Proxy, RedisServer, config, eventually};

use crate::lock_conformance::{ask as ask_lock, token as holder_token};
use crate::record_conformance::{ask, done, found, kept, key, started, token};

const DEADLINE: Duration = Duration::from_secs(5);

#[tokio::test]
async fn first_run_takes_two_round_trips_and_a_replay_one() {
    let (redis, store) = on_redis().await;
    use_each_script(&store).await;
    // The first fencing token of a bucket whose counter is not there takes more.
    let () = redis.run(&["SET", "keylatch:{01}:fence", "1"]).await;
    let mut evals = evals_of(&redis).await;
    let mut spent = async || {
        let before = std::mem::replace(&mut evals, evals_of(&redis).await);
        evals - before
    };
    started(store.begin(&ask(1, "one")).await.unwrap());
    kept(complete(&store, 1).await.unwrap());
    assert_eq!(spent().await, 2);
    found(store.begin(&ask(1, "two")).await.unwrap());
    assert_eq!(spent().await, 1);
    let resolve = ResolveCommand { key: key(1), fencing_token: None, end: None.into() };
    store.extend(&key(1), &token("one")).await.unwrap();
    store.abandon(&key(1), &token("one")).await.unwrap();
    store.resolve(&resolve).await.unwrap();
    store.find(&key(1)).await.unwrap();
    assert_eq!(spent().await, 4);
}

#[tokio::test]
async fn records_survive_script_flush() {
    let (redis, store) = on_redis().await;
    for _ in 0..5 {
        started(store.begin(&ask(1, "one")).await.unwrap());
        let () = redis.run(&["SCRIPT", "FLUSH"]).await;
        assert_eq!(store.abandon(&key(1), &token("one")).await.unwrap(), AbandonReply::Done(()));
        let () = redis.run(&["SCRIPT", "FLUSH"]).await;
    }
}

#[tokio::test]
async fn records_and_locks_share_only_the_counters() {
    let (redis, store) = on_redis().await;
    let lock = LockName::parse("deploy").unwrap();
    // A record in the bucket of the lock, whose counter is ahead of the clock.
    let begin = BeginCommand { key: key(lock.bucket()), ..ask(0, "one") };
    let counter = format!("keylatch:{{{:02x}}}:fence", lock.bucket());
    let ahead = 8_000_000_000_000_000_u64;
    let () = redis.run(&["SET", &counter, &ahead.to_string()]).await;
    let first = started(store.begin(&begin).await.unwrap());
    let acquire = Acquire {
        name: lock.clone(),
        token: token("one"),
        ttl: Ttl::from_millis(60_000).unwrap(),
        owner: None,
        attempt: Attempt::new(1),
        queue: None,
    };
    let granted = store.acquire(&acquire).await.unwrap();
    let AcquireReply::Granted(leases) = granted else { panic!("granted, not {granted:?}") };
    let again = BeginCommand { key: key(lock.bucket()), ..ask(0, "two") };
    store.abandon(&begin.key, &begin.token).await.unwrap();
    let second = started(store.begin(&again).await.unwrap());
    let fences = [first.fencing_token, leases[0].fencing_token, second.fencing_token]
        .map(|fencing_token| fencing_token.get());
    assert_eq!(fences, [ahead + 1, ahead + 2, ahead + 3]);
    assert_eq!(redis.run::<String>(&["GET", &counter]).await, (ahead + 3).to_string());
    let all = ListLocks { prefix: String::new(), limit: 100, cursor: None };
    let page = store.list_locks(&all).await.unwrap().expect("a first page");
    let names: Vec<_> = page.entries.iter().map(|held| held.first.name.as_str()).collect();
    assert_eq!(names, ["deploy"]);
}

#[tokio::test]
async fn full_redis_keeps_completed_runs() {
    let redis = RedisServer::start_with(&["--maxmemory-policy", "noeviction"]).await;
    let store = open(&redis.url()).await;
    for record in [1, 2] {
        started(store.begin(&ask(record, "one")).await.unwrap());
    }
    let () = redis.run(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let full = store.begin(&ask(3, "one")).await.unwrap_err();
    assert_eq!(full.effect(), Effect::NotExecuted);
    let extended = store.extend(&key(1), &token("one")).await.unwrap();
    assert_eq!(extended, RunRenewal::Extended);
    kept(complete(&store, 1).await.unwrap());
    found(store.begin(&ask(1, "two")).await.unwrap());
    let abandoned = store.abandon(&key(2), &token("one")).await.unwrap();
    assert_eq!(abandoned, AbandonReply::Done(()));
    let () = redis.run(&["CONFIG", "SET", "maxmemory", "0"]).await;
    started(store.begin(&ask(3, "one")).await.unwrap());
}

#[tokio::test]
async fn foreign_value_in_a_key_is_refused_with_a_sentence_and_stays() {
    let (redis, store) = on_redis().await;
    let deploy = LockName::parse("deploy").unwrap();
    let lock = format!("keylatch:{{{:02x}}}:lock:deploy", deploy.bucket());
    let lists = [lock.clone(), name(1)];
    // The second has a version and then no value, the third a value of another format, and the last
    // is no string.
    for value in ["not ours", "sixteen bytes of text", "sixteen bytes...\u{1}", "a list"] {
        for key in &lists {
            let () = redis.run(&["DEL", key]).await;
            let command = if value == "a list" { "RPUSH" } else { "SET" };
            let () = redis.run(&[command, key, value]).await;
        }
        let errors = [
            store.begin(&ask(1, "one")).await.unwrap_err(),
            complete(&store, 1).await.unwrap_err(),
            store.find(&key(1)).await.unwrap_err(),
            store.acquire(&ask_lock("deploy", "one", 1)).await.unwrap_err(),
            store.release(&deploy, &holder_token("one")).await.unwrap_err(),
            store.look(&deploy).await.unwrap_err(),
        ];
        errors.iter().for_each(is_refused_with_advice);
        for key in &lists {
            let kept: String = match value {
                "a list" => redis.run(&["LINDEX", key, "0"]).await,
                _ => redis.run(&["GET", key]).await,
            };
            assert_eq!(kept, value);
        }
    }
}

/// Nothing was done, and the cause of it says what an operator can do.
#[track_caller]
pub(crate) fn is_refused_with_advice(error: &StoreError) {
    assert_eq!(error.effect(), Effect::NotExecuted, "{error}");
    let causes: Vec<_> = successors(error.source(), |&cause| cause.source()).collect();
    let says = |cause: &&dyn Error| cause.to_string().contains("give keylatch a place of its own");
    assert!(causes.iter().any(says), "{error:?}");
}

#[tokio::test]
async fn every_record_expires() {
    let (redis, store) = on_redis().await;
    // Longer than Redis keeps anything.
    let span = Duration::from_secs(1000 * 365 * 24 * 3600);
    let endless = BeginCommand { lease: span, retention: span, ..ask(1, "one") };
    let instant =
        BeginCommand { lease: Duration::ZERO, retention: Duration::ZERO, ..ask(2, "one") };
    for begin in [endless, instant] {
        for on_crash in [OnCrash::Unknown, OnCrash::Rerun] {
            let begin = BeginCommand { on_crash, ..begin.clone() };
            started(store.begin(&begin).await.unwrap());
            assert_ne!(redis.run::<i64>(&["PTTL", &name(begin.key.bucket())]).await, -1);
            store.extend(&begin.key, &begin.token).await.unwrap();
            assert_ne!(redis.run::<i64>(&["PTTL", &name(begin.key.bucket())]).await, -1);
            store.complete(&begin.key, &token("one"), done("a")).await.unwrap();
            assert_ne!(redis.run::<i64>(&["PTTL", &name(begin.key.bucket())]).await, -1);
            let () = redis.run(&["FLUSHALL"]).await;
        }
    }
}

#[tokio::test]
async fn run_with_a_lost_begin_is_abandoned() {
    let redis = RedisServer::start().await;
    let proxy = Proxy::start(redis.address()).await;
    let store = open(&proxy.url()).await;
    use_each_script(&store).await;
    let service = IdempotencyService::start(store.0, DEADLINE);
    let runs = Arc::new(AtomicU32::new(0));
    proxy.lose_answers();
    let lost = run(&service, &runs, || {}).await.unwrap_err();
    assert_eq!(lost.effect(), Effect::Unknown);
    let counter: Option<u64> = redis.run(&["GET", "keylatch:{01}:fence"]).await;
    assert!(counter.is_some(), "it was begun");
    proxy.forward();
    // No caller has its token: if not abandoned, it would be in flight for a whole lease.
    let once = eventually(async || match run(&service, &runs, || {}).await {
        Ok(once @ OnceRun::Ran { .. }) => Some(once),
        _ => None,
    })
    .await;
    assert!(matches!(once, OnceRun::Ran { kept: Some(_), .. }), "{once:?}");
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn lost_completion_is_stored_by_a_retry() {
    let redis = RedisServer::start().await;
    let proxy = Arc::new(Proxy::start(redis.address()).await);
    let store = open(&proxy.url()).await;
    use_each_script(&store).await;
    let service = IdempotencyService::start(store.0, DEADLINE);
    let runs = Arc::new(AtomicU32::new(0));
    let break_it: [fn(&Proxy); 2] = [Proxy::lose_answers, Proxy::refuse];
    for (round, break_it) in (1..).zip(break_it) {
        let breaking = Arc::clone(&proxy);
        let once = run(&service, &runs, move || break_it(&breaking)).await.unwrap();
        // The caller has the answer all the same.
        assert!(matches!(once, OnceRun::Ran { kept: None, .. }), "{once:?}");
        proxy.forward();
        let view = eventually(async || match run(&service, &runs, || {}).await {
            Ok(OnceRun::Found(view)) if matches!(view.phase, RecordStatus::Done { .. }) => {
                Some(view)
            }
            _ => None,
        })
        .await;
        assert_eq!((view.attempts, runs.load(Ordering::SeqCst)), (1, round));
        let () = redis.run(&["DEL", &name(1)]).await;
    }
}

pub(crate) async fn open(url: &str) -> OpenStore {
    let opened = keylatch_stores::open(url, config("memory:").stores()).await;
    OpenStore(opened.expect("the store opens"))
}

/// A Redis, and a store over it.
pub(crate) async fn on_redis() -> (RedisServer, OpenStore) {
    let redis = RedisServer::start().await;
    let store = open(&redis.url()).await;
    (redis, store)
}

/// Uses each script once on another record, so that the next use is carried out at once.
async fn use_each_script(store: &OpenStore) {
    let (other, token) = (ask(255, "one"), token("one"));
    started(store.begin(&other).await.unwrap());
    store.extend(&other.key, &token).await.unwrap();
    store.abandon(&other.key, &token).await.unwrap();
    let absent = store.complete(&other.key, &token, done("a")).await;
    assert_eq!(absent.unwrap(), CompleteReply::Absent);
    store
        .resolve(&ResolveCommand { key: other.key, fencing_token: None, end: None.into() })
        .await
        .unwrap();
    store.find(&other.key).await.unwrap();
}

/// Does the work of the first record once, with something that happens in the middle.
async fn run(
    service: &Arc<IdempotencyService>,
    runs: &Arc<AtomicU32>,
    in_the_middle: impl FnOnce() + Send + 'static,
) -> Result<OnceRun<u16>, StoreError> {
    let BeginCommand { key, scope, fingerprint, lease, retention, on_crash, .. } = ask(1, "one");
    let (panic_releases, wait) = (false, Duration::ZERO);
    let ask = RunRequest {
        key,
        scope,
        fingerprint,
        lease,
        retention,
        on_crash,
        panic_releases,
        wait,
        step_limit: None,
        answer_bytes: 1024,
    };
    let runs = Arc::clone(runs);
    let once = service.once(ask, move |_| async move {
        runs.fetch_add(1, Ordering::SeqCst);
        in_the_middle();
        RunResult { answer: 200, end: Some(done("a")), late: None }
    });
    once.await.map_err(|error| match error {
        IdempotencyError::Store(error) => error,
        other => panic!("{other}"),
    })
}

/// Completes a record.
async fn complete(store: &OpenStore, record: u8) -> Result<CompleteReply, StoreError> {
    store.complete(&key(record), &token("one"), done("a")).await
}

/// The key in Redis.
fn name(record: u8) -> String {
    let hash = URL_SAFE_NO_PAD.encode(key(record).as_bytes());
    format!("keylatch:{{{record:02x}}}:record:{hash}")
}

/// How many scripts were run or loaded.
async fn evals_of(redis: &RedisServer) -> u64 {
    let stats: String = redis.run(&["INFO", "commandstats"]).await;
    let calls = stats.lines().filter_map(|line| {
        let (command, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        let calls = rest.split(',').next()?.parse::<u64>().ok()?;
        (command.starts_with("eval") || command.starts_with("script")).then_some(calls)
    });
    calls.sum()
}
