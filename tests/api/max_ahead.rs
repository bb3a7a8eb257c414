//! Goal: with `max_ahead` a request waits only where at most so many wait already, and is else
//! refused at once, without a trace.
//!
//! Method: requests with `wait_ms` and `max_ahead` on each store; many at once for one place.

use futures_util::future::select_all;
use keylatch_testkit::{Answer, Api, Service, soon, store_test};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

const HOLDER: &str = "a-token-of-the-holder-of-the-lock";

fn within(max_ahead: u64) -> Value {
    json!({"wait_ms": 60_000, "max_ahead": max_ahead})
}

fn waiter(number: usize) -> String {
    format!("the-token-of-waiter-{number}")
}

async fn hold(service: &Api, name: &str, body: &Value) {
    let held = service.create_as(name, HOLDER, body).await;
    assert_eq!(held.status, 201, "{held:?}");
}

/// A request of that waiter for a lock, in a new task.
fn wait(service: &Api, name: &str, number: usize, body: &Value) -> JoinHandle<Answer> {
    let request = service.request(Method::POST, &format!("/v1/locks/{name}"));
    let request = request.header("Lock-Token", waiter(number)).json(body);
    tokio::spawn(Answer::of(request))
}

/// The response to a request that does not wait, though it asked to.
fn is_refused(answer: &Answer, ahead: u64) {
    answer.is_problem(409, "lock-held");
    assert_eq!(answer.json["ahead"], ahead, "{answer:?}");
    assert!(answer.json["detail"].as_str().expect("a text").contains("`max_ahead`"), "{answer:?}");
    // By this the clients know that no retry of the same wait helps.
    assert!(answer.json["waited_ms"].is_null(), "{answer:?}");
}

#[store_test(service)]
async fn one_holds_the_lock_and_one_comes_after_it(service: &Service) {
    let free = soon("the free lock", wait(service, "a", 0, &within(0))).await.unwrap();
    assert_eq!(free.status, 201, "{free:?}");
    let next = wait(service, "a", 1, &within(0));
    service.has_waiting("a", 1).await;
    let refused = soon("one too many", wait(service, "a", 2, &within(0))).await.unwrap();
    is_refused(&refused, 1);
    assert!(refused.json["holder"]["expires_in_ms"].is_u64(), "{refused:?}");
    assert!(refused.json["waiter"]["number"].is_u64(), "{refused:?}");
    let third = wait(service, "a", 3, &within(1));
    service.has_waiting("a", 2).await;
    assert_eq!(service.release("a", &waiter(0)).await.status, 204);
    assert_eq!(soon("the next", next).await.unwrap().status, 201);
    assert!(!third.is_finished());
    // The place is free again for the one that was refused, behind the third.
    is_refused(&soon("the second", wait(service, "a", 2, &within(0))).await.unwrap(), 1);
    third.abort();
    service.has_waiting("a", 0).await;
    let second = wait(service, "a", 2, &within(0));
    service.has_waiting("a", 1).await;
    second.abort();
}

#[store_test(service)]
async fn of_many_at_once_one_gets_the_one_place(service: &Service) {
    hold(service, "a", &json!({})).await;
    let mut waiters: Vec<_> = (0..12).map(|n| wait(service, "a", n, &within(0))).collect();
    for _ in 1..12 {
        let (refused, _, others) = soon("a refusal", select_all(waiters)).await;
        is_refused(&refused.unwrap(), 1);
        waiters = others;
    }
    service.has_waiting("a", 1).await;
    assert_eq!(service.release("a", HOLDER).await.status, 204);
    let [last] = waiters.try_into().expect("one waits");
    assert_eq!(soon("the last", last).await.unwrap().status, 201);
}

#[store_test(memory)]
async fn hold_is_refused_before_its_stream_begins(service: &Service) {
    hold(service, "a", &json!({})).await;
    let _next = wait(service, "a", 1, &within(0));
    service.has_waiting("a", 1).await;
    let refused = service.request(Method::POST, "/v1/locks/a/hold").json(&within(0));
    is_refused(&soon("the hold", Answer::of(refused)).await, 1);
    assert_eq!(service.look("a").await.json["waiting"], 1);
}

#[tokio::test]
async fn max_ahead_is_for_a_request_that_waits() {
    let service = Service::start("memory:").await;
    for (path, body) in [
        ("/v1/locks/a", json!({"max_ahead": 0})),
        ("/v1/locks/a/hold", json!({"max_ahead": 0})),
        ("/v1/locks", json!({"names": ["a"], "max_ahead": 0})),
        ("/v1/locks/a", json!({"wait_ms": 1, "max_ahead": -1})),
        ("/v1/locks/a", json!({"wait_ms": 1, "max_ahead": 0.5})),
        ("/v1/locks/a", json!({"wait_ms": 1, "max_ahead": "0"})),
    ] {
        let refused = Answer::of(service.request(Method::POST, path).json(&body)).await;
        refused.is_problem(400, "invalid-body");
        assert_eq!(refused.json["field"], "max_ahead", "{body}: {refused:?}");
        let detail = refused.json["detail"].as_str().expect("a text");
        assert!(!body["wait_ms"].is_null() || detail.contains("give it `wait_ms`"), "{detail}");
    }
    assert_eq!(service.look("a").await.status, 404);
    // A client whose time is over retries without a wait.
    let body = json!({"wait_ms": 0, "max_ahead": 0});
    assert_eq!(service.create("a", &body).await.status, 201);
}
