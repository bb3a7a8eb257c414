//! Goal: a browser lets pages of listed origins use the API, and pages of no other origin, whatever
//! an upstream allows.
//!
//! Method: preflight requests and requests with an `Origin`, and a look at the headers of the
//! answers.

use keylatch_testkit::{Answer, Service, Shop, Upstream, config};
use reqwest::Method;

const SHOP: &str = "https://shop.example";

#[tokio::test]
async fn allowed_origin_may_send_a_key_and_read_the_headers_it_needs() {
    let service = shop().await;
    let asked = service
        .request(Method::OPTIONS, "/v1/orders")
        .header("Origin", SHOP)
        .header("Access-Control-Request-Method", "POST")
        .header("Access-Control-Request-Headers", "content-type,idempotency-key");
    let preflight = Answer::of(asked).await;
    assert_eq!(preflight.status, 200, "{preflight:?}");
    assert_eq!(preflight.header("access-control-allow-origin"), SHOP);
    assert!(lists(&preflight, "access-control-allow-methods", "POST"), "{preflight:?}");
    for header in ["content-type", "idempotency-key", "lock-token", "prefer"] {
        assert!(lists(&preflight, "access-control-allow-headers", header), "{preflight:?}");
    }
    let answer = order(&service, SHOP).await;
    assert_eq!(answer.status, 201, "{answer:?}");
    assert_eq!(answer.header("access-control-allow-origin"), SHOP);
    for header in [
        "idempotent-replayed",
        "idempotent-body",
        "retry-after",
        "location",
        "idempotency-key-expires",
    ] {
        assert!(lists(&answer, "access-control-expose-headers", header), "{answer:?}");
    }
    // A refusal is read as well, or the page could not tell what to do.
    let refused = service.request(Method::POST, "/v1/orders").header("Origin", SHOP);
    let refused = Answer::of(refused).await;
    refused.is_problem(400, "key-required");
    assert_eq!(refused.header("access-control-allow-origin"), SHOP);
}

#[tokio::test]
async fn other_origin_is_allowed_nothing() {
    let answer = order(&shop().await, "https://other.example").await;
    assert_eq!(answer.header("access-control-allow-origin"), "", "{answer:?}");
    answer.is_problem(403, "cross-origin");
    let by_default = order(&Service::start("memory:").await, SHOP).await;
    by_default.is_problem(403, "cross-origin");
    assert_eq!(by_default.header("access-control-allow-origin"), "", "{by_default:?}");
}

async fn shop() -> Service {
    let mut config = config("memory:");
    config.cors.allow_origins = vec![SHOP.to_owned()];
    Service::start_with(config).await
}

async fn order(service: &Service, origin: &str) -> Answer {
    let request = service.request(Method::POST, "/v1/orders").header("Origin", origin);
    let body = r#"{"amount":1,"currency":"EUR"}"#;
    let request = request.header("Content-Type", "application/json");
    Answer::of(request.header("Idempotency-Key", "k-1").body(body)).await
}

fn lists(answer: &Answer, header: &str, value: &str) -> bool {
    answer.header(header).split(',').any(|one| one.trim().eq_ignore_ascii_case(value))
}

/// keylatch in front of an upstream that allows every page of another origin everything.
async fn before_lenient_upstream(allow_origins: &[&str]) -> (Service, Upstream) {
    let upstream = Upstream::start().await;
    upstream.answers(|_| {
        [
            ("access-control-allow-origin", "https://other.example"),
            ("access-control-allow-credentials", "true"),
            ("access-control-expose-headers", "x-secret"),
            ("vary", "accept-language"),
        ]
    });
    let mut config = config("memory:");
    config.cors.allow_origins = allow_origins.iter().map(|&origin| origin.to_owned()).collect();
    config.guard = vec![Shop::guard(&upstream.url())];
    (Service::start_with(config).await, upstream)
}

async fn sent(service: &Service, method: Method, origin: &str) -> Answer {
    let request = service.request(method, "/orders").header("Origin", origin);
    Answer::of(request.header("Idempotency-Key", "k-1")).await
}

#[tokio::test]
async fn cors_headers_of_an_upstream_are_not_mixed_with_those_of_keylatch() {
    for allowed in [SHOP, "*"] {
        let (service, _upstream) = before_lenient_upstream(&[allowed]).await;
        // Unguarded, guarded and replayed.
        for method in [Method::GET, Method::POST, Method::POST] {
            let answer = sent(&service, method, SHOP).await;
            assert_eq!(answer.status, 200, "{answer:?}");
            assert_eq!(answer.header("access-control-allow-origin"), allowed, "{answer:?}");
            assert_eq!(answer.header("access-control-allow-credentials"), "", "{answer:?}");
            assert!(!lists(&answer, "access-control-expose-headers", "x-secret"), "{answer:?}");
            let vary = answer.headers.get_all("vary").iter();
            assert!(vary.into_iter().any(|value| value == "accept-language"), "{answer:?}");
        }
    }
    let (service, _upstream) = before_lenient_upstream(&[SHOP]).await;
    let answer = sent(&service, Method::GET, "https://other.example").await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.header("access-control-allow-origin"), "", "keylatch does not allow it");
    assert_eq!(answer.header("access-control-allow-credentials"), "", "{answer:?}");
}

#[tokio::test]
async fn upstream_answers_for_cors_where_keylatch_does_not() {
    let (service, _upstream) = before_lenient_upstream(&[]).await;
    let answer = sent(&service, Method::GET, "https://other.example").await;
    assert_eq!(answer.header("access-control-allow-origin"), "https://other.example");
    assert_eq!(answer.header("access-control-allow-credentials"), "true", "{answer:?}");
    assert!(lists(&answer, "access-control-expose-headers", "x-secret"), "{answer:?}");
}
