//! Goal: a client that leaves, an upload that breaks off and a store that fails around a run
//! neither run it twice nor lose its response.
//!
//! Method: a guarded upstream that counts its runs, and a proxy that loses what goes to the store.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use keylatch::http::OnStoreDown;
use keylatch_testkit::{
    Answer, Api, Proxy, RawConnection, RedisServer, Shop, TestStore, Upstream, created, eventually,
    guard_orders, redis_test, scaled, soon, store_test,
};
use serde_json::json;

#[store_test(memory)]
async fn run_finishes_after_its_client_leaves(shop: &Shop) {
    let leaving = shop.upstream.holding(shop.order("k-1")).await;
    leaving.abort();
    shop.has_in_hand(0).await;
    shop.buy("k-1").await.is_refusal(409, "request-in-progress", "same-key");
    shop.upstream.resume();
    let repeat = shop.until_done("k-1");
    repeat.await.is_replay_of(1);
    assert_eq!(shop.upstream.runs(), 1);
}

#[store_test(memory)]
async fn aborted_upload_leaves_no_record(shop: &Shop) {
    let head = "POST /orders HTTP/1.1\r\nHost: localhost\r\nIdempotency-Key: k-1\r\n";
    for half in ["Content-Length: 100\r\n\r\n{", "Transfer-Encoding: chunked\r\n\r\n5\r\n{\"a\":"] {
        let upload = RawConnection::sending(shop.address, &format!("{head}{half}")).await;
        shop.has_in_hand(1).await;
        drop(upload);
        shop.has_in_hand(0).await;
        assert!(shop.record("k-1").await.is_null());
    }
    assert_eq!(shop.upstream.runs(), 0);
    shop.buy("k-1").await.is_run(1);
}

#[store_test(memory)]
async fn oversized_or_slow_upload_leaves_no_record(store: &TestStore) {
    let shop = Shop::open_with(store.url(), |guard| {
        guard.body_limit_bytes = 1000;
        guard.body_timeout_ms = 200;
    })
    .await;
    let head = "POST /orders HTTP/1.1\r\nHost: localhost\r\nIdempotency-Key: k-1\r\n";
    let large = format!("Transfer-Encoding: chunked\r\n\r\n3e9\r\n{}\r\n", "x".repeat(1001));
    for (rest, status, code, retry) in [
        ("Content-Length: 1001\r\n\r\n", 413, "payload-too-large", "never"),
        (&large, 413, "payload-too-large", "never"),
        ("Content-Length: 1000\r\n\r\n{", 408, "request-timeout", "same-key"),
    ] {
        let mut upload = RawConnection::sending(shop.address, &format!("{head}{rest}")).await;
        upload.answer().await.is_refusal(status, code, retry);
        assert!(shop.record("k-1").await.is_null());
    }
    assert_eq!(shop.upstream.runs(), 0);
    let largest = shop.order("k-1").body("x".repeat(1000));
    Answer::of(largest).await.is_run(1);
}

#[store_test(service)]
async fn run_longer_than_its_lease_runs_once(store: &TestStore) {
    let shop = Shop::open_with(store.url(), |guard| guard.lease_ms = 5000).await;
    shop.upstream.hold();
    let (begun, first) = (Instant::now(), tokio::spawn(Answer::of(shop.order("k-1"))));
    shop.upstream.begun(1).await;
    eventually(async || {
        shop.buy("k-1").await.is_refusal(409, "request-in-progress", "same-key");
        (begun.elapsed() > Duration::from_secs(6)).then_some(())
    })
    .await;
    assert_eq!(shop.record("k-1").await["attempts"], 1);
    shop.upstream.resume();
    first.await.expect("an answer").is_run(1);
    shop.buy("k-1").await.is_replay_of(1);
    assert_eq!(shop.upstream.runs(), 1);
}

#[redis_test]
async fn unreachable_store_prevents_the_run() {
    let mut redis = RedisServer::start().await;
    let shop = Shop::open(&redis.url()).await;
    shop.buy("k-1").await.is_run(1);
    redis.kill().await;
    for key in ["k-1", "k-2"] {
        let down = shop.buy(key).await;
        down.is_refusal(503, "store-unavailable", "same-key");
        assert_eq!(down.json["outcome"], "not-executed");
        assert_eq!(down.header("retry-after"), "1");
    }
    redis.restart().await;
    unless_refused(&shop, "k-2").await.is_run(2);
    assert_eq!(shop.upstream.runs(), 2);
}

/// The operator has said that a payment twice is better than none.
#[redis_test]
async fn unreachable_store_lets_requests_pass_where_the_guard_says_so() {
    let mut redis = RedisServer::start().await;
    let shop = Shop::open_with(&redis.url(), |guard| guard.on_store_down = OnStoreDown::Pass).await;
    shop.buy("k-1").await.is_run(1);
    redis.kill().await;
    // A command that was on its way may have been carried out, so its request is refused.
    let passed = async || Some(shop.buy("k-1").await).filter(|answer| answer.status != 503);
    let passed = eventually(passed).await;
    passed.is_run(2);
    assert_eq!(passed.header("idempotency-key-source"), "none", "{passed:?}");
    assert_eq!(passed.header("idempotency-key-expires"), "", "{passed:?}");
    let seen = shop.upstream.last();
    assert_eq!(seen.headers["idempotency-key"], "k-1");
    assert!(!seen.headers.contains_key("idempotency-fence") && !seen.body.is_empty(), "{seen:?}");
    shop.buy("k-1").await.is_run(3);
    assert_eq!(shop.metric("keylatch_idempotency_unguarded_total").await, 2);
    redis.restart().await;
    eventually(async || {
        Some(shop.buy("k-2").await)
            .filter(|answer| !answer.header("idempotency-key-expires").is_empty())
    })
    .await;
}

