//! Goal: the queue in Redis leaves nothing behind, needs one connection, and serves every waiter
//! although Redis loses messages, forgets, is full or forbids to publish.
//!
//! Method: one real Redis, which the test restarts, flushes, fills and cuts.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::join_all;
use keylatch_testkit::{Acquire, Answer, RedisServer, Service, config, eventually, soon};
use reqwest::Method;
use serde_json::json;
use tokio::task::JoinSet;

use crate::lock_conformance::{ask, granted, held, name, token, ttl, withdraw};
use crate::redis_records::{on_redis, open};

const PLACE: Duration = Duration::from_secs(120);

#[tokio::test]
async fn queue_expires_with_its_last_entry() {
    let (redis, store) = on_redis().await;
    granted(store.acquire(&ask("a", "one", 1)).await.unwrap());
    for (attempt, seconds) in [(2, 30), (3, 300), (4, 60)] {
        let span = Duration::from_secs(seconds);
        let ask = Acquire { queue: Some(span), ..ask("a", &format!("waiter {attempt}"), attempt) };
        held(store.acquire(&ask).await.unwrap());
    }
    let keys = keys(&redis).await;
    assert_eq!(keys.len(), 2, "{keys:?}");
    let key = keys.iter().find(|key| key.contains(":lock:")).expect("the lock with its queue");
    let left: i64 = redis.run(&["PTTL", key]).await;
    assert!((295_000..=316_000).contains(&left), "{key} expires in {left} ms");
    redis.advance(Duration::from_secs(316));
    only_the_counter_is_left(&redis).await;
}

#[tokio::test]
async fn empty_queue_leaves_no_key() {
    let (redis, store) = on_redis().await;
    for served in [true, false] {
        granted(store.acquire(&ask("a", "one", 1)).await.unwrap());
        held(store.acquire(&place("a", "two", 2)).await.unwrap());
        store.release(&name("a"), &token("one")).await.unwrap();
        if served {
            granted(store.acquire(&place("a", "two", 3)).await.unwrap());
            store.release(&name("a"), &token("two")).await.unwrap();
        } else {
            withdraw(&store, "a", "two", 2).await;
            // What it undoes may still be on its way, and finds the row of the withdrawal until
            // then.
            redis.advance(Duration::from_secs(5));
        }
        only_the_counter_is_left(&redis).await;
    }
}

#[tokio::test]
async fn many_waiters_share_one_connection_and_one_is_woken() {
    let (redis, store) = on_redis().await;
    // Neither the lease nor a place ends while the waiters come, however slowly.
    let lasts = Duration::from_secs(3600);
    granted(store.acquire(&Acquire { ttl: ttl(lasts), ..ask("a", "one", 1) }).await.unwrap());
    // Those of the pool, the subscription, and the connection of the test.
    let settled = async || (connections(&redis).await == 4).then_some(());
    eventually(settled).await;
    let waiter = |number| ask("a", &format!("waiter {number}"), number);
    let waiters: Vec<_> =
        (0..2000).map(|number| Acquire { queue: Some(lasts), ..waiter(number) }).collect();
    held(store.acquire(&waiters[0]).await.unwrap());
    let turns: Vec<_> =
        waiters.iter().map(|waiter| store.wakeup(&waiter.name, &waiter.token)).collect();
    join_all(waiters.iter().map(|waiter| async { held(store.acquire(waiter).await.unwrap()) }))
        .await;
    assert_eq!(store.look(&name("a")).await.unwrap().expect("it is held").first.waiting, 2000);
    assert_eq!(connections(&redis).await, 4);

    let (last, mut turns) = (store.wakeup(&name("b"), &token("two")), turns.into_iter());
    store.release(&name("a"), &token("one")).await.unwrap();
    soon("the turn of the first", turns.next().expect("the first")).await;
    // A message of a later command comes after all messages of the release.
    granted(store.acquire(&ask("b", "one", 1)).await.unwrap());
    held(store.acquire(&place("b", "two", 2)).await.unwrap());
    store.release(&name("b"), &token("one")).await.unwrap();
    soon("a turn at another lock", last).await;
    assert_eq!(turns.filter_map(|turn| turn.now_or_never()).count(), 0, "called out of turn");
}

