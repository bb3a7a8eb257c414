//! Goal: one client at a time holds a lock, and only its token renews or releases it.
//!
//! Method: create, renew, release and look over HTTP, on each store.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use jiff::{SignedDuration, Timestamp};
use keylatch_testkit::{Answer, Service, store_test};
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};

const MINE: &str = "a-token-of-the-clients-own";
const OTHER: &str = "a-token-of-somebody-else";
const MINUTE: Duration = Duration::from_secs(60);

#[store_test(service)]
async fn grant_has_every_member_a_holder_needs(service: &Service) {
    for (name, owner) in [("deploy", json!("ci runner 7")), ("report", Value::Null)] {
        let (sent, before) = (Instant::now(), Timestamp::now());
        let answer = service.create(name, &json!({"ttl_ms": 60_000, "owner": owner})).await;
        let took = sent.elapsed();
        assert_eq!(answer.status, 201, "{answer:?}");
        assert_eq!(answer.header("location"), format!("/v1/locks/{name}"));
        assert_is_lease(&answer, name, 60_000);
        assert_eq!(answer.json["owner"], owner);
        assert_is_valid_for_almost(&answer, MINUTE, took);
        assert_expires_after(&answer, before, MINUTE, took);
    }
}

#[store_test(service)]
async fn generated_token_has_24_bytes(service: &Service) {
    let tokens = [free(service, "a").await.token(), free(service, "b").await.token()];
    assert_ne!(tokens[0], tokens[1]);
    for token in tokens {
        // 24 bytes are 32 characters of base64url.
        assert_eq!(token.len(), 32, "{token}");
        assert!(token.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b)), "{token}");
    }
}

