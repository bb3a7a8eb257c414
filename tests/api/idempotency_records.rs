//! Goal: a program that does its work itself runs it once with `/v1/idempotency`.
//!
//! Method: each operation of the API in each status of a record, on each store.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use keylatch_testkit::{Answer, Api, Service, eventually, store_test};
use reqwest::{Method, RequestBuilder};
use serde_json::{Map, Value, json};

const MINE: &str = "a-token-of-the-clients-own";
const OTHER: &str = "a-token-of-somebody-else";

fn call(api: &Api, method: Method, path: &str, token: &str, body: &Value) -> RequestBuilder {
    let request = api.request(method, &format!("/v1/idempotency/{path}")).json(body);
    if token.is_empty() { request } else { request.header("Lock-Token", token) }
}

async fn begin(api: &Api, key: &str, token: &str, body: Value) -> Answer {
    Answer::of(call(api, Method::POST, key, token, &body)).await
}

async fn complete(api: &Api, key: &str, token: &str, body: Value) -> Answer {
    Answer::of(call(api, Method::PUT, key, token, &body)).await
}

async fn abandon(api: &Api, key: &str, token: &str) -> Answer {
    Answer::of(call(api, Method::DELETE, key, token, &json!({}))).await
}

async fn renew(api: &Api, key: &str, token: &str) -> Answer {
    Answer::of(call(api, Method::POST, &format!("{key}/renew"), token, &json!({}))).await
}

async fn resolve(api: &Api, key: &str, body: Value) -> Answer {
    Answer::of(call(api, Method::POST, &format!("{key}/resolve"), "", &body)).await
}

async fn find(api: &Api, key: &str) -> Answer {
    api.get(&format!("/v1/idempotency/{key}")).await
}

fn at(record: &Answer, member: &str) -> Timestamp {
    let time = record.json[member].as_str().and_then(|time| time.parse().ok());
    time.unwrap_or_else(|| panic!("no {member} in {record:?}"))
}

#[store_test(memory)]
async fn first_begin_starts_the_run(service: &Service) {
    let first = begin(service, "order-17", "", json!({"fingerprint": "2 coffees"})).await;
    assert_eq!(first.status, 201, "{first:?}");
    let members = ["state", "attempts", "lease_expires_in_ms"].map(|name| &first.json[name]);
    assert_eq!(members, [&json!("in-flight"), &json!(1), &json!(30_000)], "{first:?}");
    assert_eq!(first.header("lock-token"), first.token());
    assert!(first.fencing_token() > 0);
    for token in ["", OTHER] {
        let second = begin(service, "order-17", token, json!({"fingerprint": "2 coffees"})).await;
        second.is_refusal(409, "request-in-progress", "same-key");
        assert_eq!(second.header("retry-after"), "1");
    }
    let record = find(service, "order-17").await;
    assert_eq!((record.status.as_u16(), record.fencing_token()), (200, first.fencing_token()));
    for member in ["begun_at", "expires_in_ms", "lease_expires_in_ms"] {
        assert!(!record.json[member].is_null(), "{member}: {record:?}");
    }
    for member in ["token", "answer", "ended_at", "reason", "status"] {
        assert!(record.json[member].is_null(), "{member}: {record:?}");
    }
    assert!(!record.text.contains(&first.token()));
}

#[store_test(memory)]
async fn other_fingerprint_is_refused_and_changes_nothing(service: &Service) {
    begin(service, "k", MINE, json!({"fingerprint": "a"})).await;
    for (token, body) in [
        (OTHER, json!({"fingerprint": "b"})),
        (MINE, json!({"fingerprint": "b"})),
        ("", json!({})),
        ("", json!({"fingerprint": "A"})),
    ] {
        let refused = begin(service, "k", token, body).await;
        refused.is_refusal(422, "idempotency-key-reused", "new-key");
    }
    assert_eq!(complete(service, "k", MINE, json!({})).await.status, 200);
    let refused = begin(service, "k", "", json!({"fingerprint": "b"})).await;
    refused.is_refusal(422, "idempotency-key-reused", "new-key");
}