/// What goes wrong between the service and its store, in words, and how.
type Fault = (&'static str, fn(&Proxy));

const FAULTS: [Fault; 3] = [
    ("cut off", Proxy::refuse),
    ("answers are lost", Proxy::lose_answers),
    ("it is silent", Proxy::stall),
];

#[redis_test]
async fn unheard_begin_runs_nothing_and_frees_the_key() {
    for (what, fail) in &FAULTS[1..] {
        let (redis, upstream) = (RedisServer::start().await, Upstream::start().await);
        let proxy = Proxy::start(redis.address()).await;
        let service = guard_orders(&proxy.url(), &upstream.url(), |_| {}).await;
        service.buy("k-1").await.is_run(1);
        fail(&proxy);
        let lost = service.buy("k-2").await;
        lost.is_refusal(503, "store-unavailable", "same-key");
        assert_eq!((&lost.json["outcome"], upstream.runs()), (&json!("not-executed"), 1), "{what}");
        proxy.forward();
        unless_refused(&service, "k-2").await.is_run(2);
        service.buy("k-2").await.is_replay_of(2);
    }
}

#[redis_test]
async fn response_is_stored_once_the_store_is_back() {
    for (what, fail) in FAULTS {
        let (redis, upstream) = (RedisServer::start().await, Upstream::start().await);
        let proxy = Proxy::start(redis.address()).await;
        let one = guard_orders(&proxy.url(), &upstream.url(), |_| {}).await;
        let two = guard_orders(&redis.url(), &upstream.url(), |_| {}).await;
        one.buy("k-1").await.is_run(1);
        let first = upstream.holding(one.order("k-2")).await;
        fail(&proxy);
        upstream.resume();
        soon(what, first).await.expect("an answer").is_run(2);
        if what == "answers are lost" {
            // It was carried out all the same.
            unless_refused(&two, "k-2").await.is_replay_of(2);
        } else {
            two.buy("k-2").await.is_refusal(409, "request-in-progress", "same-key");
        }
        proxy.forward();
        for service in [&two, &one] {
            unless_refused(service, "k-2").await.is_replay_of(2);
        }
        assert_eq!(upstream.runs(), 2, "{what}");
    }
}

#[redis_test]
async fn response_is_stored_after_redis_restarts() {
    let mut redis =
        RedisServer::start_with(&["--appendonly", "yes", "--appendfsync", "always"]).await;
    let shop = Shop::open(&redis.url()).await;
    let first = shop.upstream.holding(shop.order("k-1")).await;
    redis.kill().await;
    shop.upstream.resume();
    first.await.expect("an answer").is_run(1);
    shop.buy("k-1").await.is_refusal(503, "store-unavailable", "same-key");
    redis.restart().await;
    unless_refused(&shop, "k-1").await.is_replay_of(1);
    assert_eq!(shop.upstream.runs(), 1);
}

#[redis_test]
async fn key_is_freed_once_the_store_is_back() {
    let (redis, upstream) = (RedisServer::start().await, Upstream::start().await);
    let proxy = Proxy::start(redis.address()).await;
    let service = guard_orders(&proxy.url(), &upstream.url(), |_| {}).await;
    upstream.answers(|_| axum::http::StatusCode::TOO_MANY_REQUESTS);
    let first = upstream.holding(service.order("k-1")).await;
    proxy.refuse();
    upstream.resume();
    assert_eq!(first.await.expect("an answer").status, 429);
    upstream.answers(|seen| created(seen.run));
    proxy.forward();
    unless_refused(&service, "k-1").await.is_run(2);
}

/// Fifty equal requests at once over three instances, again and again.
#[redis_test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_requests_at_three_instances_run_once() {
    let rounds = usize::try_from(scaled(20)).expect("a number of rounds");
    let (redis, upstream) = (RedisServer::start().await, Upstream::start().await);
    let start = async || guard_orders(&redis.url(), &upstream.url(), |_| {}).await;
    let services = [start().await, start().await, start().await];
    for round in 1..=rounds {
        let key = format!("k-{round}");
        let orders = (0..50).map(|number| {
            let prefer = if number % 5 == 0 { "wait=20" } else { "" };
            Answer::of(services[number % 3].order(&key).header("Prefer", prefer))
        });
        let mut first_runs = 0;
        for answer in join_all(orders).await {
            if answer.status == 409 {
                answer.is_refusal(409, "request-in-progress", "same-key");
                continue;
            }
            assert_eq!((answer.status.as_u16(), &answer.json), (201, &json!({"run": round})));
            first_runs += usize::from(answer.header("idempotent-replayed").is_empty());
        }
        assert_eq!((first_runs, upstream.runs()), (1, round), "round {round}");
        for service in &services {
            service.buy(&key).await.is_replay_of(round);
        }
    }
}

/// The answer to a request once it is neither in progress nor refused for want of the store.
async fn unless_refused(api: &Api, key: &str) -> Answer {
    eventually(async || {
        let answer = api.buy(key).await;
        if answer.status == 409 {
            answer.is_refusal(409, "request-in-progress", "same-key");
        }
        (![409, 503].contains(&answer.status.as_u16())).then_some(answer)
    })
    .await
}
