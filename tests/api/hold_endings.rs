//! Goal: a hold reports that its lock is lost before the lease can have ended, and releases the
//! lock when the service ends.
//!
//! Method: streams while Redis is paused, refuses commands or hangs, while the process gets
//! SIGTERM, and while the connection is cut.

use keylatch_testkit::{
    Api, EventStream, RedisServer, Service, eventually, redis_test, refusal_of,
};
use reqwest::{Client, Method, RequestBuilder};
use serde_json::{Value, json};

use crate::KEYLATCH;

#[redis_test]
async fn unreachable_store_is_reported_before_the_lease_ends() {
    let (redis, service) = Service::on_redis().await;
    for pause in [true, false] {
        let mut events = hold(&service, &json!({"ttl_ms": 4000})).await;
        events.next("acquired").await;
        let lost = if pause {
            redis.pause();
            let lost = events.after_renewals("lost").await;
            redis.resume();
            lost
        } else {
            refuse(&redis).await;
            // A Redis that answers knows whether the lease has ended.
            let expired = eventually(async || {
                let locks: Vec<String> = redis.run(&["KEYS", "*:lock:*"]).await;
                locks.is_empty().then_some(())
            });
            let lost = tokio::select! {
                biased;
                lost = events.after_renewals("lost") => lost,
                () = expired => panic!("the lease ended before the stream said that it is lost"),
            };
            allow(&redis).await;
            lost
        };
        assert_eq!(lost.data["reason"], "store-unavailable", "{lost:?}");
        events.ended().await;
        service.is_free("deploy").await;
    }
}

#[redis_test]
async fn single_failed_renewal_does_not_lose_the_lock() {
    let (redis, service) = Service::on_redis().await;
    let mut events = hold(&service, &json!({"ttl_ms": 9000})).await;
    events.next("acquired").await;
    for _ in 0..2 {
        refuse(&redis).await;
        let failed = async || {
            let metrics = service.get("/metrics").await.text;
            metrics.contains("operation=\"renew\",outcome=\"error\"").then_some(())
        };
        eventually(failed).await;
        allow(&redis).await;
        events.next("renewed").await;
    }
}

#[redis_test]
async fn sigterm_reports_loss_and_releases_the_lock() {
    let redis = RedisServer::start().await;
    let other = Service::start(&redis.url()).await;
    // If the end waited for the streams, it would be above every limit of a test.
    let drain = ("KEYLATCH_SERVER_DRAIN_TIMEOUT_MS", "600000");
    let process = KEYLATCH.serve(&["--store", &redis.url()], &[drain]).await;
    let mut events = hold(&Api::at(process.address), &json!({"ttl_ms": 60_000})).await;
    let fencing_token = events.next("acquired").await.fencing_token();
    let mut waiting = hold(&Api::at(process.address), &json!({"wait_ms": 60_000})).await;
    waiting.next("waiting").await;
    process.signal("-TERM");
    let refused = waiting.next("refused").await;
    assert_eq!(refused.data["code"], "overloaded", "{refused:?}");
    let lost = events.next("lost").await;
    assert_eq!(lost.data["reason"], "shutdown", "{lost:?}");
    events.ended().await;
    assert_eq!(process.ended().await.code, Some(0));
    let next = other.create("deploy", &json!({})).await;
    assert!(next.status == 201 && next.fencing_token() > fencing_token, "{next:?}");
}

#[redis_test]
async fn hanging_redis_does_not_delay_shutdown_of_a_hold() {
    let redis = RedisServer::start().await;
    let process = KEYLATCH.serve(&["--store", &redis.url()], &[]).await;
    let mut events = hold(&Api::at(process.address), &json!({"ttl_ms": 60_000})).await;
    events.next("acquired").await;
    redis.pause();
    process.signal("-TERM");
    assert_eq!(events.next("lost").await.data["reason"], "shutdown");
    events.ended().await;
    assert_eq!(process.ended().await.code, Some(0));
}

#[redis_test]
async fn failed_release_ends_stream_and_is_retried() {
    let (redis, service) = Service::on_redis().await;
    let body = json!({"ttl_ms": 60_000, "max_hold_ms": 300});
    let mut events = hold(&service, &body).await;
    let fencing_token = events.next("acquired").await.fencing_token();
    refuse(&redis).await;
    assert_eq!(events.next("lost").await.data["reason"], "max-hold");
    events.ended().await;
    allow(&redis).await;
    let free = async || {
        let next = service.create("deploy", &json!({})).await;
        (next.status == 201).then(|| next.fencing_token())
    };
    assert!(eventually(free).await > fencing_token);
}

#[redis_test]
async fn unreachable_store_is_refused_before_the_stream() {
    let (mut redis, service) = Service::on_redis().await;
    redis.kill().await;
    let answer = refusal_of(request(&service, &json!({}))).await;
    answer.is_problem(503, "store-unavailable");
}

#[tokio::test]
async fn cut_connection_releases_the_lock() {
    let (service, proxy) = Service::behind_proxy().await;
    for round in 0..100 {
        let url = format!("{}/v1/locks/deploy/hold", proxy.http_url());
        let client = Client::builder().no_proxy().build().expect("a client");
        let mut events = EventStream::of(client.post(url).json(&json!({"wait_ms": 60_000}))).await;
        let held = events.read().await.expect("an event");
        assert!(held.name == "acquired" || held.name == "waiting", "{round}: {held:?}");
        proxy.refuse();
        drop(events);
        proxy.forward();
    }
    service.is_free("deploy").await;
}

/// Has Redis answer every script with an error.
async fn refuse(redis: &RedisServer) {
    let () = redis.run(&["ACL", "SETUSER", "default", "-evalsha", "-eval"]).await;
}

async fn allow(redis: &RedisServer) {
    let () = redis.run(&["ACL", "SETUSER", "default", "+@all"]).await;
}

fn request(service: &Api, body: &Value) -> RequestBuilder {
    service.request(Method::POST, "/v1/locks/deploy/hold").json(body)
}

async fn hold(service: &Api, body: &Value) -> EventStream {
    EventStream::of(request(service, body)).await
}