#[store_test(service)]
async fn begin_after_completion_returns_the_response(service: &Service) {
    let begun = begin(service, "k", MINE, json!({"retention_ms": 3_600_000})).await;
    let headers = json!({"Location": "/orders/17", "Link": ["</a>", "</b>"]});
    let result = json!({"status": 201, "headers": headers, "json": {"id": 17}});
    let completed = complete(service, "k", MINE, result).await;
    assert_eq!(completed.status, 200, "{completed:?}");
    let expected = json!({
        "status": 201,
        "headers": {
            "location": ["/orders/17"],
            "link": ["</a>", "</b>"],
            "content-type": ["application/json"],
        },
        "body": "{\"id\":17}",
    });
    for token in ["", OTHER, MINE] {
        let again = begin(service, "k", token, json!({})).await;
        assert_eq!((again.status.as_u16(), &again.json["answer"]), (200, &expected), "{again:?}");
        assert_eq!(
            (&again.json["state"], again.fencing_token()),
            (&json!("done"), begun.fencing_token())
        );
        assert!(again.json["token"].is_null() && again.header("lock-token").is_empty());
    }
    let record = find(service, "k").await;
    let members = ["state", "status", "answer_kept"].map(|name| &record.json[name]);
    assert_eq!(members, [&json!("done"), &json!(201), &json!(true)]);
    assert!(record.json["answer"].is_null(), "{record:?}");
    assert!(record.json["expires_in_ms"].as_u64().is_some_and(|left| left <= 3_600_000));
    assert!(at(&record, "ended_at") >= at(&record, "begun_at"), "{record:?}");
}

#[store_test(memory)]
async fn response_may_be_json_text_or_bytes(service: &Service) {
    for (key, result, status, headers, body) in [
        ("a", json!({}), 200, json!({}), json!({"body": ""})),
        ("b", json!({"body": "b\u{e4}"}), 200, json!({}), json!({"body": "b\u{e4}"})),
        ("c", json!({"body_base64": "/v8="}), 200, json!({}), json!({"body_base64": "/v8="})),
        ("d", json!({"body_base64": "YQ=="}), 200, json!({}), json!({"body": "a"})),
        (
            "e",
            json!({"json": [1], "headers": {"content-type": "application/x+json"}, "status": 404}),
            404,
            json!({"content-type": ["application/x+json"]}),
            json!({"body": "[1]"}),
        ),
    ] {
        begin(service, key, MINE, json!({})).await;
        assert_eq!(complete(service, key, MINE, result).await.status, 200);
        let answer = &begin(service, key, "", json!({})).await.json["answer"];
        assert_eq!((&answer["status"], &answer["headers"]), (&json!(status), &headers), "{key}");
        for member in ["body", "body_base64"] {
            assert_eq!(answer[member], body[member], "{key}");
        }
    }
}

#[store_test(memory)]
async fn repeated_completion_succeeds_and_another_is_refused(service: &Service) {
    begin(service, "k", MINE, json!({})).await;
    for _ in 0..3 {
        assert_eq!(complete(service, "k", MINE, json!({"body": "a"})).await.status, 200);
    }
    let other = complete(service, "k", MINE, json!({"body": "b"})).await;
    other.is_problem(412, "token-mismatch");
    let stranger = complete(service, "k", OTHER, json!({"body": "a"})).await;
    stranger.is_problem(412, "token-mismatch");
    abandon(service, "k", MINE).await.is_problem(412, "token-mismatch");
    renew(service, "k", MINE).await.is_problem(412, "token-mismatch");
    let again = begin(service, "k", "", json!({})).await;
    assert_eq!(again.json["answer"]["body"], "a");
}

#[store_test(memory)]
async fn abandoned_key_is_free(service: &Service) {
    let first = begin(service, "k", MINE, json!({"fingerprint": "a"})).await;
    assert_eq!(abandon(service, "k", MINE).await.status, 204);
    find(service, "k").await.is_problem(404, "no-record");
    abandon(service, "k", MINE).await.is_problem(404, "no-record");
    complete(service, "k", MINE, json!({})).await.is_problem(404, "no-record");
    let second = begin(service, "k", OTHER, json!({"fingerprint": "b"})).await;
    assert_eq!((second.status.as_u16(), &second.json["attempts"]), (201, &json!(1)));
    assert!(second.fencing_token() > first.fencing_token());
}

