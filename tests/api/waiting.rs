//! Goal: waiters get a lock in the order in which they came, and one that leaves is not waited for.
//!
//! Method: requests with `wait_ms` on each store; where time matters, on tokio's paused clock.

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use keylatch::app::App;
use keylatch_testkit::{
    Answer, Api, EventStream, RawConnection, Service, config, eventually, post_head, soon,
    store_test,
};
use reqwest::Method;
use serde_json::json;
use tokio::task::JoinHandle;
use tokio::time::{Instant, advance};
use tower::ServiceExt;

/// On tokio's paused clock, which jumps to the next timer whenever every task waits. So the time
/// that passes is that of timers alone, on any machine.
#[tokio::test(start_paused = true)]
async fn next_waiter_acquires_at_expiry_after_the_first_left() {
    let router = App::new(config("memory:")).await.expect("the store opens").router();
    let begun = Instant::now();
    assert_eq!(create(&router, HOLDER, r#"{"ttl_ms": 400}"#).await.unwrap(), 201);
    let first = create(&router, FIRST, r#"{"wait_ms": 60000}"#);
    tokio::task::yield_now().await;
    let second = create(&router, SECOND, r#"{"wait_ms": 60000}"#);
    tokio::task::yield_now().await;
    first.abort();
    assert_eq!(second.await.unwrap(), 201);
    let waited = begun.elapsed();
    assert!(waited < Duration::from_millis(500), "{waited:?}");
}

/// The same clock: a long wait may be made of several, each as long as a proxy lets it be.
#[tokio::test(start_paused = true)]
async fn waiter_that_retries_after_timeout_keeps_its_position() {
    let router = App::new(config("memory:")).await.expect("the store opens").router();
    assert_eq!(create(&router, HOLDER, r#"{"ttl_ms": 29000}"#).await.unwrap(), 201);
    let mut first = create(&router, FIRST, r#"{"wait_ms": 10000}"#);
    tokio::task::yield_now().await;
    let second = create(&router, SECOND, r#"{"wait_ms": 60000}"#);
    for _ in 0..2 {
        assert_eq!(first.await.unwrap(), 409);
        // The answer takes its time, and so does the next request.
        advance(Duration::from_millis(200)).await;
        first = create(&router, FIRST, r#"{"wait_ms": 10000}"#);
    }
    assert_eq!(first.await.unwrap(), 201);
    assert!(!second.is_finished());
}

#[tokio::test(start_paused = true)]
async fn waiter_that_does_not_retry_blocks_the_queue_for_1_s_at_most() {
    for (wait, at_most) in [(10_000, 1000), (400, 100)] {
        let router = App::new(config("memory:")).await.expect("the store opens").router();
        // The lease ends just after the time to wait.
        let ttl = Duration::from_millis(wait + 10);
        let held = format!(r#"{{"ttl_ms": {}}}"#, ttl.as_millis());
        let (begun, holder) = (Instant::now(), create(&router, HOLDER, &held));
        assert_eq!(holder.await.unwrap(), 201);
        let first = create(&router, FIRST, &format!(r#"{{"wait_ms": {wait}}}"#));
        tokio::task::yield_now().await;
        let second = create(&router, SECOND, r#"{"wait_ms": 60000}"#);
        assert_eq!(first.await.unwrap(), 409);
        assert_eq!(second.await.unwrap(), 201);
        let late = begun.elapsed() - ttl;
        assert!(late <= Duration::from_millis(at_most), "{late:?} after a wait of {wait} ms");
    }
}

/// A request in a new task; gives the status.
fn create(router: &Router, token: &str, body: &str) -> JoinHandle<StatusCode> {
    let request = Request::post("/v1/locks/deploy").header("Host", "localhost");
    let request =
        request.header("Lock-Token", token).body(Body::from(body.to_owned())).expect("a request");
    let answer = router.clone().oneshot(request);
    tokio::spawn(async { answer.await.expect("an answer").status() })
}

const HOLDER: &str = "a-token-of-the-holder-of-the-lock";
const FIRST: &str = "the-first-who-waits-here";
const SECOND: &str = "the-second-who-waits-here";

#[store_test(service)]
async fn waiter_acquires_after_release(service: &Service) {
    hold(service).await;
    let waiter = wait(service, FIRST, 60_000);
    service.has_waiting("deploy", 1).await;
    assert!(!waiter.is_finished());
    service.release("deploy", HOLDER).await;
    let answer = soon("the waiter", waiter).await.unwrap();
    assert_eq!(answer.status, 201, "{answer:?}");
    assert_eq!(answer.json["ttl_ms"], 30_000);
    // What was waited takes nothing of the lease, whose end is counted from the request.
    assert!(answer.json["valid_for_ms"].as_u64().unwrap() > 25_000, "{answer:?}");
    assert_eq!(service.look("deploy").await.json["waiting"], 0);
}

#[store_test(service)]
async fn waiter_acquires_after_expiry(service: &Service) {
    let held = service.create_as("deploy", HOLDER, &json!({"ttl_ms": 2000})).await;
    let answer = soon("the waiter", wait(service, FIRST, 60_000)).await.unwrap();
    assert_eq!(answer.status, 201, "{answer:?}");
    assert!(answer.fencing_token() > held.fencing_token());
    // What was left when the answer was written, and from the sending of the request on as much
    // more as the client waited.
    let (waited, valid_for) =
        (answer.json["waited_ms"].as_u64(), answer.json["valid_for_ms"].as_u64());
    let (waited, valid_for) = (waited.unwrap(), valid_for.unwrap());
    assert!(valid_for < 30_000 && waited + valid_for > 25_000, "{answer:?}");
}

#[store_test(memory)]
async fn wait_timeout_reports_holder_and_leaves_queue(service: &Service) {
    let free = soon("the free lock", wait(service, HOLDER, 60_000)).await.unwrap();
    assert_eq!(free.status, 201, "{free:?}");
    assert_eq!(service.release("deploy", HOLDER).await.status, 204);
    hold(service).await;
    let answer = soon("the waiter", wait(service, FIRST, 50)).await.unwrap();
    answer.is_problem(409, "lock-held");
    assert_eq!(answer.json["ahead"], 0, "{answer:?}");
    assert!(answer.json["waited_ms"].as_u64().is_some_and(|waited| waited >= 50), "{answer:?}");
    assert_eq!(answer.json["holder"]["owner"], "the holder");
    only_left(service, 0).await;
}

#[store_test(service)]
async fn grant_to_a_disconnected_waiter_is_withdrawn(service: &Service) {
    for round in 0..20 {
        let name = format!("deploy-{round}");
        let held = service.create_as(&name, HOLDER, &json!({})).await;
        assert_eq!(held.status, 201, "{held:?}");
        let body = r#"{"wait_ms":60000}"#;
        let request = post_head(&format!("/v1/locks/{name}"), body.len()) + body;
        let client = RawConnection::sending(service.address, &request).await;
        service.has_waiting(&name, 1).await;
        // The client goes, and its turn comes before the service may have seen that.
        client.hang_up().await;
        let released = service.release(&name, HOLDER).await;
        assert_eq!(released.status, 204);
        let free = async || (service.look(&name).await.status == 404).then_some(());
        eventually(free).await;
    }
}

#[store_test(memory)]
async fn same_token_keeps_its_queue_position(service: &Service) {
    hold(service).await;
    let first = wait(service, "one-who-asks-again-later", 60_000);
    service.has_waiting("deploy", 1).await;
    let second = wait(service, SECOND, 60_000);
    service.has_waiting("deploy", 2).await;
    // Another request with the first one's token is in its place, and the first one may go.
    let again = service.request(Method::POST, "/v1/locks/deploy/hold");
    let again = again.header("Lock-Token", "one-who-asks-again-later");
    let mut again = EventStream::of(again.json(&json!({"wait_ms": 60_000}))).await;
    assert_eq!(again.next("waiting").await.data, json!({"ahead": 0}));
    first.abort();
    // The second, and the request that reads the number.
    service.reaches("keylatch_http_in_flight", 2).await;
    service.release("deploy", HOLDER).await;
    again.next("acquired").await;
    assert!(!second.is_finished());
}

#[tokio::test]
async fn waiters_leave_room_for_a_release_and_for_health() {
    let service = Service::set(|config| {
        (config.server.max_connections, config.server.max_requests) = (20, 20);
    })
    .await;
    hold(&service).await;
    let waiters: Vec<_> = (0..30)
        .map(|number| wait(&service, &format!("a-token-of-waiter-{number}"), 60_000))
        .collect();
    // Each of the others is refused, by its own limit or by that of all.
    eventually(async || {
        let refused = waiters.iter().filter(|waiter| waiter.is_finished()).count();
        (refused == 20).then_some(())
    })
    .await;
    assert_eq!(service.get("/livez").await.status, 200);
    assert_eq!(service.look("deploy").await.json["waiting"], 10);
    service.release("deploy", HOLDER).await;
    eventually(async || {
        let finished = waiters.iter().filter(|waiter| waiter.is_finished()).count();
        (finished == 21).then_some(())
    })
    .await;
}

/// It cannot come back to its place, which would hold up those behind it, and itself.
#[store_test(memory)]
async fn waiter_without_a_token_leaves_no_place_behind(service: &Service) {
    hold(service).await;
    for _ in 0..3 {
        let late = service.create("deploy", &json!({"wait_ms": 2000})).await;
        late.is_problem(409, "lock-held");
        assert_eq!(late.json["ahead"], 0, "{late:?}");
        assert_eq!(service.look("deploy").await.json["waiting"], 0);
    }
}

#[tokio::test]
async fn wait_above_the_limit_is_refused() {
    let service = Service::start("memory:").await;
    service.create("deploy", &json!({"wait_ms": 300_001})).await.is_problem(400, "invalid-body");
    let service = Service::set(|config| config.wait.max_wait_ms = 10).await;
    service.create("deploy", &json!({"wait_ms": 11})).await.is_problem(400, "invalid-body");
    assert_eq!(service.create("deploy", &json!({"wait_ms": 10})).await.status, 201);
}

#[tokio::test]
async fn waiters_above_the_limit_are_refused() {
    for (each, all) in [(2, 100), (100, 2)] {
        let service = Service::set(|config| {
            (config.wait.max_waiters_per_lock, config.wait.max_waiters) = (each, all);
        })
        .await;
        hold(&service).await;
        let waiters: Vec<_> = (0..2).map(|n| wait(&service, &token(n), 60_000)).collect();
        service.has_waiting("deploy", 2).await;
        let third = soon("the third", wait(&service, &token(3), 60_000)).await.unwrap();
        third.is_problem(429, "too-many-waiters");
        assert_ne!(third.header("retry-after"), "");
        assert!(waiters.iter().all(|waiter| !waiter.is_finished()));
        service.has_waiting("deploy", 2).await;
    }
}

async fn hold(service: &Api) {
    let held = service.create_as("deploy", HOLDER, &json!({"owner": "the holder"})).await;
    assert_eq!(held.status, 201, "{held:?}");
}

/// A request that waits for `deploy` in a new task.
fn wait(service: &Api, token: &str, wait_ms: u64) -> JoinHandle<Answer> {
    let request = service.request(Method::POST, "/v1/locks/deploy").header("Lock-Token", token);
    tokio::spawn(Answer::of(request.json(&json!({"wait_ms": wait_ms}))))
}

/// Waits until the others have left the line, which is before their places would be lost by
/// themselves.
async fn only_left(service: &Api, waiting: u64) {
    let left = service.has_waiting("deploy", waiting);
    tokio::time::timeout(Duration::from_secs(2), left).await.expect("the others leave at once");
}

fn token(number: u64) -> String {
    format!("the-token-of-waiter-{number}")
}
