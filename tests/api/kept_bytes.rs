//! Goal: the records that a store of one process keeps have a bound in every state, nothing runs
//! whose answer could not be kept, no client and no guard takes the room of the others, and long
//! answers are on disk where there is a disk.
//!
//! Method: a guard before an upstream with long answers, and calls of the API, on the stores of one
//! process.

use keylatch_testkit::{Answer, Api, Service, Shop, TestStore, Upstream, config, store_test};
use reqwest::{Method, StatusCode};
use serde_json::json;

use crate::KEYLATCH;
use crate::slow_readers::memory;

const KEPT: &str = "keylatch_idempotency_kept_bytes";
/// How much may be kept.
const BOUND: u64 = 200_000;
/// How long an answer is.
const ANSWER: usize = 10_000;

async fn shop(store: &str) -> (Service, Upstream) {
    let upstream = Upstream::start().await;
    upstream.answers(|_| "a".repeat(ANSWER));
    let mut config = config(store);
    config.idempotency.max_kept_bytes = BOUND;
    config.guard = vec![Shop::guard(&upstream.url())];
    (Service::start_with(config).await, upstream)
}

#[track_caller]
fn is_full(answer: &Answer) {
    answer.is_problem(503, "overloaded");
    assert_eq!(answer.json["outcome"], "not-executed", "{answer:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_without_room_for_its_answer_is_refused_before_it_begins() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let embedded = format!("embedded:{}", directory.path().display());
    for store in ["memory:", &embedded] {
        let (shop, upstream) = shop(store).await;
        let mut keys = (0..).map(|number| format!("k-{number}"));
        let refused = loop {
            let answer = shop.buy(&keys.next().expect("a key")).await;
            assert!(shop.metric(KEPT).await <= BOUND);
            if answer.status != 200 {
                break answer;
            }
        };
        is_full(&refused);
        let (runs, full) = (upstream.runs(), shop.metric(KEPT).await);
        assert!(runs as u64 * ANSWER as u64 > BOUND / 3, "{runs} runs");
        assert!(full >= runs as u64 * ANSWER as u64, "{full} bytes after {runs} runs");
        is_full(&shop.buy("another").await);
        let begin = |key: &str| {
            let path = format!("/v1/idempotency/{key}?method=POST&path=/orders");
            Answer::of(shop.request(Method::POST, &path).json(&json!({})))
        };
        // What was done needs no room.
        let repeat = shop.buy("k-0").await;
        assert_eq!((repeat.status.as_u16(), repeat.text.len()), (200, ANSWER));
        assert_ne!(begin("k-0").await.status, 503);
        assert_eq!((upstream.runs(), shop.metric(KEPT).await), (runs, full));
        // The store decides in the step that would begin the run, and no look comes before it.
        let metrics = shop.get("/metrics").await.text;
        assert!(metrics.contains(r#"operation="begin_record",outcome="no_room""#), "{metrics}");
        assert!(!metrics.contains(r#"operation="look_at_record""#), "{metrics}");
        shop.stop().await;
    }
    // What is there at a start counts among all.
    let (shop, upstream) = shop(&embedded).await;
    assert!(shop.metric(KEPT).await > BOUND / 3);
    assert_eq!(shop.buy("k-0").await.status, 200);
    assert_eq!(upstream.runs(), 0);
}

/// Orders under new keys until one is refused, as a client behind a proxy; how many ran.
async fn fill(shop: &Service, path: &str, client: &str) -> usize {
    for number in 0..1000 {
        let answer = buy(shop, path, client, &format!("{client}-{number}")).await;
        if answer.status == 503 {
            is_full(&answer);
            return number;
        }
    }
    panic!("{client} has no bound at {path}");
}

async fn buy(shop: &Service, path: &str, client: &str, key: &str) -> Answer {
    let request = shop.request(Method::POST, path).header("Idempotency-Key", key);
    Answer::of(request.header("X-Forwarded-For", client)).await
}

/// A record of a short answer takes more than the answer.
#[tokio::test]
async fn records_count_with_all_that_they_have() {
    let (shop, upstream) = shop("memory:").await;
    upstream.answers(|_| (StatusCode::CONFLICT, "{}"));
    let runs = fill(&shop, &format!("/orders/{}", "a".repeat(900)), "192.0.2.1").await;
    assert!((10..100).contains(&runs), "{runs} runs");
}

#[tokio::test]
async fn one_client_and_one_guard_leave_room_for_the_others() {
    let upstream = Upstream::start().await;
    upstream.answers(|_| "a".repeat(ANSWER));
    let mut config = config("memory:");
    config.idempotency.max_kept_bytes = BOUND;
    config.guard = vec![Shop::guard(&upstream.url()), Shop::guard(&upstream.url())];
    config.guard[1].path = "/payments".to_owned();
    let shop = Service::start_with(config).await;
    let clients = (1..9).map(|client| format!("192.0.2.{client}"));
    let mut runs = Vec::new();
    for client in clients {
        runs.push(fill(&shop, "/orders", &client).await);
    }
    assert!(runs[0] > 0 && runs[1] > 0, "{runs:?}: the second client had no room");
    // The first client has none at that guard, and has some at the other, as the API has.
    assert_eq!(buy(&shop, "/payments", "192.0.2.1", "k").await.status, 200);
    let begun = Answer::of(shop.request(Method::POST, "/v1/idempotency/k").json(&json!({}))).await;
    assert_eq!(begun.status, 201, "{begun:?}");
    // Of an IPv6 network a client has every address.
    fill(&shop, "/payments", "2001:db8::1").await;
    is_full(&buy(&shop, "/payments", "2001:db8::2", "k-2").await);
}

#[tokio::test]
async fn refusals_of_the_upstream_lose_their_bodies_when_room_is_short() {
    let (shop, upstream) = shop("memory:").await;
    upstream.answers(|_| (StatusCode::NOT_FOUND, "a".repeat(ANSWER)));
    let runs = fill(&shop, "/orders", "192.0.2.1").await;
    assert!(runs as u64 * ANSWER as u64 > BOUND, "{runs} runs");
    let first = buy(&shop, "/orders", "192.0.2.1", "192.0.2.1-0").await;
    assert_eq!((first.status.as_u16(), first.text.len()), (404, ANSWER));
    let last = buy(&shop, "/orders", "192.0.2.1", &format!("192.0.2.1-{}", runs - 1)).await;
    assert_eq!((last.status.as_u16(), last.text.len()), (404, 0), "{last:?}");
    assert_eq!(last.headers["idempotent-body"], "not-kept", "{last:?}");
}

#[tokio::test]
async fn unknown_outcomes_have_a_bound_of_their_own() {
    let upstream = Upstream::start().await;
    upstream.answers(|_| StatusCode::INTERNAL_SERVER_ERROR);
    let mut config = config("memory:");
    config.idempotency.max_unknown = 20;
    config.guard = vec![Shop::guard(&upstream.url()), Shop::guard(&upstream.url())];
    config.guard[1].path = "/payments".to_owned();
    let shop = Service::start_with(config).await;
    assert_eq!(fill(&shop, "/orders", "192.0.2.1").await, 10, "half of them are one client's");
    assert_eq!(fill(&shop, "/orders", "192.0.2.2").await, 5);
    assert_eq!(buy(&shop, "/payments", "192.0.2.1", "k").await.status, 500);
    let repeat = buy(&shop, "/orders", "192.0.2.1", "192.0.2.1-0").await;
    repeat.is_problem(409, "outcome-unknown");
    // One that a person settles makes room for another.
    let settle = "/v1/idempotency/192.0.2.1-0/resolve?method=POST&path=/orders";
    let settle = shop.request(Method::POST, settle).json(&json!({"outcome": "not-executed"}));
    assert_eq!(Answer::of(settle).await.status, 204);
    assert_eq!(buy(&shop, "/orders", "192.0.2.2", "another").await.status, 500);
}

/// The memory of a process of its own, before and after a restart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_answers_of_the_embedded_store_are_not_in_memory() {
    const ANSWERS: usize = 100;
    const LENGTH: usize = 900_000;
    let directory = tempfile::tempdir().expect("a temporary directory");
    let store = format!("embedded:{}", directory.path().display());
    let before = memory(&KEYLATCH.serve(&[], &[]).await);
    let body = |number: usize| format!("{number:06}").repeat(LENGTH / 6);
    for starts in 0..2 {
        let process = KEYLATCH.serve(&["--store", &store], &[]).await;
        let api = Api::at(process.address);
        let request = |method, number| api.request(method, &format!("/v1/idempotency/k-{number}"));
        let begin = |number| Answer::of(request(Method::POST, number).json(&json!({})));
        let new = if starts == 0 { 0..ANSWERS } else { 0..0 };
        for number in new {
            let token = begin(number).await.token();
            let complete = request(Method::PUT, number).header("Lock-Token", token);
            let complete = complete.json(&json!({"body": body(number)}));
            assert_eq!(Answer::of(complete).await.status, 200);
        }
        let more = memory(&process).saturating_sub(before);
        assert!(more * 1024 < ANSWERS * LENGTH / 2, "{more} KiB more with {starts} restarts");
        for number in (0..ANSWERS).step_by(10) {
            assert_eq!(begin(number).await.json["answer"]["body"], body(number));
        }
        // The next one finds the directory free.
        process.ended_by("-KILL").await;
    }
}

/// Runs that are under way have room, although nothing of them is kept yet.
#[tokio::test]
async fn runs_at_once_have_room_for_all_of_their_answers() {
    let (shop, upstream) = shop("memory:").await;
    upstream.hold();
    let mut running = Vec::new();
    let refused = loop {
        let order = Answer::of(shop.order(&format!("k-{}", running.len())));
        let mut order = Box::pin(order);
        tokio::select! {
            answer = &mut order => break answer,
            () = upstream.begun(running.len() + 1) => running.push(tokio::spawn(order)),
        }
    };
    is_full(&refused);
    upstream.resume();
    for order in running {
        assert_eq!(order.await.expect("an answer").status, 200);
    }
    assert!(shop.metric(KEPT).await <= BOUND);
    assert_eq!(shop.buy("later").await.status, 200);
}

/// An engine has a bound of its own.
#[store_test(restart)]
async fn kept_bytes_of_an_engine_are_its_own_affair(store: &TestStore) {
    let (shop, _upstream) = shop(store.url()).await;
    let is_own = store.url().starts_with("embedded:");
    let metrics = shop.get("/metrics").await.text;
    assert_eq!(metrics.contains("keylatch_idempotency_kept_bytes"), is_own, "{metrics}");
    for number in 0..30 {
        let answer = shop.buy(&format!("k-{number}")).await;
        assert!(is_own || answer.status == 200, "{answer:?}");
    }
}