#[store_test(memory)]
async fn run_ends_only_with_its_token(service: &Service) {
    begin(service, "k", MINE, json!({})).await;
    for (token, status, code) in [
        ("", 428, "token-required"),
        (OTHER, 412, "token-mismatch"),
        ("short", 400, "invalid-token"),
    ] {
        complete(service, "k", token, json!({})).await.is_problem(status, code);
        abandon(service, "k", token).await.is_problem(status, code);
        renew(service, "k", token).await.is_problem(status, code);
    }
    assert_eq!(find(service, "k").await.json["state"], "in-flight");
}

#[store_test(service)]
async fn renewed_run_outlives_its_lease(service: &Service) {
    begin(service, "k", MINE, json!({"lease_ms": 86_400_000})).await;
    assert_eq!(renew(service, "k", MINE).await.status, 204);
    let left = find(service, "k").await.json["lease_expires_in_ms"].as_u64();
    assert!(left.is_some_and(|left| left > 86_300_000), "{left:?}");
    let begun = Instant::now();
    begin(service, "short", MINE, json!({"lease_ms": 5000})).await;
    eventually(async || {
        assert_eq!(renew(service, "short", MINE).await.status, 204);
        (begun.elapsed() > Duration::from_secs(6)).then_some(())
    })
    .await;
    assert_eq!(complete(service, "short", MINE, json!({})).await.status, 200);
}

/// Waits for the end of a lease.
async fn unheard(service: &Service, key: &str) {
    eventually(async || (find(service, key).await.json["state"] == "unknown").then_some(())).await;
}

#[store_test(service)]
async fn expired_run_is_an_unknown_outcome(service: &Service) {
    let first = begin(service, "k", MINE, json!({"lease_ms": 1500})).await;
    unheard(service, "k").await;
    for token in ["", OTHER, MINE] {
        let refused = begin(service, "k", token, json!({})).await;
        refused.is_refusal(409, "outcome-unknown", "never");
    }
    let late = complete(service, "k", MINE, json!({})).await;
    late.is_refusal(409, "outcome-unknown", "never");
    abandon(service, "k", MINE).await.is_refusal(409, "outcome-unknown", "never");
    renew(service, "k", MINE).await.is_problem(412, "token-mismatch");
    let record = find(service, "k").await;
    assert_eq!(
        (record.fencing_token(), &record.json["reason"]),
        (first.fencing_token(), &json!("interrupted"))
    );
    assert!(at(&record, "ended_at") >= at(&record, "begun_at"), "{record:?}");
}

#[store_test(service)]
async fn unknown_outcome_is_resolved_once_by_its_fencing_token(service: &Service) {
    for key in ["a", "b"] {
        begin(service, key, MINE, json!({"lease_ms": 1500})).await;
        unheard(service, key).await;
        let fencing_token = find(service, key).await.fencing_token();
        for outcome in ["completed", "not-executed"] {
            let other = json!({"outcome": outcome, "fencing_token": fencing_token - 1});
            resolve(service, key, other).await.is_problem(409, "nothing-to-resolve");
        }
    }
    let answer = json!({"status": 201, "body": "a"});
    let completed = json!({"outcome": "completed", "answer": answer});
    for _ in 0..2 {
        let resolved = resolve(service, "a", completed.clone()).await;
        assert_eq!((resolved.status.as_u16(), &resolved.json["state"]), (200, &json!("done")));
    }
    let other = json!({"outcome": "completed", "answer": {"body": "b"}});
    resolve(service, "a", other).await.is_problem(409, "nothing-to-resolve");
    assert_eq!(begin(service, "a", "", json!({})).await.json["answer"]["body"], "a");

    let freed = resolve(service, "b", json!({"outcome": "not-executed"})).await;
    assert_eq!((freed.status.as_u16(), &*freed.text), (204, ""));
    resolve(service, "b", json!({"outcome": "not-executed"})).await.is_problem(404, "no-record");
    assert_eq!(begin(service, "b", OTHER, json!({})).await.status, 201);
}

