//! Goal: an answer with personal data can be erased and its key stays used.
//!
//! Method: over HTTP; what is left is read by a repeat and by a look.

use keylatch_testkit::{Answer, Service, eventually};
use reqwest::Method;
use serde_json::{Value, json};

const RECORD: &str = "/v1/idempotency/order-17?method=POST&path=/orders";
const ANSWER: &str = "/v1/idempotency/order-17/answer?method=POST&path=/orders";

async fn send(service: &Service, method: Method, path: &str, body: Value) -> Answer {
    Answer::of(service.request(method, path).json(&body)).await
}

async fn erase(service: &Service) -> Answer {
    Answer::of(service.request(Method::DELETE, ANSWER)).await
}

/// A key whose request was carried out, with this answer.
async fn complete(service: &Service, body: &str) {
    let begun = send(service, Method::POST, RECORD, json!({"fingerprint": "f"})).await;
    let done = json!({"status": 201, "body": body, "headers": {"x-person": "Zoë"}});
    let done = service.request(Method::PUT, RECORD).header("Lock-Token", begun.token()).json(&done);
    assert!(Answer::of(done).await.status.is_success());
}

#[tokio::test]
async fn erased_answer_is_gone_and_its_key_stays_used() {
    let service = Service::start("memory:").await;
    complete(&service, "Zoë, line 7").await;
    let before = service.get(RECORD).await.json;
    let kept = service.metric("keylatch_idempotency_kept_bytes").await;
    for _ in 0..2 {
        let erased = erase(&service).await;
        assert_eq!(erased.status, 204, "{erased:?}");
    }
    let after = service.get(RECORD).await.json;
    assert_eq!((&after["state"], &after["status"]), (&json!("done"), &json!(201)), "{after}");
    assert_eq!(after["answer_kept"], json!(false), "{after}");
    for same in ["fencing_token", "attempts", "begun_at", "ended_at"] {
        assert_eq!(after[same], before[same], "{same}");
    }
    let again = send(&service, Method::POST, RECORD, json!({"fingerprint": "f"})).await;
    assert_eq!(again.json["state"], "done", "{again:?}");
    assert!(!again.text.contains("Zo"), "{again:?}");
    assert!(service.metric("keylatch_idempotency_kept_bytes").await < kept);
}

#[tokio::test]
async fn there_is_nothing_to_erase_before_an_outcome() {
    let service = Service::start("memory:").await;
    erase(&service).await.is_problem(404, "no-record");
    send(&service, Method::POST, RECORD, json!({})).await;
    erase(&service).await.is_problem(409, "request-in-progress");
    assert_eq!(service.get(RECORD).await.json["state"], "in-flight");
}

#[tokio::test]
async fn unknown_outcome_is_not_erased() {
    let service = Service::start("memory:").await;
    send(&service, Method::POST, RECORD, json!({"lease_ms": 1500})).await;
    let unknown = async || (service.get(RECORD).await.json["state"] == "unknown").then_some(());
    eventually(unknown).await;
    let refused = erase(&service).await;
    refused.is_problem(409, "outcome-unknown");
    assert!(refused.json["resolve"].is_string(), "{refused:?}");
}

#[tokio::test]
async fn erased_answer_is_gone_from_the_store_after_a_restart() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = format!("embedded:{}", directory.path().join("data").display());
    let service = Service::start(&store).await;
    complete(&service, "Zoë, line 7").await;
    assert_eq!(erase(&service).await.status, 204);
    service.stop().await;
    let service = Service::start(&store).await;
    let after = service.get(RECORD).await.json;
    assert_eq!((&after["state"], &after["status"]), (&json!("done"), &json!(201)), "{after}");
    assert_eq!(after["answer_kept"], json!(false), "{after}");
}
