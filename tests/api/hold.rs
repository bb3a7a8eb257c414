//! Goal: a connection to `/hold` holds the lock for as long as it is open.
//!
//! Method: streams of server-sent events on each store, and a look at the lock from outside.

use keylatch_testkit::{Api, EventStream, Service, config, refusal_of, soon, store_test};
use reqwest::Method;
use serde_json::{Value, json};

const HOLDS: &str = "keylatch_http_streams{kind=\"hold\"}";
const TOKEN: &str = "a-token-of-the-holder-of-the-lock";

#[store_test(service)]
async fn lock_is_held_while_the_connection_is_open(service: &Service) {
    let mut events = hold(service, &json!({"owner": "the holder"})).await;
    let header = events.response.headers()["lock-token"].clone();
    assert_eq!(events.response.headers()["cache-control"], "no-cache");
    let acquired = events.next("acquired").await;
    assert_eq!(acquired.token(), header);
    let seen = service.look("deploy").await;
    assert_eq!(
        (seen.fencing_token(), &seen.json["owner"]),
        (acquired.fencing_token(), &json!("the holder"))
    );
    let valid = acquired.data["valid_for_ms"].as_u64().unwrap();
    assert!((20_000..30_000).contains(&valid), "{acquired:?}");
    drop(events);
    service.is_free("deploy").await;
}

#[store_test(service)]
async fn held_lease_is_renewed_past_its_ttl(service: &Service) {
    let mut events = hold(service, &json!({"ttl_ms": 6000})).await;
    let fencing_token = events.next("acquired").await.fencing_token();
    let mut age = 0;
    for _ in 0..4 {
        let renewed = events.next("renewed").await;
        let valid = renewed.data["valid_for_ms"].as_u64().unwrap();
        assert!((300..6000).contains(&valid), "{renewed:?}");
        // The validity is counted from the request, so the stream's age is added to it.
        let waited = renewed.data["waited_ms"].as_u64().unwrap();
        assert!(waited >= age + 1200, "{renewed:?}");
        age = waited;
        assert_eq!(renewed.fencing_token(), fencing_token, "{renewed:?}");
        assert_eq!(service.look("deploy").await.fencing_token(), fencing_token);
    }
}

#[store_test(service)]
async fn waiting_hold_sees_its_position_then_acquires(service: &Service) {
    let mut first = hold(service, &json!({})).await;
    let fencing_token = first.next("acquired").await.fencing_token();
    let mut second = hold(service, &json!({"wait_ms": 60_000})).await;
    assert_eq!(second.next("waiting").await.data, json!({"ahead": 0}));
    let mut third = hold(service, &json!({"wait_ms": 60_000})).await;
    assert_eq!(third.next("waiting").await.data, json!({"ahead": 1}));
    drop(first);
    let after = second.next("acquired").await.fencing_token();
    assert_eq!(third.next("waiting").await.data, json!({"ahead": 0}));
    drop(second);
    assert!(fencing_token < after && after < third.next("acquired").await.fencing_token());
}

#[store_test(memory)]
async fn waiting_does_not_extend_validity(service: &Service) {
    let held = service.create("deploy", &json!({"ttl_ms": 2000})).await;
    let mut events = hold(service, &json!({"ttl_ms": 5000, "wait_ms": 60_000})).await;
    events.next("waiting").await;
    let acquired = events.next("acquired").await;
    assert!(acquired.fencing_token() > held.fencing_token());
    assert!(acquired.data["valid_for_ms"].as_u64().unwrap() < 5000, "{acquired:?}");
}

#[store_test(memory)]
async fn wait_timeout_ends_stream_with_a_problem(service: &Service) {
    let held = service.create("deploy", &json!({"owner": "the holder"})).await;
    assert_eq!(held.status, 201, "{held:?}");
    let mut events = hold(service, &json!({"wait_ms": 50})).await;
    events.next("waiting").await;
    let problem = events.next("refused").await.data;
    assert_eq!((&problem["code"], &problem["status"]), (&json!("lock-held"), &json!(409)));
    assert_eq!(problem["holder"]["owner"], "the holder");
    events.ended().await;
}

#[store_test(memory)]
async fn hold_ends_at_max_hold(service: &Service) {
    let mut events = hold(service, &json!({"max_hold_ms": 300})).await;
    let fencing_token = events.next("acquired").await.fencing_token();
    let lost = events.next("lost").await;
    assert_eq!(lost.data["reason"], "max-hold", "{lost:?}");
    // The reader has a moment to stop before another client can get the lock.
    assert_eq!(service.look("deploy").await.fencing_token(), fencing_token);
    events.ended().await;
    service.is_free("deploy").await;
}

