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
async fn expired_lock_is_free(subject: &Subject) {
    let lease = subject.create(MINE).await;
    subject.advance(TTL / 2).await;
    let seen = subject.send("GET", None, "").await;
    assert_eq!(
        (seen.status.as_u16(), seen.fencing_token()),
        (200, lease.fencing_token()),
        "{seen:?}"
    );
    let page = subject.send_request(Request::get("/v1/locks"), "").await;
    for shown in [&seen.json, &page.json["locks"][0]] {
        let left = shown["expires_in_ms"].as_u64().unwrap();
        assert!((20_000..50_000).contains(&left), "{shown}");
    }
    subject.advance(OVER - TTL / 2).await;
    subject.send("GET", None, "").await.is_problem(404, "lock-not-held");
    let page = subject.send_request(Request::get("/v1/locks"), "").await;
    assert_eq!(page.json, json!({"locks": []}));
    let next = subject.create(OTHER).await;
    assert_eq!(next.status, 201, "{next:?}");
    assert!(next.fencing_token() > lease.fencing_token(), "{next:?} after {lease:?}");
}

#[store_test(locks, url)]
async fn expired_lease_is_neither_renewed_nor_released(subject: &Subject) {
    for method in ["PUT", "DELETE"] {
        assert_eq!(subject.create(MINE).await.status, 201);
        subject.advance(OVER).await;
        subject.send(method, Some(MINE), "").await.is_problem(404, "lock-not-held");
    }
    subject.send("GET", None, "").await.is_problem(404, "lock-not-held");
}

#[store_test(locks, url)]
async fn expired_lease_does_not_affect_the_next_holder(subject: &Subject) {
    subject.create(MINE).await;
    subject.advance(OVER).await;
    let next = subject.create(OTHER).await;
    assert_eq!(next.status, 201, "{next:?}");
    for method in ["PUT", "DELETE"] {
        subject.send(method, Some(MINE), "").await.is_problem(412, "token-mismatch");
    }
    subject.create(MINE).await.is_problem(409, "lock-held");
    let seen = subject.send("GET", None, "").await;
    assert_eq!(seen.fencing_token(), next.fencing_token());
    assert_eq!(subject.send("DELETE", Some(OTHER), "").await.status, 204);
}

#[store_test(locks, url)]
async fn token_of_an_expired_lease_gets_a_new_grant(subject: &Subject) {
    let first = subject.create(MINE).await;
    subject.advance(OVER).await;
    let second = subject.create(MINE).await;
    assert_eq!(second.status, 201, "{second:?}");
    assert!(second.fencing_token() > first.fencing_token(), "{second:?} after {first:?}");
}

#[store_test(locks, url)]
async fn repeated_grant_is_valid_for_the_rest_of_its_lease(subject: &Subject) {
    subject.create(MINE).await;
    subject.advance(TTL / 2).await;
    let again = subject.create(MINE).await;
    assert_eq!(again.status, 200, "{again:?}");
    assert_eq!(again.json["ttl_ms"], 60_000);
    let valid_for = again.json["valid_for_ms"].as_u64().unwrap();
    assert!((20_000..50_000).contains(&valid_for), "{valid_for}");
    let refused = subject.create(OTHER).await;
    let left = refused.json["holder"]["expires_in_ms"].as_u64().unwrap();
    assert!((20_000..50_000).contains(&left), "{left}");
}

/// A hundredth of the TTL and 2 ms, by which two clocks may differ.
#[tokio::test]
async fn grant_is_valid_for_its_ttl_less_a_margin() {
    let subject = Subject::from_store(&memory().await).await;
    let valid_for = subject.create(MINE).await.json["valid_for_ms"].as_u64().unwrap();
    assert!((1..=60_000 - 602).contains(&valid_for), "{valid_for}");
}

#[store_test(locks, url)]
async fn renewed_lease_outlives_its_first_ttl(subject: &Subject) {
    let lease = subject.create(MINE).await;
    subject.advance(TTL / 2).await;
    let renewed = subject.send("PUT", Some(MINE), r#"{"ttl_ms": 60000}"#).await;
    assert_eq!(
        (renewed.status.as_u16(), renewed.fencing_token()),
        (200, lease.fencing_token()),
        "{renewed:?}"
    );
    subject.advance(TTL / 2).await;
    subject.create(OTHER).await.is_problem(409, "lock-held");
    subject.advance(OVER - TTL / 2).await;
    assert_eq!(subject.create(OTHER).await.status, 201);
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
