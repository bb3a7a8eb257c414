//! Goal: a store that is slow, gone, full or damaged costs availability and never exclusion, and
//! the answer says whether the request was executed.
//!
//! Method: a Redis that is stopped, paused, full and written to by others, and a proxy that loses
//! answers.

use std::time::{Duration, Instant};

use keylatch::config::Config;
use keylatch_testkit::{Answer, Proxy, RedisServer, Service, config, eventually};
use reqwest::Method;
use serde_json::json;

const TOKEN: &str = "a-token-of-the-clients-own";

#[tokio::test]
async fn client_that_leaves_during_acquire_leaves_no_lock() {
    let (redis, service) = Service::on_redis().await;
    for token in [None, Some(TOKEN)] {
        redis.pause();
        let mut request =
            service.request(Method::POST, "/v1/locks/deploy").timeout(Duration::from_millis(200));
        if let Some(token) = token {
            request = request.header("Lock-Token", token);
        }
        assert!(request.send().await.is_err_and(|error| error.is_timeout()));
        redis.resume();
        // Redis first runs the acquire that was in its socket, and then its withdrawal.
        let fencing_token =
            eventually(async || redis.run::<Option<u64>>(&["GET", &fence_key("deploy")]).await)
                .await;
        service.is_free("deploy").await;
        let next = service.create("deploy", &json!({})).await;
        assert_eq!(next.status, 201, "{next:?}");
        assert!(next.fencing_token() > fencing_token);
        assert_eq!(service.release("deploy", &next.token()).await.status, 204);
        let () = redis.run(&["DEL", &fence_key("deploy")]).await;
    }
}

#[tokio::test]
async fn repeat_keeps_the_grant_of_a_client_that_left() {
    let (redis, service) = Service::on_redis().await;
    redis.pause();
    let leaving = service.request(Method::POST, "/v1/locks/deploy").header("Lock-Token", TOKEN);
    assert!(leaving.timeout(Duration::from_millis(200)).send().await.is_err());
    // The repeat is on its way before Redis resumes, so the grant of the first one must stay.
    let body = json!({});
    let repeat = service.create_as("deploy", TOKEN, &body);
    let ((), repeat) = tokio::join!(async { redis.resume() }, repeat);
    assert!([200, 201].contains(&repeat.status.as_u16()), "{repeat:?}");
    let renewed = service.renew("deploy", TOKEN, &json!({})).await;
    assert_eq!((renewed.status.as_u16(), renewed.fencing_token()), (200, repeat.fencing_token()));
}

#[tokio::test]
async fn lost_store_reply_is_unknown_and_repeat_is_safe() {
    let (redis, proxy, service) = Service::by_proxy_to_redis().await;
    load_scripts(&service).await;
    proxy.lose_answers();
    let lost = service.create_as("deploy", TOKEN, &json!({})).await;
    lost.is_problem(503, "store-unavailable");
    assert_eq!(lost.json["outcome"], "unknown");
    assert_eq!(lost.header("retry-after"), "1");
    assert!(redis.run::<Option<u64>>(&["GET", &fence_key("deploy")]).await.is_some(), "it ran");
    proxy.forward();
    let repeat = eventually(async || {
        let repeat = service.create_as("deploy", TOKEN, &json!({})).await;
        (repeat.status != 503).then_some(repeat)
    })
    .await;
    assert!([200, 201].contains(&repeat.status.as_u16()), "{repeat:?}");
    assert_eq!(service.release("deploy", TOKEN).await.status, 204);
}

#[tokio::test]
async fn lost_reply_to_renew_or_release_is_an_unknown_outcome() {
    let (_redis, proxy, service) = Service::by_proxy_to_redis().await;
    load_scripts(&service).await;
    assert_eq!(service.create_as("deploy", TOKEN, &json!({})).await.status, 201);
    for method in [Method::PUT, Method::DELETE, Method::GET] {
        proxy.lose_answers();
        let request =
            service.request(method.clone(), "/v1/locks/deploy").header("Lock-Token", TOKEN);
        let lost = Answer::of(request).await;
        lost.is_problem(503, "store-unavailable");
        // A look changes nothing, so nothing was executed.
        let expected = if method == Method::GET { "not-executed" } else { "unknown" };
        assert_eq!(lost.json["outcome"], expected, "{method}");
        proxy.forward();
        eventually(async || (service.get("/readyz").await.status == 200).then_some(())).await;
        // What the service has seen of the lock it changes without a look.
        service.look("deploy").await;
    }
    // The release was carried out although its answer was lost; the repeat says so.
    service.release("deploy", TOKEN).await.is_problem(404, "lock-not-held");
}

