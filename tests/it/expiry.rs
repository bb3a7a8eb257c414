//! Leases that run out, on every store, over a router without sockets: so a test can move on the
//! clock of a store in its own process.

use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::Request;
use axum::http::request::Builder;
use keylatch::app::App;
use serde_json::{Value, json};
use tempfile::TempDir;
use tower::ServiceExt;

use crate::support::{Answer, RedisServer, config};

/// Defines a test of each function for each store.
macro_rules! on_each_store {
    ($($store:ident => $start:expr;)+) => {
        $(on_each_store! { @store $store, $start,
            an_expired_lock_is_free,
            an_expired_lease_is_neither_renewed_nor_released,
            an_expired_lease_does_nothing_to_the_next_holder,
            the_token_of_an_expired_lease_is_a_new_grant,
            a_grant_that_is_repeated_is_valid_for_what_is_left,
            a_renewed_lease_outlives_its_first_ttl,
        })+
    };
    (@store $store:ident, $start:expr, $($function:ident,)+) => {
        mod $store {
            $(#[tokio::test]
            async fn $function() {
                super::$function(&$start.await).await;
            })+
        }
    };
}

on_each_store! {
    embedded => super::embedded();
    memory => super::memory();
    redis => super::redis();
}

const MINE: &str = "a-token-of-the-clients-own";
const OTHER: &str = "a-token-of-somebody-else";
const TTL: Duration = Duration::from_secs(60);

async fn an_expired_lock_is_free(subject: &Subject) {
    let lease = subject.create(MINE).await;
    subject.advance(TTL / 2).await;
    let seen = subject.send("GET", None, "").await;
    assert_eq!((seen.status.as_u16(), seen.fence()), (200, lease.fence()), "{seen:?}");
    let page = subject.ask(Request::get("/v1/locks"), "").await;
    for shown in [&seen.json, &page.json["locks"][0]] {
        let left = shown["expires_in_ms"].as_u64().unwrap();
        assert!((20_000..=30_000).contains(&left), "{shown}");
    }
    subject.advance(TTL / 2).await;
    subject.send("GET", None, "").await.is_problem(404, "lock-not-held");
    let page = subject.ask(Request::get("/v1/locks"), "").await;
    assert_eq!(page.json, json!({"locks": []}));
    let next = subject.create(OTHER).await;
    assert_eq!(next.status, 201, "{next:?}");
    assert!(next.fence() > lease.fence(), "{next:?} after {lease:?}");
}

async fn an_expired_lease_is_neither_renewed_nor_released(subject: &Subject) {
    for method in ["PUT", "DELETE"] {
        assert_eq!(subject.create(MINE).await.status, 201);
        subject.advance(TTL).await;
        subject.send(method, Some(MINE), "").await.is_problem(404, "lock-not-held");
    }
    subject.send("GET", None, "").await.is_problem(404, "lock-not-held");
}

async fn an_expired_lease_does_nothing_to_the_next_holder(subject: &Subject) {
    subject.create(MINE).await;
    subject.advance(TTL).await;
    let next = subject.create(OTHER).await;
    assert_eq!(next.status, 201, "{next:?}");
    for method in ["PUT", "DELETE"] {
        subject.send(method, Some(MINE), "").await.is_problem(412, "token-mismatch");
    }
    subject.create(MINE).await.is_problem(409, "lock-held");
    let seen = subject.send("GET", None, "").await;
    assert_eq!(seen.fence(), next.fence());
    assert_eq!(subject.send("DELETE", Some(OTHER), "").await.status, 204);
}

async fn the_token_of_an_expired_lease_is_a_new_grant(subject: &Subject) {
    let first = subject.create(MINE).await;
    subject.advance(TTL).await;
    let second = subject.create(MINE).await;
    assert_eq!(second.status, 201, "{second:?}");
    assert!(second.fence() > first.fence(), "{second:?} after {first:?}");
}

async fn a_grant_that_is_repeated_is_valid_for_what_is_left(subject: &Subject) {
    subject.create(MINE).await;
    subject.advance(TTL / 2).await;
    let again = subject.create(MINE).await;
    assert_eq!(again.status, 200, "{again:?}");
    assert_eq!(again.json["ttl_ms"], 60_000);
    // Half of the TTL less the margin of the whole TTL, and less what the test took.
    let valid_for = again.json["valid_for_ms"].as_u64().unwrap();
    assert!((20_000..=30_000 - 602).contains(&valid_for), "{valid_for}");
    let refused = subject.create(OTHER).await;
    let left = refused.json["holder"]["expires_in_ms"].as_u64().unwrap();
    assert!((20_000..=30_000).contains(&left), "{left}");
}

async fn a_renewed_lease_outlives_its_first_ttl(subject: &Subject) {
    let lease = subject.create(MINE).await;
    subject.advance(TTL / 2).await;
    let renewed = subject.send("PUT", Some(MINE), r#"{"ttl_ms": 60000}"#).await;
    assert_eq!((renewed.status.as_u16(), renewed.fence()), (200, lease.fence()), "{renewed:?}");
    subject.advance(TTL / 2).await;
    subject.create(OTHER).await.is_problem(409, "lock-held");
    subject.advance(TTL / 2).await;
    assert_eq!(subject.create(OTHER).await.status, 201);
}

/// The routes of a service, and what its store needs to live.
struct Subject {
    router: Router,
    redis: Option<RedisServer>,
    _directory: Option<TempDir>,
}

async fn embedded() -> Subject {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let router = router(&format!("embedded:{}", directory.path().display())).await;
    Subject { router, redis: None, _directory: Some(directory) }
}

async fn memory() -> Subject {
    Subject { router: router("memory:").await, redis: None, _directory: None }
}

async fn redis() -> Subject {
    let redis = RedisServer::start().await;
    Subject { router: router(&redis.url()).await, redis: Some(redis), _directory: None }
}

async fn router(store: &str) -> Router {
    App::new(config(store)).await.expect("the store opens").router()
}

impl Subject {
    /// Lets a time pass for the locks.
    async fn advance(&self, by: Duration) {
        match &self.redis {
            Some(redis) => redis.age(by).await,
            None => {
                // A clock that stood still between two steps would run ahead by itself whenever
                // all there is to wait for is the disk.
                tokio::time::pause();
                tokio::time::advance(by).await;
                tokio::time::resume();
            }
        }
    }

    async fn create(&self, token: &str) -> Answer {
        self.send("POST", Some(token), r#"{"ttl_ms": 60000}"#).await
    }

    async fn send(&self, method: &str, token: Option<&str>, body: &'static str) -> Answer {
        let mut request = Request::builder().method(method).uri("/v1/locks/deploy");
        if let Some(token) = token {
            request = request.header("Lock-Token", token);
        }
        self.ask(request, body).await
    }

    async fn ask(&self, request: Builder, body: &'static str) -> Answer {
        let request = request.body(Body::from(body)).expect("a request");
        let Ok(response) = self.router.clone().oneshot(request).await;
        let (parts, body) = response.into_parts();
        let bytes = to_bytes(body, usize::MAX).await.expect("the body arrives");
        let json = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        let text = String::from_utf8(bytes.to_vec()).expect("a body of text");
        Answer { status: parts.status, headers: parts.headers, json, text }
    }
}