#[store_test(service)]
async fn empty_body_uses_defaults(service: &Service) {
    let bodies = ["", "{}", " {} ", "null", r#"{"ttl_ms": null, "owner": null, "wait_ms": null}"#];
    for (number, body) in (0..).zip(bodies) {
        let name = format!("default-{number}");
        let request = service.request(Method::POST, &format!("/v1/locks/{name}"));
        let answer = Answer::of(request.body(body)).await;
        assert_eq!(answer.status, 201, "{body:?}: {answer:?}");
        assert_is_lease(&answer, &name, 30_000);
        assert_eq!(answer.json["owner"], Value::Null);
    }
    let without = Answer::of(service.request(Method::POST, "/v1/locks/without-a-body")).await;
    assert_eq!(without.status, 201, "{without:?}");
    assert_is_lease(&without, "without-a-body", 30_000);
}

#[store_test(service)]
async fn json_is_read_with_any_content_type(service: &Service) {
    let types = [
        Some("application/x-www-form-urlencoded"),
        Some("application/json; charset=utf-8"),
        Some("text/plain"),
        None,
    ];
    for (number, kind) in (0..).zip(types) {
        let path = format!("/v1/locks/typed-{number}");
        let typed = |request: RequestBuilder, body: &'static str| match kind {
            Some(kind) => request.header("Content-Type", kind).body(body),
            None => request.body(body),
        };
        let request = typed(service.request(Method::POST, &path), r#"{"ttl_ms": 60000}"#);
        let created = Answer::of(request).await;
        assert_eq!(created.status, 201, "{kind:?}: {created:?}");
        assert_eq!(created.json["ttl_ms"], 60_000, "{kind:?}");
        let request = typed(service.request(Method::PUT, &path), r#"{"ttl_ms": 90000}"#);
        let renewed = Answer::of(request.header("Lock-Token", created.token())).await;
        assert_eq!(renewed.status, 200, "{kind:?}: {renewed:?}");
        assert_eq!(renewed.json["ttl_ms"], 90_000, "{kind:?}");
    }
}

#[store_test(service)]
async fn same_token_gets_the_same_grant(service: &Service) {
    let body = json!({"ttl_ms": 60_000, "owner": "first"});
    let first = service.create_as("deploy", MINE, &body).await;
    assert_eq!((first.status.as_u16(), first.token().as_str()), (201, MINE), "{first:?}");
    let body = json!({"ttl_ms": 90_000, "owner": "second"});
    let mut again = service.create_as("deploy", MINE, &body).await;
    assert_eq!((again.status.as_u16(), again.token().as_str()), (200, MINE), "{again:?}");
    let unchanged = again.json.as_object_mut().expect("an object").remove("unchanged");
    assert_eq!(unchanged, Some(json!(["ttl_ms", "owner"])));
    assert_is_lease(&again, "deploy", 60_000);
    assert_eq!(again.fencing_token(), first.fencing_token());
    assert_eq!(again.json["owner"], "first");
    let valid_for = again.json["valid_for_ms"].as_u64().expect("a number");
    assert!(valid_for <= 60_000 - 602, "the margin is that of the first TTL: {again:?}");
}

#[store_test(service)]
async fn second_client_gets_409_with_holder_and_retry_after(service: &Service) {
    // Half a second more makes it seen that seconds are rounded up.
    let holders = [("deploy", 30_500, json!("ci runner 7")), ("report", 60_500, Value::Null)];
    for (name, ttl, owner) in holders {
        let lease = service.create(name, &json!({"ttl_ms": ttl, "owner": owner})).await;
        let refused = service.create_as(name, OTHER, &json!({})).await;
        refused.is_problem(409, "lock-held");
        let holder = &refused.json["holder"];
        assert_eq!(members(holder), ["expires_in_ms", "fencing_token", "owner"]);
        assert_eq!(holder["owner"], owner);
        assert_eq!(holder["fencing_token"], lease.fencing_token());
        let left = holder["expires_in_ms"].as_u64().unwrap();
        assert!((ttl - 20_000..=ttl).contains(&left), "{left}");
        assert_eq!(refused.json["retry_after_ms"], left);
        assert_eq!(refused.header("retry-after"), left.div_ceil(1000).to_string());
        assert!(!refused.text.contains(&lease.token()), "{refused:?}");
        assert_eq!(refused.header("lock-token"), "");
    }
}

#[store_test(service)]
async fn renewal_restarts_ttl_and_keeps_fencing_token(service: &Service) {
    let created =
        service.create("deploy", &json!({"ttl_ms": 30_000, "owner": "ci runner 7"})).await;
    // Longer than what was left, and then shorter.
    for seconds in [120, 10] {
        let ttl = Duration::from_secs(seconds);
        let sent = Instant::now();
        let body = json!({"ttl_ms": seconds * 1000});
        let renewed = service.renew("deploy", &created.token(), &body).await;
        let took = sent.elapsed();
        assert_eq!(renewed.status, 200, "{renewed:?}");
        assert_is_lease(&renewed, "deploy", seconds * 1000);
        assert_eq!(renewed.json["owner"], "ci runner 7");
        assert_eq!(
            (renewed.fencing_token(), renewed.token()),
            (created.fencing_token(), created.token())
        );
        assert_is_valid_for_almost(&renewed, ttl, took);
        let left = service.look("deploy").await.json["expires_in_ms"].as_u64().unwrap();
        assert!(left <= seconds * 1000, "{left}");
        assert!(left + millis(sent.elapsed()) + 1 >= seconds * 1000, "{left}");
    }
}

#[store_test(service)]
async fn renewal_without_a_ttl_keeps_that_of_the_lease(service: &Service) {
    let created = service.create("deploy", &json!({"ttl_ms": 50_000})).await;
    let renewal = service.request(Method::PUT, "/v1/locks/deploy");
    let without_body = Answer::of(renewal.header("Lock-Token", created.token())).await;
    assert_is_lease(&without_body, "deploy", 50_000);
    let (none, longer) = (json!({}), json!({"ttl_ms": 55_000}));
    for (asked, ttl_ms) in [(&none, 50_000), (&longer, 55_000), (&none, 55_000)] {
        let (sent, token) = (Instant::now(), created.token());
        let renewed = service.renew("deploy", &token, asked).await;
        assert_is_lease(&renewed, "deploy", ttl_ms);
        let left = service.look("deploy").await.json["expires_in_ms"].as_u64().unwrap();
        assert!(left + millis(sent.elapsed()) + 1 >= ttl_ms, "{left}");
    }
}

#[store_test(service)]
async fn released_lock_is_free(service: &Service) {
    let lease = free(service, "deploy").await;
    let released = service.release("deploy", &lease.token()).await;
    assert_eq!((released.status.as_u16(), released.text.as_str()), (204, ""), "{released:?}");
    assert_eq!(released.header("content-type"), "");
    service.look("deploy").await.is_problem(404, "lock-not-held");
    service.release("deploy", &lease.token()).await.is_problem(404, "lock-not-held");
    service.renew("deploy", &lease.token(), &json!({})).await.is_problem(404, "lock-not-held");
    service.look("deploy").await.is_problem(404, "lock-not-held");
    free(service, "deploy").await;
}

#[store_test(service)]
async fn other_token_neither_renews_nor_releases(service: &Service) {
    let body = json!({"ttl_ms": 60_000, "owner": "ci runner 7"});
    let lease = service.create("deploy", &body).await;
    let before = service.look("deploy").await;
    let longer = json!({"ttl_ms": 3_600_000});
    service.renew("deploy", OTHER, &longer).await.is_problem(412, "token-mismatch");
    service.release("deploy", OTHER).await.is_problem(412, "token-mismatch");
    let after = service.look("deploy").await;
    for member in ["name", "owner", "fencing_token", "acquired_at"] {
        assert_eq!(after.json[member], before.json[member], "{after:?}");
    }
    let left = |answer: &Answer| answer.json["expires_in_ms"].as_u64().unwrap();
    assert!(left(&after) <= left(&before), "{after:?} after {before:?}");
    assert_eq!(service.renew("deploy", &lease.token(), &json!({})).await.status, 200);
}

#[store_test(service)]
async fn missing_token_neither_renews_nor_releases(service: &Service) {
    free(service, "held").await;
    for method in [Method::PUT, Method::DELETE] {
        for path in ["/v1/locks/held", "/v1/locks/free"] {
            let answer = Answer::of(service.request(method.clone(), path)).await;
            answer.is_problem(428, "token-required");
            assert_eq!(answer.json["field"], "Lock-Token");
        }
    }
    assert_eq!(service.look("held").await.status, 200);
}

#[store_test(service)]
async fn token_of_another_lock_is_refused(service: &Service) {
    service.create_as("mine", MINE, &json!({})).await;
    service.create_as("theirs", OTHER, &json!({})).await;
    service.renew("theirs", MINE, &json!({})).await.is_problem(412, "token-mismatch");
    service.release("theirs", MINE).await.is_problem(412, "token-mismatch");
    assert_eq!(service.look("never-used").await.json["detail"], "No client holds the lock.");
    service.release("free", MINE).await.is_problem(404, "lock-not-held");
    assert_eq!(service.release("mine", MINE).await.status, 204);
    assert_eq!(service.look("theirs").await.status, 200);
}

#[store_test(service)]
async fn lock_is_public_and_its_token_is_not(service: &Service) {
    let (sent, before) = (Instant::now(), Timestamp::now());
    let body = json!({"ttl_ms": 60_000, "owner": "ci runner 7"});
    let lease = service.create_as("deploy", MINE, &body).await;
    let seen = service.look("deploy").await;
    assert_eq!(seen.status, 200, "{seen:?}");
    assert_eq!(
        members(&seen.json),
        ["acquired_at", "expires_in_ms", "fencing_token", "name", "owner", "waiting"]
    );
    assert_eq!(seen.json["name"], "deploy");
    assert_eq!(seen.json["owner"], "ci runner 7");
    assert_eq!(seen.fencing_token(), lease.fencing_token());
    assert_eq!(seen.json["waiting"], 0);
    let left = seen.json["expires_in_ms"].as_u64().unwrap();
    assert!(left <= 60_000 && left + millis(sent.elapsed()) + 1 >= 60_000, "{left}");
    let acquired = timestamp(&seen.json["acquired_at"]);
    assert!(acquired >= before - SignedDuration::from_secs(1), "{acquired} and {before}");
    assert!(acquired <= Timestamp::now() + SignedDuration::from_secs(1), "{acquired}");
    assert!(!format!("{seen:?}").contains(MINE), "{seen:?}");
}

#[store_test(service)]
async fn fencing_tokens_rise_across_grants(service: &Service) {
    let mut last = 0;
    for _ in 0..10 {
        let lease = free(service, "deploy").await;
        assert!(lease.fencing_token() > last, "{} after {last}", lease.fencing_token());
        last = lease.fencing_token();
        assert_eq!(service.release("deploy", &lease.token()).await.status, 204);
    }
}

#[store_test(service)]
async fn one_of_many_concurrent_clients_acquires(service: &Service) {
    let body = json!({});
    let answers = join_all((0..100).map(|_| service.create("deploy", &body))).await;
    let (won, lost): (Vec<_>, Vec<_>) = answers.iter().partition(|answer| answer.status == 201);
    assert_eq!((won.len(), lost.len()), (1, 99));
    for answer in lost {
        answer.is_problem(409, "lock-held");
        assert_eq!(answer.json["holder"]["fencing_token"], won[0].fencing_token());
    }
    assert_eq!(service.release("deploy", &won[0].token()).await.status, 204);
}

#[store_test(service)]
async fn head_answers_like_get_without_a_body(service: &Service) {
    free(service, "held").await;
    for path in ["/v1/locks/held", "/v1/locks/free", "/v1/locks", "/v1/info", "/livez", "/readyz"] {
        let get = service.get(path).await;
        let head = Answer::of(service.request(Method::HEAD, path)).await;
        assert_eq!((head.status, head.text.as_str()), (get.status, ""), "{path}");
        assert_eq!(head.header("content-type"), get.header("content-type"), "{path}");
        assert_ne!(head.header("x-request-id"), "", "{path}");
    }
}

/// Creates a lock that is free.
async fn free(service: &Service, name: &str) -> Answer {
    let answer = service.create(name, &json!({})).await;
    assert_eq!(answer.status, 201, "{answer:?}");
    answer
}

/// Asserts that this is a lease with this TTL and every member and header that a lease has.
#[track_caller]
fn assert_is_lease(answer: &Answer, name: &str, ttl_ms: u64) {
    assert_eq!(
        members(&answer.json),
        [
            "expires_at",
            "fencing_token",
            "name",
            "owner",
            "token",
            "ttl_ms",
            "valid_for_ms",
            "waited_ms"
        ]
    );
    assert_eq!(answer.header("content-type"), "application/json");
    assert_eq!(answer.header("lock-token"), answer.token());
    assert_eq!(answer.json["name"], name);
    assert_eq!(answer.json["ttl_ms"], ttl_ms);
    assert!((1..1 << 53).contains(&answer.fencing_token()), "{answer:?}");
}

/// Asserts that what is valid is a TTL less 1 % and 2 ms, and less what the request took at most.
#[track_caller]
fn assert_is_valid_for_almost(answer: &Answer, ttl: Duration, took: Duration) {
    let most = millis(ttl - ttl / 100) - 2;
    let valid_for = answer.json["valid_for_ms"].as_u64().expect("a number");
    assert!(valid_for <= most, "{valid_for} of {ttl:?}");
    assert!(valid_for + millis(took) + 1 >= most, "{valid_for} of {ttl:?} after {took:?}");
}

/// Asserts that `expires_at` is a TTL after a moment within the request, give or take a second.
#[track_caller]
fn assert_expires_after(answer: &Answer, before: Timestamp, ttl: Duration, took: Duration) {
    let second = Duration::from_secs(1);
    let expires_at = timestamp(&answer.json["expires_at"]);
    assert!(expires_at >= before + ttl - second, "{expires_at} for {before} + {ttl:?}");
    assert!(expires_at <= before + ttl + took + second, "{expires_at} for {before} + {ttl:?}");
}

/// A time as the API writes it: RFC 3339, in UTC.
#[track_caller]
fn timestamp(value: &Value) -> Timestamp {
    let text = value.as_str().expect("a time");
    assert!(text.len() >= 20 && text.ends_with('Z') && text.contains('T'), "{text}");
    text.parse().expect("a time of RFC 3339")
}

pub(crate) fn members(object: &Value) -> Vec<&str> {
    let mut names: Vec<_> =
        object.as_object().expect("an object").keys().map(String::as_str).collect();
    names.sort_unstable();
    names
}

fn millis(duration: Duration) -> u64 {
    duration.as_millis().try_into().expect("a short time")
}

#[store_test(service)]
async fn repeated_create_names_what_it_did_not_change(service: &Service) {
    let first = json!({"ttl_ms": 20_000, "owner": "alice"});
    assert_eq!(service.create_as("deploy", MINE, &first).await.json["unchanged"], Value::Null);
    let cases = [
        (first, Value::Null),
        (json!({"ttl_ms": 20_000}), Value::Null),
        (json!({"ttl_ms": 20_001, "owner": "alice"}), json!(["ttl_ms"])),
        (json!({"ttl_ms": 20_000, "owner": "bob"}), json!(["owner"])),
        (json!({"owner": "bob"}), json!(["ttl_ms", "owner"])),
    ];
    for (body, unchanged) in cases {
        let again = service.create_as("deploy", MINE, &body).await;
        assert_eq!((again.status.as_u16(), &again.json["unchanged"]), (200, &unchanged), "{body}");
        assert_eq!(again.json["owner"], "alice", "{again:?}");
    }
}
