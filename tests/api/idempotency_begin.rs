//! Goal: a begin can wait for a run that is under way, and the service makes the fingerprint that a
//! guard makes.
//!
//! Method: on each store a begin waits while the run ends in every way. A request that a program
//! describes and the same request through the guard meet under one key.

use keylatch::http::FieldName;
use keylatch_testkit::{Answer, Api, Service, Shop, TestStore, store_test};
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

const MINE: &str = "a-token-of-the-clients-own";
const OTHER: &str = "a-token-of-somebody-else";
const ORDER: &str = "?method=POST&path=/orders";

fn begin(api: &Api, path: &str, token: &str, body: &Value) -> RequestBuilder {
    let request = api.request(Method::POST, &format!("/v1/idempotency/{path}"));
    request.header("Lock-Token", token).json(body)
}

/// A begin of `k` that waits, and the service has it in hand.
async fn waiting(service: &Service) -> JoinHandle<Answer> {
    let waits = begin(service, "k", OTHER, &json!({})).header("Prefer", "wait=100");
    let waits = tokio::spawn(Answer::of(waits));
    service.has_in_hand(1).await;
    waits
}

async fn started(service: &Service) -> Answer {
    let first = Answer::of(begin(service, "k", MINE, &json!({}))).await;
    assert_eq!(first.status, 201, "{first:?}");
    first
}

#[store_test(service)]
async fn begin_that_waits_gets_the_response(service: &Service) {
    started(service).await;
    let waits = waiting(service).await;
    let complete = service.request(Method::PUT, "/v1/idempotency/k").header("Lock-Token", MINE);
    assert_eq!(Answer::of(complete.json(&json!({"body": "done"}))).await.status, 200);
    let answer = waits.await.expect("an answer");
    assert_eq!((answer.status.as_u16(), &answer.json["answer"]["body"]), (200, &json!("done")));
    assert_eq!(answer.header("preference-applied"), "wait=100", "{answer:?}");
}

#[store_test(service)]
async fn begin_that_waits_begins_when_the_key_is_free(service: &Service) {
    let first = started(service).await;
    let waits = waiting(service).await;
    let abandon = service.request(Method::DELETE, "/v1/idempotency/k").header("Lock-Token", MINE);
    assert_eq!(Answer::of(abandon).await.status, 204);
    let second = waits.await.expect("an answer");
    assert_eq!((second.status.as_u16(), second.token().as_str()), (201, OTHER), "{second:?}");
    assert!(second.fencing_token() > first.fencing_token(), "{second:?}");
    assert_eq!(second.header("preference-applied"), "wait=100", "{second:?}");
}

#[store_test(memory)]
async fn begin_that_waits_reads_that_the_outcome_is_unknown(service: &Service) {
    started(service).await;
    let waits = waiting(service).await;
    let fail = service.request(Method::POST, "/v1/idempotency/k/fail").header("Lock-Token", MINE);
    assert_eq!(Answer::of(fail).await.status, 200);
    waits.await.expect("an answer").is_refusal(409, "outcome-unknown", "never");
}

#[store_test(memory)]
async fn begin_that_waits_in_vain_reads_that_the_run_is_under_way(service: &Service) {
    started(service).await;
    let waits = begin(service, "k", OTHER, &json!({})).header("Prefer", "wait=1");
    let answer = Answer::of(waits).await;
    answer.is_refusal(409, "request-in-progress", "same-key");
    let headers = ["retry-after", "preference-applied"].map(|name| answer.header(name));
    assert_eq!(headers, ["1", "wait=1"], "{answer:?}");
    // The token that has the run waits for nothing.
    let again =
        Answer::of(begin(service, "k", MINE, &json!({})).header("Prefer", "wait=100")).await;
    assert_eq!(again.status, 201, "{again:?}");
}

#[tokio::test]
async fn begin_waits_no_longer_than_a_client_may() {
    let service = Service::set(|config| config.wait.max_wait_ms = 1000).await;
    started(&service).await;
    let waits = begin(&service, "k", OTHER, &json!({})).header("Prefer", "respond-async, wait=100");
    let answer = Answer::of(waits).await;
    answer.is_refusal(409, "request-in-progress", "same-key");
    assert_eq!(answer.header("preference-applied"), "wait=1", "{answer:?}");
}

#[tokio::test]
async fn begin_that_finds_no_place_among_the_waiters_waits_for_nothing() {
    let service = Service::set(|config| config.wait.max_waiters = 0).await;
    started(&service).await;
    let refused = begin(&service, "k", OTHER, &json!({})).header("Prefer", "wait=100");
    Answer::of(refused).await.is_refusal(409, "request-in-progress", "same-key");
}

#[tokio::test]
async fn begin_that_waits_keeps_no_room_for_a_response() {
    let service = Service::set(|config| config.idempotency.max_kept_bytes = 1024 * 1024).await;
    started(&service).await;
    let wait = |_| {
        let waits = begin(&service, "k", OTHER, &json!({})).header("Prefer", "wait=100");
        tokio::spawn(Answer::of(waits))
    };
    let waits: Vec<_> = (0..40).map(wait).collect();
    let found = "keylatch_store_operation_duration_seconds_count{operation=\"begin_record\",outcome=\"found\"}";
    service.reaches(found, 40).await;
    let other = Answer::of(begin(&service, "other", MINE, &json!({}))).await;
    assert_eq!(other.status, 201, "{other:?}");
    assert!(waits.iter().all(|one| !one.is_finished()));
}

