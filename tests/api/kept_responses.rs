//! Goal: the guard, and the upstream by `Keylatch-Keep`, say what a record keeps of a response and
//! for how long; no record becomes unknown for the size of its response; and who failed half way
//! says so.
//!
//! Method: an upstream that answers with each header, and the API of records, on every store with
//! records.

use std::time::{Duration, SystemTime};

use axum::body::Body;
use axum::http::Response;
use keylatch_axum::{FailurePolicy, OnFailure};
use keylatch_testkit::{Answer, ReceivedRequest, Service, Shop, TestStore, store_test};
use reqwest::Method;
use serde_json::{Value, json};

/// A response with this status and what the upstream says of it, whose body is the number of the
/// run.
fn says(status: u16, keep: &'static str) -> impl Fn(ReceivedRequest) -> Response<Body> {
    move |seen| {
        let response = Response::builder().status(status).header("Location", "/orders/17");
        let response = response.header("Keylatch-Keep", keep);
        response.body(Body::from(seen.run.to_string())).expect("a response")
    }
}

#[store_test(memory)]
async fn guard_says_which_refusals_free_the_key(store: &TestStore) {
    let policy: FailurePolicy = OnFailure::Unknown.into();
    let policy = policy.with_status(402, OnFailure::Release).with_status(422, OnFailure::Unknown);
    let shop = Shop::open_with(store.url(), |guard| guard.on_failure = policy).await;
    for (status, state) in [(402, json!(null)), (422, json!("unknown")), (404, json!("done"))] {
        let key = format!("k-{status}");
        shop.upstream.answers(move |_| axum::http::StatusCode::from_u16(status).expect("one"));
        assert_eq!(shop.buy(&key).await.status, status);
        assert_eq!(shop.record(&key).await["state"], state, "{status}");
    }
}

#[store_test(memory)]
async fn upstream_says_what_is_kept(shop: &Shop) {
    for (key, status, keep, state) in [
        ("k-1", 500, "response", json!("done")),
        ("k-2", 422, "response; for=3600", json!("done")),
        ("k-3", 201, "status", json!("done")),
        ("k-4", 201, "nothing", json!(null)),
        ("k-5", 201, "everything", json!("done")),
        ("k-6", 500, "response; for=0", json!("unknown")),
        ("k-7", 500, "response; for=31536001", json!("unknown")),
        ("k-8", 500, "response; until=1", json!("unknown")),
    ] {
        shop.upstream.answers(says(status, keep));
        let first = shop.buy(key).await;
        assert_eq!((first.status.as_u16(), first.header("keylatch-keep")), (status, ""), "{keep}");
        let record = shop.record(key).await;
        assert_eq!(record["state"], state, "{key}: {record}");
        if state != "done" {
            continue;
        }
        let repeat = shop.buy(key).await;
        assert_eq!(repeat.header("keylatch-keep"), "", "{repeat:?}");
        if keep == "status" {
            repeat.is_refusal(409, "answer-not-kept", "never");
            assert_eq!((&record["status"], &record["answer_kept"]), (&json!(201), &json!(false)));
        } else {
            assert_eq!((repeat.status.as_u16(), &repeat.text), (status, &first.text), "{repeat:?}");
            assert_eq!(repeat.header("idempotent-replayed"), "true", "{repeat:?}");
        }
    }
}

#[store_test(memory)]
async fn upstream_says_how_long_it_is_kept(shop: &Shop) {
    for (keep, seconds) in [("response;for=3600", 3600), ("status; for=7200", 7200)] {
        shop.upstream.answers(says(201, keep));
        let first = shop.buy(keep.split(';').next().expect("a key")).await;
        let expires = httpdate::parse_http_date(first.header("idempotency-key-expires"));
        let left = expires.expect("a date").duration_since(SystemTime::now()).unwrap_or_default();
        let (least, most) = (Duration::from_secs(seconds - 600), Duration::from_secs(seconds));
        assert!((least..=most).contains(&left), "{keep}: {left:?}");
    }
}

