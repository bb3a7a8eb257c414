//! Goal: a person finds the outcome that is unknown and settles it with `keylatch key`.
//!
//! Method: the command as a process beside a service.

use std::io::Write as _;

use keylatch::http::Mode;
use keylatch_testkit::{Answer, Exit, Service, Upstream, eventually, guard_orders};
use reqwest::Method;
use serde_json::{Value, json};

use crate::{ask, is};

const SCOPE: [&str; 4] = ["--method", "POST", "--path", "/orders"];

async fn key(service: &Service, arguments: &[&str]) -> Exit {
    ask(&service.url(), "key", arguments).await
}

/// Begins a run whose lease ends soon without an outcome.
async fn begin_and_leave(service: &Service, name: &str) {
    let path = format!("/v1/idempotency/{name}?method=POST&path=/orders");
    let begun = service.request(Method::POST, &path).json(&json!({"lease_ms": 1500}));
    assert_eq!(Answer::of(begun).await.status, 201);
    let is_unknown = async || (service.get(&path).await.json["state"] == "unknown").then_some(());
    eventually(is_unknown).await;
}

#[tokio::test]
async fn unknown_outcome_is_found_and_settled() {
    let service = Service::start("memory:").await;
    begin_and_leave(&service, "order-17").await;
    let path = "/v1/idempotency/order-18?method=POST&path=/orders";
    Answer::of(service.request(Method::POST, path).json(&json!({}))).await;
    let listed = key(&service, &["list", "--state", "unknown"]).await;
    let rows: Vec<_> = listed.stdout.lines().collect();
    assert_eq!(rows.len(), 2, "{listed:?}");
    let row: Vec<_> = rows[1].split_whitespace().collect();
    assert_eq!(row[..4], ["unknown", "order-17", "POST", "/orders"], "{listed:?}");
    let mut body = tempfile::NamedTempFile::new().expect("a file");
    body.write_all(br#"{"id": 17}"#).expect("room");
    let file = body.path().display().to_string();
    let settle = ["--done", "--status", "201", "--body", &file, "--reason", "the bank has it"];
    let arguments = [&["resolve", "order-17"], &SCOPE[..], &settle, &["--by", "alice"]].concat();
    is(&key(&service, &arguments).await, 0, &[]);
    let shown = key(&service, &[&["show", "order-17"], &SCOPE[..]].concat()).await;
    for fact in ["done", "201", "alice", "the bank has it"] {
        assert!(shown.stdout.contains(fact), "{fact}: {shown:?}");
    }
    let shown = key(&service, &[&["show", "order-17", "--json"], &SCOPE[..]].concat()).await;
    let record: Value = serde_json::from_str(&shown.stdout).expect("JSON");
    assert_eq!((&record["state"], &record["status"]), (&json!("done"), &json!(201)), "{record}");
    is(&key(&service, &[&["erase", "order-17"], &SCOPE[..]].concat()).await, 0, &[]);
    let shown = key(&service, &[&["show", "order-17"], &SCOPE[..]].concat()).await;
    assert!(shown.stdout.contains("201") && !shown.stdout.contains("alice"), "{shown:?}");
    let other = ["--not-done", "--reason", "r"];
    is(&key(&service, &[&["resolve", "order-17"], &SCOPE[..], &other].concat()).await, 76, &[]);
}

#[tokio::test]
async fn outcome_that_was_not_is_settled_and_frees_the_key() {
    let service = Service::start("memory:").await;
    begin_and_leave(&service, "order-17").await;
    let settle = ["--not-done", "--reason", "the bank does not have it"];
    is(&key(&service, &[&["resolve", "order-17"], &SCOPE[..], &settle].concat()).await, 0, &[]);
    is(&key(&service, &[&["show", "order-17"], &SCOPE[..]].concat()).await, 1, &[]);
}

#[tokio::test]
async fn key_without_its_scope_is_found_elsewhere() {
    let service = Service::start("memory:").await;
    begin_and_leave(&service, "order-17").await;
    let shown = key(&service, &["show", "order-17"]).await;
    assert_eq!((shown.code, shown.stdout.as_str()), (Some(1), ""), "{shown:?}");
    assert!(shown.stderr.contains("there with --method POST --path /orders\n"), "{shown:?}");
}

#[tokio::test]
async fn outcome_to_settle_and_a_reason_are_asked_for() {
    let service = Service::start("memory:").await;
    begin_and_leave(&service, "k").await;
    for wrong in [
        &["--reason", "r"][..],
        &["--done", "--not-done", "--reason", "r"],
        &["--not-done"],
        &["--not-done", "--status", "201", "--reason", "r"],
        &["--done", "--body", "/no/such/file", "--reason", "r"],
    ] {
        let ended = key(&service, &[&["resolve", "k"], &SCOPE[..], wrong].concat()).await;
        assert_eq!(ended.code, Some(64), "{wrong:?}: {ended:?}");
    }
    let shown = key(&service, &[&["show", "k"], &SCOPE[..]].concat()).await;
    assert!(shown.stdout.contains("unknown"), "{shown:?}");
}

#[tokio::test]
async fn what_a_guard_observes_is_shown() {
    let upstream = Upstream::start().await;
    let observe = |guard: &mut keylatch::http::Guard| guard.mode = Mode::Observe;
    let service = guard_orders("memory:", &upstream.url(), observe).await;
    let other = service.order("k-1").json(&json!({"amount": 1}));
    for order in [service.order("k-1"), service.order("k-1"), other] {
        assert_eq!(Answer::of(order).await.status, 201);
    }
    let shown = key(&service, &["observed"]).await;
    assert_eq!(shown.code, Some(0), "{shown:?}");
    let sentence = "1 duplicate would have run once, 1 would have been 422";
    let rows: Vec<_> = shown.stdout.lines().skip(1).collect();
    assert_eq!(rows.len(), 2, "{shown:?}");
    for (row, time) in rows.iter().zip(["today", "since start"]) {
        assert!(row.starts_with("/orders") && row.contains(time), "{row}");
        assert!(row.ends_with(sentence), "{row}");
    }
    let shown = key(&service, &["observed", "--json"]).await;
    let counts: Value = serde_json::from_str(&shown.stdout).expect("JSON");
    let expected = json!({"first": 1, "replayed": 1, "mismatched": 1});
    assert_eq!(counts["/orders"]["since_start"], expected, "{counts}");
}