#[tokio::test]
async fn unreported_grant_is_withdrawn() {
    let (_redis, proxy, service) = Service::by_proxy_to_redis().await;
    load_scripts(&service).await;
    proxy.lose_answers();
    // The service made the token, so no client can ever repeat this request.
    service.create("deploy", &json!({})).await.is_problem(503, "store-unavailable");
    proxy.forward();
    service.is_free("deploy").await;
}

#[tokio::test]
async fn restarted_redis_is_used_again() {
    let mut redis = RedisServer::start().await;
    let service = Service::by_default(&redis.url()).await;
    for round in 0..3 {
        let name = format!("deploy-{round}");
        let lease = service.create(&name, &json!({})).await;
        assert_eq!(lease.status, 201, "{lease:?}");
        redis.kill().await;
        let down = service.create("other", &json!({})).await;
        down.is_problem(503, "store-unavailable");
        service.get("/readyz").await.is_problem(503, "store-unavailable");
        assert_eq!(service.get("/livez").await.status, 200);
        redis.restart().await;
        service.granted(&name).await;
        assert_eq!(service.get("/readyz").await.status, 200);
    }
}

#[tokio::test]
async fn redis_down_at_start_is_used_once_up() {
    let mut redis = RedisServer::start().await;
    redis.kill().await;
    let service = Service::start(&redis.url()).await;
    let down = service.create("deploy", &json!({})).await;
    down.is_problem(503, "store-unavailable");
    assert_eq!(down.json["outcome"], "not-executed");
    redis.restart().await;
    service.granted("deploy").await;
}

#[tokio::test]
async fn paused_redis_is_an_unknown_outcome() {
    let redis = RedisServer::start().await;
    let mut config = config(&redis.url());
    config.store_timeout_ms = 3000;
    let service = Service::start_with(config).await;
    let lease = service.create("held", &json!({})).await;
    redis.pause();
    let unknown = service.create("deploy", &json!({})).await;
    unknown.is_problem(503, "store-unavailable");
    assert_eq!(unknown.json["outcome"], "unknown");
    service.renew("held", &lease.token(), &json!({})).await.is_problem(503, "store-unavailable");
    service.get("/readyz").await.is_problem(503, "store-unavailable");
    redis.resume();
    service.granted("deploy").await;
    assert_eq!(service.renew("held", &lease.token(), &json!({})).await.status, 200);
}

#[tokio::test]
async fn grant_after_its_lease_is_withdrawn() {
    let (redis, service) = Service::on_redis().await;
    eventually(async || (service.get("/readyz").await.status == 200).then_some(())).await;
    redis.pause();
    let (paused, body) = (Instant::now(), json!({"ttl_ms": 100}));
    let over = async || (paused.elapsed() > Duration::from_millis(200)).then(|| redis.resume());
    let (slow, ()) = tokio::join!(service.create("deploy", &body), eventually(over));
    slow.is_problem(503, "store-too-slow");
    service.is_free("deploy").await;
}