#[store_test(service)]
async fn release_by_token_ends_the_hold(service: &Service) {
    let mut events = hold(service, &json!({"ttl_ms": 6000})).await;
    let token = events.next("acquired").await.token().to_owned();
    assert_eq!(service.release("deploy", &token).await.status, 204);
    let lost = events.after_renewals("lost").await;
    assert_eq!(lost.data["reason"], "lock-not-held", "{lost:?}");
    events.ended().await;
    let mut events = hold(service, &json!({"ttl_ms": 6000})).await;
    let token = events.next("acquired").await.token().to_owned();
    service.release("deploy", &token).await;
    let other = service.create("deploy", &json!({})).await;
    let lost = events.after_renewals("lost").await;
    assert_eq!(lost.data["reason"], "token-mismatch", "{lost:?}");
    events.ended().await;
    assert_eq!(service.look("deploy").await.fencing_token(), other.fencing_token());
}

#[store_test(memory)]
async fn holders_token_continues_its_lease(service: &Service) {
    let held = service.create_as("deploy", TOKEN, &json!({"ttl_ms": 60_000})).await;
    let request = request(service, &json!({"ttl_ms": 1500})).header("Lock-Token", TOKEN);
    let mut events = EventStream::of(request).await;
    let acquired = events.next("acquired").await;
    assert_eq!((acquired.fencing_token(), acquired.token()), (held.fencing_token(), TOKEN));
    drop(events);
    service.is_free("deploy").await;
}

#[tokio::test]
async fn invalid_hold_is_refused_before_the_stream() {
    let service = Service::start("memory:").await;
    for body in [
        json!({"ttl_ms": 1}),
        json!({"wait_ms": 300_001}),
        json!({"max_hold_ms": 0}),
        json!({"max_hold_ms": 86_400_001}),
        json!({"max_hold": 1}),
        json!([]),
    ] {
        refusal_of(request(&service, &body)).await.is_problem(400, "invalid-body");
    }
    let bad_token = request(&service, &json!({})).header("Lock-Token", "short");
    refusal_of(bad_token).await.is_problem(400, "invalid-token");
    let path = "/v1/locks/deploy/hold?ttl_ms=1000";
    refusal_of(service.request(Method::POST, path)).await.is_problem(400, "invalid-query");
    let get = refusal_of(service.request(Method::GET, "/v1/locks/deploy/hold")).await;
    get.is_problem(405, "method-not-allowed");
    assert_eq!(service.look("deploy").await.status, 404);
}

#[tokio::test]
async fn holds_and_waiters_are_limited() {
    let service =
        Service::set(|config| (config.stream.max_streams, config.wait.max_waiters) = (2, 0)).await;
    let mut first = hold(&service, &json!({})).await;
    first.next("acquired").await;
    let too_many = refusal_of(request(&service, &json!({"wait_ms": 1000}))).await;
    too_many.is_problem(429, "too-many-waiters");
    let path = |number: u32| format!("/v1/locks/another-{number}/hold");
    let second = EventStream::of(service.request(Method::POST, &path(2))).await;
    let third = refusal_of(service.request(Method::POST, &path(3))).await;
    third.is_problem(503, "overloaded");
    assert_ne!(third.header("retry-after"), "");
    assert_eq!(service.metric(HOLDS).await, 2);
    drop(second);
    service.reaches(HOLDS, 1).await;
    EventStream::of(service.request(Method::POST, &path(3))).await.next("acquired").await;
}

#[tokio::test]
async fn idle_stream_sends_heartbeat_comments() {
    let service = Service::set(|config| config.stream.heartbeat_ms = 20).await;
    let mut events = hold(&service, &json!({})).await;
    events.next("acquired").await;
    for _ in 0..3 {
        let chunk = soon("a heartbeat", events.response.chunk()).await.unwrap().unwrap();
        assert_eq!(chunk.as_ref(), b":\n\n");
    }
}

#[tokio::test]
async fn stream_outlives_every_request_timeout() {
    let mut config = config("memory:");
    config.server.request_timeout_ms = 700;
    config.server.keep_alive_timeout_ms = 700;
    config.server.header_timeout_ms = 700;
    let service = Service::start_with(config).await;
    let mut events = hold(&service, &json!({"max_hold_ms": 2500})).await;
    events.next("acquired").await;
    let lost = events.next("lost").await;
    assert_eq!(lost.data["reason"], "max-hold", "{lost:?}");
}

fn request(service: &Api, body: &Value) -> reqwest::RequestBuilder {
    service.request(Method::POST, "/v1/locks/deploy/hold").json(body)
}

async fn hold(service: &Api, body: &Value) -> EventStream {
    EventStream::of(request(service, body)).await
}
