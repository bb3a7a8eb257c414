//! Goal: what the API takes can be said with the Rust client.
//!
//! Method: the client sends all of its options to an upstream, and what arrives is compared with
//! the OpenAPI document.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use keylatch_client::{
    AcquireOptions, BeginReply, BreakLockRequest, Client, DescribedRequest, HeaderValues, Limit,
    OnceOptions, Response, Run, Scope, StatusCode,
};
use keylatch_testkit::{ReceivedRequest, Upstream};
use serde_json::{Value, json};

const SECOND: Duration = Duration::from_secs(1);

/// Grants and begins, so late that the client renews.
fn grant(request: &ReceivedRequest) -> (StatusCode, String) {
    let token = request.headers.get("lock-token").and_then(|token| token.to_str().ok());
    let lock = |name: &str| json!({"name": name, "fencing_token": 1, "owner": null});
    let mut granted = json!({
        "token": token, "ttl_ms": 1000, "waited_ms": 0, "valid_for_ms": 1, "expires_at": "",
        "name": "a", "fencing_token": 1, "owner": null, "locks": [lock("a"), lock("b")],
    });
    match request.uri.path() {
        "/v1/locks/a/hold" => return (StatusCode::NOT_IMPLEMENTED, String::new()),
        "/v1/locks/a/break" => granted["ends_in_ms"] = 1.into(),
        "/v1/idempotency/k" if request.method == "POST" => {
            granted = json!({"state": "in-flight", "fencing_token": 1, "attempts": 1, "token": token, "expires_in_ms": 1});
        }
        "/v1/idempotency/k" | "/v1/idempotency/k/fail" => {
            return (StatusCode::NO_CONTENT, String::new());
        }
        _ => {}
    }
    (StatusCode::CREATED, granted.to_string())
}

async fn begun(client: &Client) -> Run {
    let request = DescribedRequest {
        query: Some("a=1".to_owned()),
        content_type: Some("text/plain".to_owned()),
        headers: Some(BTreeMap::from([("a".to_owned(), HeaderValues::One("b".to_owned()))])),
        body_base64: Some("Yg==".to_owned()),
        ..DescribedRequest::default()
    };
    let options = OnceOptions {
        fingerprint: Some("f".to_owned()),
        request: Some(request),
        retention: Some(SECOND),
        scope: Scope {
            method: Some("POST".to_owned()),
            path: Some("/orders".to_owned()),
            principal: Some("ann".to_owned()),
            source: Some("json:/no".to_owned()),
        },
        ..OnceOptions::default()
    };
    match client.begin("k", &options).await {
        Ok(BeginReply::Begun(run)) => run,
        other => panic!("it begins: {other:?}"),
    }
}

async fn send_all(client: &Client) {
    let options = AcquireOptions {
        ttl: SECOND,
        wait: SECOND,
        max_ahead: Some(0),
        limit: Limit::Counted(2),
        entry: Some("e".to_owned()),
        ..AcquireOptions::default()
    };
    let _ = client.lock("a", &options).await;
    let hold = AcquireOptions { max_hold: Some(SECOND), ..options.clone() };
    let _ = client.hold("a", &hold).await;
    let _ = client.lock_all(["a", "b"], &AcquireOptions { entry: None, ..options }).await;
    let order = BreakLockRequest {
        fencing_token: Some(1),
        slot: Some(1),
        reason: Some("it hangs".to_owned()),
        by: Some("ann".to_owned()),
        grace_ms: Some(1),
    };
    client.break_lock("a", &order).await.expect("it breaks");
    let bytes = Response::builder().header("a", "b").body(vec![0xff]).expect("a response");
    begun(client).await.complete(bytes).await.expect("it ends");
    begun(client).await.complete(Response::new("text")).await.expect("it ends");
    begun(client).await.fail("half way").await.expect("it ends");
    client.close().await;
}

/// The schema of the body of a request.
fn schema_of(request: &ReceivedRequest) -> Option<&'static str> {
    Some(match (request.method.as_str(), request.uri.path()) {
        ("POST", "/v1/locks/a") => "CreateLock",
        ("PUT", "/v1/locks/a") => "RenewLock",
        ("POST", "/v1/locks/a/hold") => "HoldLock",
        ("POST", "/v1/locks") => "CreateLocks",
        ("PUT", "/v1/locks") => "RenewLocks",
        ("POST", "/v1/locks/a/break") => "BreakLock",
        ("POST", "/v1/idempotency/k") => "BeginRecord",
        ("PUT", "/v1/idempotency/k") => "CompleteRecord",
        ("POST", "/v1/idempotency/k/fail") => "FailRecord",
        _ => return None,
    })
}

/// The members that arrived, by the schema of their body.
async fn sent() -> BTreeMap<&'static str, BTreeSet<String>> {
    let upstream = Upstream::start().await;
    upstream.answers(|request| grant(&request));
    let client = Client::builder(&upstream.url()).timeout(SECOND).build().expect("a URL");
    send_all(&client).await;
    let mut sent = BTreeMap::<_, BTreeSet<_>>::new();
    for request in upstream.seen() {
        let Some(schema) = schema_of(&request) else { continue };
        let body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
        for (schema, members) in [(schema, &body), ("DescribedRequest", &body["request"])] {
            let said = members.as_object().into_iter().flatten().filter(|it| !it.1.is_null());
            sent.entry(schema).or_default().extend(said.map(|(name, _)| name.clone()));
        }
        if schema == "BeginRecord" {
            let query = request.uri.query().expect("the scope");
            assert_eq!(query, "method=POST&path=%2Forders&principal=ann&source=json%3A%2Fno");
        }
    }
    sent
}

#[tokio::test]
async fn every_member_of_the_api_can_be_sent() {
    let document: Value =
        serde_json::from_str(include_str!("../../openapi/openapi.json")).expect("JSON");
    let all = sent().await;
    assert_eq!(all.len(), 10, "{all:?}");
    let operations = document["paths"].as_object().into_iter().flat_map(|it| it.values());
    for operation in operations.filter_map(Value::as_object).flat_map(|it| it.values()) {
        let body = &operation["requestBody"]["content"]["application/json"]["schema"]["$ref"];
        let schema = body.as_str().and_then(|it| it.rsplit('/').next()).unwrap_or("FailRecord");
        let is_by_hand = matches!(schema, "EndWait" | "IssueKey" | "ResolveRecord");
        assert!(is_by_hand || all.contains_key(schema), "nothing sends {schema}");
    }
    for (schema, sent) in all {
        // In place of these the client sends others that can say more.
        let replaced: &[_] = match schema {
            "CompleteRecord" => &["json"],
            "DescribedRequest" => &["body"],
            _ => &[],
        };
        let members = document["components"]["schemas"][schema]["properties"].as_object();
        for member in members.expect(schema).keys().filter(|it| !replaced.contains(&it.as_str())) {
            assert!(sent.contains(member), "nothing sends {schema}.{member}: {sent:?}");
        }
    }
}