#[tokio::test]
async fn full_redis_refuses_and_changes_nothing() {
    let redis = RedisServer::start_with(&["--maxmemory-policy", "noeviction"]).await;
    let service = Service::start(&redis.url()).await;
    let lease = service.create("held", &json!({})).await;
    let () = redis.run(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let full = service.create("deploy", &json!({})).await;
    full.is_problem(503, "store-unavailable");
    assert_eq!(full.json["outcome"], "not-executed");
    // Giving back needs no memory.
    assert_eq!(service.release("held", &lease.token()).await.status, 204);
    let () = redis.run(&["CONFIG", "SET", "maxmemory", "0"]).await;
    assert_eq!(service.create("deploy", &json!({})).await.status, 201);
}

#[tokio::test]
async fn redis_demoted_to_replica_is_left() {
    let (master, redis) = (RedisServer::start().await, RedisServer::start().await);
    let service = Service::start(&redis.url()).await;
    assert_eq!(service.create("before", &json!({})).await.status, 201);
    let address = master.address();
    let (host, port) = address.split_once(':').expect("host and port");
    let () = redis.run(&["REPLICAOF", host, port]).await;
    let refused = service.create("deploy", &json!({})).await;
    refused.is_problem(503, "store-unavailable");
    assert_eq!(refused.json["outcome"], "not-executed");
    eventually(async || (service.get("/readyz").await.status == 503).then_some(())).await;
    let () = redis.run(&["REPLICAOF", "NO", "ONE"]).await;
    service.granted("deploy").await;
}

#[tokio::test]
async fn unreadable_lock_does_not_hide_others_in_a_listing() {
    let (redis, service) = Service::on_redis().await;
    assert_eq!(service.create("deploy", &json!({})).await.status, 201);
    let key = fence_key("broken").replace("fence", "lock:broken");
    let () = redis.run(&["HSET", &key, "token", "x", "fence", "not a number"]).await;
    let listed = service.get("/v1/locks").await;
    assert_eq!(listed.status, 200, "{listed:?}");
    assert_eq!(listed.json["locks"].as_array().map(Vec::len), Some(1), "{listed:?}");
    assert_eq!(listed.json["locks"][0]["name"], "deploy");
}

/// What Redis was asked before it stood still is answered when it serves again, and tells the
/// service of a clock that may be seconds ahead by then.
#[tokio::test]
async fn refusal_is_told_at_once_after_redis_stood_still() {
    let redis = RedisServer::start().await;
    let proxy = Proxy::start(redis.address()).await;
    // Two of its requests are over before a call of the store is.
    let config = Config { store_timeout_ms: 2000, ..config(&proxy.url()) };
    let (service, other) = (Service::start_with(config).await, Service::start(&redis.url()).await);
    load_scripts(&service).await;
    // Long enough for the service to look for another reading of the clock.
    assert_eq!(other.create("busy", &json!({})).await.status, 201);
    other.create("busy", &json!({"wait_ms": 1500})).await.is_problem(409, "lock-held");
    proxy.stall();
    for name in ["one", "two"] {
        service.create(name, &json!({})).await.is_problem(503, "store-unavailable");
    }
    proxy.forward();
    let lease = other.create("deploy", &json!({"ttl_ms": 3000})).await;
    assert_eq!(lease.status, 201, "{lease:?}");
    let refused = eventually(async || {
        let refused = service.create("deploy", &json!({})).await;
        (refused.status != 503).then_some(refused)
    })
    .await;
    refused.is_problem(409, "lock-held");
}

#[tokio::test]
async fn removed_expiry_prolongs_no_lease() {
    let (redis, service) = Service::on_redis().await;
    let lease = service.create("deploy", &json!({"ttl_ms": 60_000})).await;
    let keys: Vec<String> = redis.run(&["KEYS", "*}:lock:*"]).await;
    let [key] = &keys[..] else { panic!("one lock: {keys:?}") };
    assert_eq!(redis.run::<u64>(&["PERSIST", key]).await, 1);
    let refused = service.create("deploy", &json!({})).await;
    refused.is_problem(409, "lock-held");
    redis.advance(Duration::from_secs(61));
    service.look("deploy").await.is_problem(404, "lock-not-held");
    let next = service.create("deploy", &json!({})).await;
    assert_eq!(next.status, 201, "{next:?}");
    assert!(next.fencing_token() > lease.fencing_token());
    let left: i64 = redis.run(&["PTTL", key]).await;
    assert!(left > 0, "the next one has no end either: {left}");
}

/// Uses each script once, so that the next use is carried out at once.
async fn load_scripts(service: &Service) {
    let lease = service.create("first", &json!({})).await;
    assert_eq!(service.look("first").await.status, 200);
    assert_eq!(service.renew("first", &lease.token(), &json!({})).await.status, 200);
    assert_eq!(service.release("first", &lease.token()).await.status, 204);
}

/// The key of the counter that gives a lock its fencing tokens.
fn fence_key(name: &str) -> String {
    let bucket = keylatch_core::lock::LockName::parse(name).unwrap().bucket();
    format!("keylatch:{{{bucket:02x}}}:fence")
}
