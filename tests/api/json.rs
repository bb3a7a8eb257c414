//! Goal: every JSON body of the service ends with one newline, and `Content-Length` counts it.
//!
//! Method: the bytes of one answer of each kind.

use keylatch_testkit::Service;
use reqwest::Method;

#[tokio::test]
async fn json_bodies_end_with_a_newline() {
    let service = Service::start("memory:").await;
    let order = r#"{"amount": 1, "currency": "EUR"}"#;
    let failure = r#"{"amount": 1, "currency": "EUR", "fail": 402}"#;
    for (method, path, key, body, status) in [
        (Method::POST, "/v1/locks/a", "", "", 201),
        (Method::POST, "/v1/locks/a", "", "", 409),
        (Method::GET, "/v1/locks/a", "", "", 200),
        (Method::GET, "/v1/locks", "", "", 200),
        (Method::GET, "/v1/locks/b", "", "", 404),
        (Method::PUT, "/v1/locks/a", "", "", 428),
        (Method::POST, "/v1/locks/a/hold", "", "", 409),
        (Method::GET, "/v1/info", "", "", 200),
        (Method::GET, "/openapi.json", "", "", 200),
        (Method::GET, "/nothing", "", "", 404),
        (Method::POST, "/v1/idempotency/k", "", "", 201),
        (Method::POST, "/v1/idempotency/k", "", "", 409),
        (Method::GET, "/v1/idempotency/k", "", "", 200),
        (Method::POST, "/v1/orders", "k-1", order, 201),
        (Method::POST, "/v1/orders", "k-1", order, 201),
        (Method::POST, "/v1/orders", "k-1", failure, 422),
        (Method::POST, "/v1/orders", "k-2", failure, 402),
        (Method::POST, "/v1/orders", "", order, 400),
        (Method::GET, "/v1/orders", "", "", 200),
        (Method::GET, "/v1/orders/1", "", "", 200),
    ] {
        let what = format!("{method} {path}");
        let mut request = service.request(method, path);
        if !key.is_empty() {
            request = request.header("Idempotency-Key", key);
        }
        let answer = request.body(body).send().await.expect("an answer");
        assert_eq!(answer.status().as_u16(), status, "{what}");
        let kind = answer.headers()["content-type"].to_str().expect("text").to_owned();
        assert!(kind == "application/json" || kind == "application/problem+json", "{what}: {kind}");
        let length = answer.content_length();
        let text = answer.text().await.expect("text");
        assert_eq!(length, Some(text.len() as u64), "{what}");
        assert!(text.ends_with("}\n"), "{what}: {text}");
    }
}