/// A header of keylatch's that a request outside of the guarded methods gets goes no further
/// either.
#[tokio::test]
async fn unguarded_response_loses_the_header() {
    let shop = Shop::open("memory:").await;
    shop.upstream.answers(says(200, "response"));
    assert_eq!(shop.get("/orders/17").await.header("keylatch-keep"), "");
}

async fn step(api: &Service, method: Method, path: &str, body: Value) -> Answer {
    let request = api.request(method, &format!("/v1/idempotency/{path}"));
    Answer::of(request.header("Lock-Token", "a-token-of-the-clients-own").json(&body)).await
}

#[store_test(memory)]
async fn who_failed_half_way_says_so(service: &Service) {
    step(service, Method::POST, "k", json!({})).await;
    let stranger = service.request(Method::POST, "/v1/idempotency/k/fail");
    let stranger = stranger.header("Lock-Token", "a-token-of-somebody-else");
    Answer::of(stranger.json(&json!({}))).await.is_problem(412, "token-mismatch");
    let nobody = service.request(Method::POST, "/v1/idempotency/k/fail").json(&json!({}));
    Answer::of(nobody).await.is_problem(428, "token-required");
    let long = json!({"reason": "x".repeat(257)});
    step(service, Method::POST, "k/fail", long).await.is_problem(400, "invalid-body");
    for _ in 0..2 {
        let failed = step(service, Method::POST, "k/fail", json!({"reason": "half"})).await;
        assert_eq!(failed.status, 200, "{failed:?}");
        let record = ["state", "reason"].map(|member| &failed.json[member]);
        assert_eq!(record, [&json!("unknown"), &json!("reported")], "{failed:?}");
    }
    let repeat = step(service, Method::POST, "k", json!({})).await;
    repeat.is_refusal(409, "outcome-unknown", "never");
    let late = step(service, Method::PUT, "k", json!({})).await;
    late.is_problem(409, "outcome-unknown");
    step(service, Method::POST, "none/fail", json!({})).await.is_problem(404, "no-record");
}

#[store_test(service)]
async fn response_longer_than_other_requests_is_kept(service: &Service) {
    let body = "\"".repeat(150_000);
    step(service, Method::POST, "k", json!({})).await;
    let done = step(service, Method::PUT, "k", json!({"body": body})).await;
    assert_eq!((done.status.as_u16(), &done.json["answer_kept"]), (200, &json!(true)), "{done:?}");
    let repeat = step(service, Method::POST, "k", json!({})).await;
    assert_eq!(repeat.json["answer"]["body"], body);
    step(service, Method::POST, "too-long", json!({})).await;
    let too_long = step(service, Method::PUT, "too-long", json!({"body": body.repeat(20)})).await;
    too_long.is_problem(413, "payload-too-large");
    let kept = step(service, Method::PUT, "too-long", json!({"status": 201})).await;
    assert_eq!(kept.status, 200, "the run goes on: {kept:?}");
}

#[store_test(memory)]
async fn large_response_of_a_client_loses_its_body(store: &TestStore) {
    let mut config = keylatch_testkit::config(store.url());
    config.idempotency.response_limit_bytes = 1000;
    let service = &Service::start_with(config).await;
    for (key, body, is_kept) in [("k-1", 1001, false), ("k-2", 500, true)] {
        step(service, Method::POST, key, json!({})).await;
        let result = json!({"status": 201, "headers": {"X-Order": "17"}, "body": "x".repeat(body)});
        for _ in 0..2 {
            let done = step(service, Method::PUT, key, result.clone()).await;
            assert_eq!((done.status.as_u16(), &done.json["state"]), (200, &json!("done")));
            assert_eq!(done.json["answer_kept"], is_kept, "{done:?}");
        }
        let repeat = step(service, Method::POST, key, json!({})).await;
        assert_eq!((repeat.status.as_u16(), &repeat.json["status"]), (200, &json!(201)));
        assert_eq!(repeat.header("idempotent-body"), if is_kept { "" } else { "not-kept" });
        let (all, rest) = (&repeat.json["answer"], &repeat.json["headers"]);
        assert_eq!((all.is_null(), rest.is_null()), (!is_kept, is_kept), "{repeat:?}");
        assert_eq!(if is_kept { &all["headers"] } else { rest }["x-order"], json!(["17"]));
    }
}
