//! Goal: each grant of a lock has a higher fencing token than the one before, also after Redis or
//! the service has lost everything.
//!
//! Method: grants before and after each kind of loss, on one Redis.

use keylatch_core::lock::{FencingToken, LockName};
use keylatch_testkit::{RedisServer, Service, redis_test};
use serde_json::json;

#[redis_test]
async fn fencing_tokens_rise_after_flushall() {
    let (redis, service) = Service::on_redis().await;
    let before = fencing_token(&service).await;
    let () = redis.run(&["FLUSHALL"]).await;
    assert!(fencing_token(&service).await > before);
}

#[redis_test]
async fn fencing_tokens_rise_after_redis_loses_its_data() {
    let (mut redis, service) = Service::on_redis().await;
    let before = fencing_token(&service).await;
    redis.kill().await;
    redis.restart().await;
    let after = Service::start(&redis.url()).await;
    assert!(fencing_token(&after).await > before);
}

#[redis_test]
async fn fencing_tokens_rise_after_a_restart_of_the_service() {
    let redis = RedisServer::start().await;
    for url in ["memory:".to_owned(), redis.url()] {
        let before = fencing_token(&Service::start(&url).await).await;
        let () = redis.run(&["FLUSHALL"]).await;
        assert!(fencing_token(&Service::start(&url).await).await > before, "{url}");
    }
}

#[redis_test]
async fn fencing_tokens_follow_a_counter_ahead_of_the_clock() {
    let (redis, service) = Service::on_redis().await;
    // The largest that JavaScript reads exactly is 2^53 - 1; near it no digit may get lost.
    let ahead = (1_u64 << 53) - 10;
    let bucket = LockName::parse("deploy").unwrap().bucket();
    let counter = format!("keylatch:{{{bucket:02x}}}:fence");
    let () = redis.run(&["SET", &counter, &ahead.to_string()]).await;
    for expected in ahead + 1..ahead + 5 {
        assert_eq!(fencing_token(&service).await, expected);
    }
    assert_eq!(redis.run::<String>(&["GET", &counter]).await, (ahead + 4).to_string());
}

#[redis_test]
async fn used_names_leave_only_the_counters_in_redis() {
    let (redis, service) = Service::on_redis().await;
    // A thousand stand for a million: the counters are as many as the buckets, at most.
    for number in 0..1000 {
        let name = format!("once-{number}");
        let lease = service.create(&name, &json!({})).await;
        assert_eq!(service.release(&name, &lease.token()).await.status, 204);
    }
    let keys: Vec<String> = redis.run(&["KEYS", "*"]).await;
    assert!(keys.len() <= LockName::BUCKETS, "{} keys", keys.len());
    assert!(keys.iter().all(|key| key.ends_with(":fence")), "{keys:?}");
}

#[test]
fn fencing_token_is_above_the_last_and_not_below_the_time() {
    let next = |last, micros| FencingToken::new(last).next(micros).get();
    assert_eq!([next(0, 7), next(7, 7), next(9, 7), next(6, 7)], [7, 8, 10, 7]);
}

/// Takes the lock, gives it back if it was given, and says which fencing token it came with.
async fn fencing_token(service: &Service) -> u64 {
    let lease = service.create("deploy", &json!({})).await;
    assert_eq!(lease.status, 201, "{lease:?}");
    assert_eq!(service.release("deploy", &lease.token()).await.status, 204);
    lease.fencing_token()
}