#[store_test(memory)]
async fn keys_of_two_scopes_are_separate(service: &Service) {
    let scopes =
        ["", "?method=POST", "?path=/a", "?principal=ada", "?method=POST&path=/a&principal=ada"];
    for scope in scopes {
        let key = format!("k{scope}");
        assert_eq!(begin(service, &key, MINE, json!({})).await.status, 201, "{scope}");
        assert_eq!(complete(service, &key, MINE, json!({"body": scope})).await.status, 200);
    }
    for scope in scopes {
        let again = begin(service, &format!("k{scope}"), "", json!({})).await;
        assert_eq!(again.json["answer"]["body"], scope);
    }
    let spelt = begin(service, "k?principal=ada&path=/%61/&method=post", "", json!({})).await;
    assert_eq!(spelt.json["answer"]["body"], scopes[4]);
}

#[store_test(memory)]
async fn invalid_request_is_refused(service: &Service) {
    for key in ["%20", "a%09b", "%FF", "%C3%BC", "a%0A", &"k".repeat(256)] {
        begin(service, key, "", json!({})).await.is_problem(400, "invalid-key");
        find(service, key).await.is_problem(400, "invalid-key");
    }
    for query in ["?x=1", "?method=POST&method=PUT"] {
        begin(service, &format!("k{query}"), "", json!({})).await.is_problem(400, "invalid-query");
    }
    for (field, body) in [
        ("fingerprint", json!({"fingerprint": "x".repeat(1025)})),
        ("lease_ms", json!({"lease_ms": 99})),
        ("lease_ms", json!({"lease_ms": 86_400_001})),
        ("retention_ms", json!({"retention_ms": 999})),
        ("retention_ms", json!({"retention_ms": 31_536_000_001_u64})),
        ("on_crash", json!({"on_crash": "again"})),
        ("more", json!({"more": 1})),
    ] {
        let refused = begin(service, "k", "", body).await;
        refused.is_problem(400, "invalid-body");
        assert_eq!(refused.json["field"], field, "{refused:?}");
    }
    find(service, "k").await.is_problem(404, "no-record");
}

#[store_test(memory)]
async fn invalid_response_is_refused(service: &Service) {
    begin(service, "k", MINE, json!({})).await;
    for (field, body) in [
        ("status", json!({"status": 199})),
        ("status", json!({"status": 600})),
        ("headers", json!({"headers": {"a b": "c"}})),
        ("headers", json!({"headers": {"a": "b\n"}})),
        ("body_base64", json!({"body_base64": "?"})),
        ("body", json!({"body": "a", "json": 1})),
    ] {
        let refused = complete(service, "k", MINE, body).await;
        refused.is_problem(400, "invalid-body");
        assert_eq!(refused.json["field"], field, "{refused:?}");
    }
    assert_eq!(find(service, "k").await.json["state"], "in-flight");
    for body in
        [json!({}), json!({"outcome": "lost"}), json!({"outcome": "not-executed", "answer": {}})]
    {
        resolve(service, "k", body).await.is_problem(400, "invalid-body");
    }
}

#[tokio::test]
async fn answer_with_forty_thousand_headers_is_refused() {
    let service = Service::set(|config| config.server.body_limit_bytes = 4 << 20).await;
    let token = begin(&service, "order-17", "", json!({"fingerprint": "x"})).await.token();
    let headers: Map<_, _> = (0..40_000).map(|place| (format!("x-{place}"), json!("1"))).collect();
    let refused = complete(&service, "order-17", &token, json!({"headers": headers})).await;
    refused.is_problem(400, "invalid-body");
    assert_eq!(refused.json["field"], "headers", "{refused:?}");
    assert_eq!(complete(&service, "order-17", &token, json!({})).await.status, 200);
}