#[tokio::test]
async fn subscription_ends_with_its_store() {
    let (redis, store) = on_redis().await;
    eventually(async || (subscribers(&redis).await == 1).then_some(())).await;
    drop(store);
    eventually(async || (subscribers(&redis).await == 0).then_some(())).await;
}

#[tokio::test]
async fn waiters_look_again_after_a_lost_subscription() {
    let (redis, store) = on_redis().await;
    for _ in 0..3 {
        eventually(async || (subscribers(&redis).await == 1).then_some(())).await;
        let turns = ["one", "two"].map(|holder| store.wakeup(&name("a"), &token(holder)));
        let killed: u64 = redis.run(&["CLIENT", "KILL", "TYPE", "pubsub"]).await;
        assert_eq!(killed, 1);
        soon("the turn of every waiter", join_all(turns)).await;
    }
}

#[tokio::test]
async fn redis_down_at_start_is_subscribed_once_up() {
    let mut redis = RedisServer::start().await;
    redis.kill().await;
    let store = open(&redis.url()).await;
    let turn = store.wakeup(&name("a"), &token("one"));
    redis.restart().await;
    soon("the first subscription", turn).await;
    eventually(async || (subscribers(&redis).await == 1).then_some(())).await;
}

#[tokio::test]
async fn evicted_lock_is_granted_above_its_fencing_token() {
    let (redis, store) = on_redis().await;
    let mut last = granted(store.acquire(&ask("a", "one", 1)).await.unwrap()).fencing_token;
    for attempt in 2..5 {
        evict(&redis).await;
        // Neither this process's memory of its own grants nor the clock is what tokens rise by.
        let store = open(&redis.url()).await;
        redis.set_back(Duration::from_secs(3600));
        let next = granted(store.acquire(&ask("a", "two", attempt)).await.unwrap()).fencing_token;
        assert!(next > last, "{next} after {last}");
        last = next;
    }
}

#[tokio::test]
async fn many_expired_entries_are_forgotten() {
    let (redis, store) = on_redis().await;
    let long = Acquire { ttl: ttl(PLACE * 4), ..ask("a", "one", 0) };
    granted(store.acquire(&long).await.unwrap());
    let gone: Vec<_> =
        (1..=2500).map(|number| place("a", &format!("who is gone {number}"), number)).collect();
    join_all(gone.iter().map(|ask| async { held(store.acquire(ask).await.unwrap()) })).await;
    redis.advance(PLACE / 2);
    held(store.acquire(&place("a", "two", 9000)).await.unwrap());
    redis.advance(PLACE * 2 / 3);
    // Whatever the next step is, it finds the line as if they had not been there.
    let seen = held(store.acquire(&place("a", "three", 9001)).await.unwrap());
    assert_eq!(seen.waiting, 2);
}

#[tokio::test]
async fn full_redis_keeps_serving_its_queue() {
    let redis = RedisServer::start_with(&["--maxmemory-policy", "noeviction"]).await;
    let store = open(&redis.url()).await;
    granted(store.acquire(&Acquire { ttl: ttl(PLACE * 2), ..ask("a", "one", 1) }).await.unwrap());
    held(store.acquire(&place("a", "two", 2)).await.unwrap());
    let () = redis.run(&["CONFIG", "SET", "maxmemory", "1"]).await;
    redis.advance(PLACE * 2 / 3);
    held(store.acquire(&place("a", "two", 3)).await.unwrap());
    redis.advance(PLACE * 2 / 3);
    store.acquire(&place("b", "two", 4)).await.expect_err("Redis is full");
    assert_eq!(store.look(&name("a")).await.unwrap().expect("it is held").first.waiting, 1);
    store.release(&name("a"), &token("one")).await.unwrap();
    granted(store.acquire(&place("a", "two", 5)).await.unwrap());
}

