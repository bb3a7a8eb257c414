//! Goal: a browser lets pages of listed origins use the API, and pages of no other origin.
//!
//! Method: preflight requests and requests with an `Origin`, and a look at the headers of the answers.

use keylatch_testkit::{Answer, Service, config};
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