/// What a program says of the request that [`order`] sends through the guard.
fn described(body: &str) -> Value {
    json!({"request": {"query": "b=2&a=1", "content_type": "application/json", "body": body}})
}

fn order(shop: &Shop, key: &str, body: &str) -> RequestBuilder {
    let request = shop.request(Method::POST, "/orders?a=1&b=2").header("Idempotency-Key", key);
    request.header("Content-Type", "application/json; charset=utf-8").body(body.to_owned())
}

#[store_test(memory)]
async fn service_makes_the_fingerprint_that_a_guard_makes(store: &TestStore) {
    let shop = Shop::open(store.url()).await;
    let place = format!("k{ORDER}");
    let begun = begin(&shop, &place, MINE, &described(r#"{"amount":1,"to":"a"}"#));
    assert_eq!(Answer::of(begun).await.status, 201);
    let complete = shop.request(Method::PUT, &format!("/v1/idempotency/{place}"));
    let complete =
        complete.header("Lock-Token", MINE).json(&json!({"status": 201, "json": {"run": 0}}));
    assert_eq!(Answer::of(complete).await.status, 200);
    Answer::of(order(&shop, "k", r#"{ "to": "\u0061", "amount": 1 }"#)).await.is_replay_of(0);
    let other = Answer::of(order(&shop, "k", r#"{"amount":2,"to":"a"}"#)).await;
    other.is_refusal(422, "idempotency-key-reused", "new-key");
    assert_eq!(shop.upstream.runs(), 0);

    Answer::of(order(&shop, "k-2", r#"{"amount":1}"#)).await.is_run(1);
    let found = begin(&shop, &format!("k-2{ORDER}"), OTHER, &described(r#"{"amount": 1}"#));
    assert_eq!(Answer::of(found).await.status, 200);
    let other = begin(&shop, &format!("k-2{ORDER}"), OTHER, &described(r#"{"amount":2}"#));
    Answer::of(other).await.is_refusal(422, "idempotency-key-reused", "new-key");
}

#[tokio::test]
async fn every_part_of_a_described_request_counts_as_at_the_guard() {
    let shop = Shop::open_with("memory:", |guard| {
        guard.ignore_fields = vec![FieldName::Name("sent_at".to_owned())];
        guard.fingerprint_headers = vec!["X-Tenant".to_owned()];
    })
    .await;
    let sent = |key: &str| {
        let request = shop.request(Method::POST, "/orders").header("Idempotency-Key", key);
        request.header("Content-Type", "application/json").header("X-Tenant", "7")
    };
    Answer::of(sent("json").body(r#"{"n":1,"sent_at":2}"#)).await.is_run(1);
    Answer::of(sent("none")).await.is_run(2);
    let bytes = || shop.request(Method::POST, "/orders").header("X-Tenant", "7").body(vec![0xFF]);
    Answer::of(bytes().header("Idempotency-Key", "bytes")).await.is_run(3);
    let kind = "application/json";
    let tenant = |tenant: &str| json!({"X-Tenant": [tenant]});
    for (key, request, status) in [
        ("json", json!({"content_type": kind, "headers": tenant("7"), "body": r#"{"n":1}"#}), 200),
        ("json", json!({"content_type": kind, "headers": tenant("8"), "body": r#"{"n":1}"#}), 422),
        ("json", json!({"content_type": kind, "body": r#"{"n":1}"#}), 422),
        ("json", json!({"headers": tenant("7"), "body": r#"{"n":1}"#}), 422),
        ("json", json!({"content_type": kind, "headers": tenant("7"), "body": r#"{"n":2}"#}), 422),
        (
            "json",
            json!({"content_type": kind, "headers": tenant("7"), "body_base64": "eyJuIjoxfQ=="}),
            200,
        ),
        ("none", json!({"content_type": kind, "headers": tenant("7")}), 200),
        ("none", json!({"headers": tenant("7")}), 422),
        ("none", json!({}), 422),
        ("bytes", json!({"headers": {"x-tenant": "7"}, "body_base64": "/w=="}), 200),
        ("bytes", json!({"headers": tenant("7"), "body_base64": "/g=="}), 422),
    ] {
        let described = begin(&shop, &format!("{key}{ORDER}"), OTHER, &json!({"request": request}));
        let answer = Answer::of(described).await;
        assert_eq!(answer.status, status, "{key} {request} {answer:?}");
    }
}

#[tokio::test]
async fn described_request_stands_in_place_of_a_fingerprint() {
    let service = Service::start("memory:").await;
    for (body, field) in [
        (json!({"fingerprint": "", "request": {}}), "request"),
        (json!({"request": {"body": "", "body_base64": ""}}), "body"),
        (json!({"request": {"body_base64": "%"}}), "body_base64"),
        (json!({"request": {"content_type": "a\nb"}}), "content_type"),
        (json!({"request": {"headers": {"a b": ["1"]}}}), "headers"),
        (json!({"request": {"method": "POST"}}), "request.method"),
    ] {
        let refused = Answer::of(begin(&service, "k", MINE, &body)).await;
        refused.is_problem(400, "invalid-body");
        assert_eq!(refused.json["field"], field, "{refused:?}");
    }
    assert_eq!(service.get("/v1/idempotency/k").await.status, 404);
}
