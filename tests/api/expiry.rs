//! Goal: a lease ends with its TTL and has no effect afterwards.
//!
//! Method: requests to the routes without sockets, so that the test can move the clock of a store
//! in its own process; on every store.

use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::Request;
use axum::http::request::Builder;
use keylatch::app::App;
use keylatch_testkit::stores::memory;
use keylatch_testkit::{Answer, FromStore, TestStore, store_test};
use serde_json::{Value, json};
use tower::ServiceExt;

const MINE: &str = "a-token-of-the-clients-own";
const OTHER: &str = "a-token-of-somebody-else";
const TTL: Duration = Duration::from_secs(60);
/// When a lease of that TTL is over. It is longer by what its service takes the clock of an engine
/// to be ahead, which is at most the time that a request to the engine takes.
const OVER: Duration = Duration::from_secs(80);

#[store_test(locks, url)]
async fn what_is_left_of_a_lease_is_counted_from_its_grant_or_renewal(subject: &Subject) {
    let lease = subject.create(MINE).await;
    subject.advance(TTL / 2).await;
    let seen = subject.send("GET", None, "").await;
    let page = subject.send_request(Request::get("/v1/locks"), "").await;
    let refused = subject.create(OTHER).await;
    refused.is_problem(409, "lock-held");
    let again = subject.create(MINE).await;
    assert_eq!((again.status.as_u16(), &again.json["ttl_ms"]), (200, &60_000.into()), "{again:?}");
    for (left, of) in [
        (&seen.json["expires_in_ms"], "a look"),
        (&page.json["locks"][0]["expires_in_ms"], "a list"),
        (&refused.json["holder"]["expires_in_ms"], "a refusal"),
        (&again.json["valid_for_ms"], "a repeated grant"),
    ] {
        assert!(left.as_u64().is_some_and(|left| (20_000..50_000).contains(&left)), "{of}: {left}");
    }
    let renewed = subject.send("PUT", Some(MINE), r#"{"ttl_ms": 60000}"#).await;
    assert_eq!(renewed.status, 200, "{renewed:?}");
    for answer in [&seen, &again, &renewed] {
        assert_eq!(answer.fencing_token(), lease.fencing_token(), "{answer:?}");
    }
    subject.advance(TTL / 2).await;
    subject.create(OTHER).await.is_problem(409, "lock-held");
    subject.advance(OVER - TTL / 2).await;
    assert_eq!(subject.create(OTHER).await.status, 201);
}

#[store_test(locks, url)]
async fn expired_lease_is_over_for_its_holder_and_for_all_others(subject: &Subject) {
    let mut last = subject.create(MINE).await.fencing_token();
    subject.advance(OVER).await;
    subject.send("GET", None, "").await.is_problem(404, "lock-not-held");
    let page = subject.send_request(Request::get("/v1/locks"), "").await;
    assert_eq!(page.json, json!({"locks": []}));
    for method in ["PUT", "DELETE"] {
        subject.send(method, Some(MINE), "").await.is_problem(404, "lock-not-held");
    }
    for token in [MINE, OTHER] {
        let next = subject.create(token).await;
        assert_eq!(next.status, 201, "{next:?}");
        assert!(next.fencing_token() > last, "{next:?} after {last}");
        last = next.fencing_token();
        if token == MINE {
            subject.advance(OVER).await;
        }
    }
    for method in ["PUT", "DELETE"] {
        subject.send(method, Some(MINE), "").await.is_problem(412, "token-mismatch");
    }
    subject.create(MINE).await.is_problem(409, "lock-held");
    assert_eq!(subject.send("GET", None, "").await.fencing_token(), last);
    assert_eq!(subject.send("DELETE", Some(OTHER), "").await.status, 204);
}

/// A hundredth of the TTL and 2 ms, by which two clocks may differ.
#[tokio::test]
async fn grant_is_valid_for_its_ttl_less_a_margin() {
    let subject = Subject::from_store(&memory().await).await;
    let valid_for = subject.create(MINE).await.json["valid_for_ms"].as_u64().unwrap();
    assert!((1..=60_000 - 602).contains(&valid_for), "{valid_for}");
}

/// The routes of a service, and its store.
struct Subject {
    router: Router,
    store: TestStore,
}

impl FromStore for Subject {
    async fn from_store(store: &TestStore) -> Self {
        let app = App::new(store.config()).await.expect("the store opens");
        Self { router: app.router(), store: store.clone() }
    }
}

impl Subject {
    /// Lets time pass for the locks.
    async fn advance(&self, by: Duration) {
        self.store.advance(by).await;
    }

    async fn create(&self, token: &str) -> Answer {
        self.send("POST", Some(token), r#"{"ttl_ms": 60000}"#).await
    }

    async fn send(&self, method: &str, token: Option<&str>, body: &'static str) -> Answer {
        let mut request = Request::builder().method(method).uri("/v1/locks/deploy");
        if let Some(token) = token {
            request = request.header("Lock-Token", token);
        }
        self.send_request(request, body).await
    }

    async fn send_request(&self, request: Builder, body: &'static str) -> Answer {
        let request = request.header("Host", "localhost").body(Body::from(body));
        let request = request.expect("a request");
        let Ok(response) = self.router.clone().oneshot(request).await;
        let (parts, body) = response.into_parts();
        let bytes = to_bytes(body, usize::MAX).await.expect("the body arrives");
        let json = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        let text = String::from_utf8(bytes.to_vec()).expect("a body of text");
        Answer { status: parts.status, headers: parts.headers, json, text }
    }
}