#[tokio::test]
async fn user_without_publish_serves_the_queue() {
    let redis = RedisServer::start().await;
    let user = ["ACL", "SETUSER", "silent", "on", ">s3cret", "~*", "+@all", "resetchannels"];
    let () = redis.run(&user).await;
    let service = Service::start(&format!("redis://silent:s3cret@{}", redis.address())).await;
    let first = service.create("a", &json!({})).await;
    let waiter = soon("the waiter", wait(&service, "a", "the-token-of-the-waiter"));
    let release = async {
        service.has_waiting("a", 1).await;
        service.release("a", &first.token()).await
    };
    let (got, released) = tokio::join!(waiter, release);
    assert_eq!((got.status.as_u16(), released.status.as_u16()), (201, 204), "{got:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_are_served_after_redis_loses_its_data() {
    serves_all(async |redis| redis.run(&["FLUSHALL"]).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_are_served_after_script_flush() {
    serves_all(async |redis| redis.run(&["SCRIPT", "FLUSH"]).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_are_served_after_redis_restarts() {
    serves_all(async |redis| {
        redis.kill().await;
        redis.restart().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_are_served_after_subscriptions_are_cut() {
    serves_all(async |redis| {
        let killed: u64 = redis.run(&["CLIENT", "KILL", "TYPE", "pubsub"]).await;
        assert_eq!(killed, 2);
    })
    .await;
}

/// 500 wait at two instances, a thing happens, and each of them gets the lock and gives it back.
async fn serves_all(happens: impl AsyncFnOnce(&mut RedisServer)) {
    const WAITERS: usize = 500;
    // Both ends of each connection are files of this process.
    rlimit::increase_nofile_limit(4096).expect("more open files");
    let mut redis = RedisServer::start().await;
    let services = [patient(&redis).await, patient(&redis).await];
    let services = services.map(Arc::new);
    eventually(async || (subscribers(&redis).await == 2).then_some(())).await;
    let holder = services[0].create("a", &json!({"ttl_ms": 600_000})).await;
    let mut waiters = JoinSet::new();
    for (number, service) in (0..WAITERS).zip(services.iter().cycle()) {
        let service = Arc::clone(service);
        waiters.spawn(async move {
            let token = format!("the-token-of-the-waiter-{number}");
            let got = wait(&service, "a", &token).await;
            // One whose earlier round was granted, and not answered in time, has the lock already.
            assert!([200, 201].contains(&got.status.as_u16()), "{number}: {got:?}");
            let released = service.release("a", &token).await;
            assert_eq!(released.status, 204, "{number}: {released:?}");
        });
    }
    services[1].has_waiting("a", WAITERS).await;
    happens(&mut redis).await;
    // It may be gone, and others may have been served meanwhile.
    eventually(async || {
        let released = services[0].release("a", &holder.token()).await;
        (released.status != 503).then_some(())
    })
    .await;
    while let Some(served) = soon("the next", waiters.join_next()).await {
        served.expect("it is served");
    }
    // A withdrawal leaves its row for as long as what it undoes may be on its way.
    redis.advance(Duration::from_secs(5));
    only_the_counter_is_left(&redis).await;
}

/// A service that a busy machine does not make give up on Redis.
async fn patient(redis: &RedisServer) -> Service {
    let mut config = config(&redis.url());
    config.store_timeout_ms = 60_000;
    Service::start_with(config).await
}

async fn wait(service: &Service, lock: &str, token: &str) -> Answer {
    let request = service.request(Method::POST, &format!("/v1/locks/{lock}"));
    Answer::of(request.header("Lock-Token", token).json(&json!({"wait_ms": 300_000}))).await
}

fn place(lock: &str, holder: &str, attempt: u64) -> Acquire {
    Acquire { queue: Some(PLACE), ..ask(lock, holder, attempt) }
}

/// Does to the lock `a` what a Redis does that evicts keys.
async fn evict(redis: &RedisServer) {
    let key = format!("keylatch:{{{:02x}}}:lock:a", name("a").bucket());
    assert_eq!(redis.run::<u64>(&["DEL", &key]).await, 1, "{key}");
}

async fn keys(redis: &RedisServer) -> Vec<String> {
    redis.run(&["KEYS", "*"]).await
}

async fn only_the_counter_is_left(redis: &RedisServer) {
    let keys = keys(redis).await;
    assert!(keys.len() == 1 && keys[0].ends_with(":fence"), "{keys:?}");
}

/// How many connections Redis has, the one that asks among them.
async fn connections(redis: &RedisServer) -> usize {
    redis.run::<String>(&["CLIENT", "LIST"]).await.lines().count()
}

async fn subscribers(redis: &RedisServer) -> usize {
    redis.run::<String>(&["CLIENT", "LIST", "TYPE", "pubsub"]).await.lines().count()
}
