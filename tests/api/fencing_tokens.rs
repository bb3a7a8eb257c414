//! Goal: each grant of a lock has a higher fencing token than the one before, also after Redis or
//! the service has lost everything.
//!
//! Method: grants before and after each kind of loss, on one Redis.

use keylatch_core::lock::{FencingToken, LockName};
use keylatch_testkit::{RedisServer, Service, redis_test};
use serde_json::json;

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
