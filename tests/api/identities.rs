//! Goal: where there are identities, a client proves which one it is by an API key, or reads 401;
//! the identity is its principal, and another's only where it may act for that.
//!
//! Method: keys in every form and in none, over HTTP. What each identity may do is in the file
//! `permissions`.

use axum::body::Body;
use axum::http::Request;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use keylatch::app::App;
use keylatch::config::Switch;
use keylatch::http::{Guard, GuardAccess};
use keylatch_testkit::{Answer, Keyring, LogCapture, Service, Upstream, eventually};
use reqwest::{Method, StatusCode};
use serde_json::json;
use tower::ServiceExt as _;

const ALL: &str = "allow = [{ locks = \"\", may = [\"acquire\", \"read\", \"break\"] }, \
                   { keys = \"\", may = [\"use\", \"read\", \"resolve\"] }]";
/// One path for each part of the API.
const ASKING: [&str; 5] =
    ["/v1/locks", "/v1/locks/a/history", "/v1/idempotency/k", "/v1/info", "/metrics"];

async fn get(service: &Service, path: &str, authorization: &str) -> Answer {
    Answer::of(service.request(Method::GET, path).header("authorization", authorization)).await
}

fn basic(pair: &str) -> String {
    format!("Basic {}", STANDARD.encode(pair))
}

#[tokio::test]
async fn key_is_taken_as_bearer_and_as_password() {
    let (service, _keyring, key) = Keyring::serve("ci", ALL).await;
    for authorization in [
        format!("Bearer {key}"),
        format!("bearer  {key}"),
        basic(&format!("ci:{key}")),
        basic(&format!(":{key}")),
        basic(&format!("any user:{key}")),
    ] {
        for path in ["/v1/locks", "/v1/info", "/metrics"] {
            let answer = get(&service, path, &authorization).await;
            assert_eq!(answer.status, 200, "{authorization} {path}: {answer:?}");
        }
        let absent = get(&service, "/v1/idempotency/k", &authorization).await;
        absent.is_problem(404, "no-record");
    }
}

/// A program that serves the router itself, with a server of its own.
#[tokio::test]
async fn key_is_taken_where_another_server_has_the_connection() {
    let mut keyring = Keyring::default();
    let key = keyring.add("ci", ALL);
    let router = App::new(keyring.config()).await.expect("the store opens").router();
    let head = Request::get("/v1/locks").header("host", "localhost");
    let request = head.header("authorization", format!("Bearer {key}")).body(Body::empty());
    let answer = router.oneshot(request.expect("a request")).await.expect("an answer");
    assert_eq!(answer.status(), 200, "{answer:?}");
}

#[tokio::test]
async fn request_without_valid_key_reads_401_and_both_challenges() {
    let mut keyring = Keyring::default();
    let key = keyring.add("ci", ALL);
    let expired = keyring.add_expiring("old", ", expires = 2020-01-01T00:00:00Z", ALL);
    let unknown = Keyring::default().add("ci", ALL);
    let service = Service::start_with(keyring.config()).await;
    let wrong = [
        format!("Bearer {expired}"),
        format!("Bearer {unknown}"),
        basic(&format!("ci:{unknown}")),
        basic(&key),
        format!("Bearer {}", &key[..50]),
        format!("Bearer {}{}", &key[..50], if key.ends_with('x') { 'y' } else { 'x' }),
        format!("Token {key}"),
        format!("Basic {key}"),
        key.clone(),
        "Bearer".to_owned(),
        String::new(),
    ];
    for path in ASKING {
        is_refused(&service.get(path).await);
        for authorization in &wrong {
            is_refused(&get(&service, path, authorization).await);
        }
        let twice = service.request(Method::GET, path).bearer_auth(&key).bearer_auth(&key);
        is_refused(&Answer::of(twice).await);
    }
    let expired = get(&service, "/v1/locks", &wrong[0]).await;
    assert!(expired.json["detail"].as_str().unwrap().contains("expired"), "{expired:?}");
}

#[track_caller]
fn is_refused(answer: &Answer) {
    answer.is_problem(401, "unauthenticated");
    assert_eq!(answer.json["field"], "Authorization", "{answer:?}");
    assert_eq!(answer.json["retry"], "never", "{answer:?}");
    let challenges = answer.headers.get_all("www-authenticate").iter();
    let challenges: Vec<_> = challenges.map(|value| value.to_str().unwrap()).collect();
    assert_eq!(
        challenges,
        ["Basic realm=\"keylatch\", charset=\"UTF-8\"", "Bearer realm=\"keylatch\""]
    );
}

#[tokio::test]
async fn health_and_pages_are_open() {
    let (service, _keyring, _key) = Keyring::serve("ci", ALL).await;
    for path in ["/livez", "/readyz", "/openapi.json", "/docs/", "/assets/keylatch.js", "/demo"] {
        assert_eq!(service.get(path).await.status, 200, "{path}");
    }
    assert_eq!(service.get("/problems/unauthenticated").await.status, 200);
    service.get("/nothing").await.is_problem(404, "not-found");
}

#[tokio::test]
async fn break_is_served_to_identities_off_loopback() {
    let mut keyring = Keyring::default();
    let key = keyring.add("ci", ALL);
    let mut config = keyring.config();
    config.listen = "0.0.0.0:0".to_owned();
    let body = json!({"reason": "it hangs", "fencing_token": 7});
    for (mode, status, code) in
        [(Switch::Auto, 404, "lock-not-held"), (Switch::Off, 403, "break-disabled")]
    {
        config.lock.r#break = mode;
        let service = Service::start_with(config.clone()).await;
        let request = service.request(Method::POST, "/v1/locks/a/break").bearer_auth(&key);
        Answer::of(request.json(&body)).await.is_problem(status, code);
    }
}

#[tokio::test]
async fn principal_is_the_identity_or_one_that_it_may_act_for() {
    let mut keyring = Keyring::default();
    let ana = keyring.add("ana", ALL);
    let ben = keyring.add("ben", &format!("{ALL}\nact_for = [\"ana\"]"));
    let all = keyring.add("all", &format!("{ALL}\nact_for = [\"*\"]"));
    let service = Service::start_with(keyring.config()).await;
    let begin = async |key: &str, query: &str| {
        let path = format!("/v1/idempotency/k{query}");
        Answer::of(service.request(Method::POST, &path).bearer_auth(key)).await
    };
    let find = async |key: &str, query: &str| {
        let path = format!("/v1/idempotency/k{query}");
        Answer::of(service.request(Method::GET, &path).bearer_auth(key)).await
    };
    assert_eq!(begin(&ana, "").await.status, 201);
    assert_eq!(begin(&ben, "").await.status, 201, "the key is that of each");
    for (key, query) in
        [(&ana, "?principal=ana"), (&ben, "?principal=ana"), (&all, "?principal=ana")]
    {
        assert_eq!(find(key, query).await.status, 200, "{query}");
        begin(key, query).await.is_refusal(409, "request-in-progress", "same-key");
    }
    for query in ["?principal=ben", "?principal=", "?principal=other"] {
        let refused = find(&ana, query).await;
        refused.is_problem(403, "forbidden");
        assert_eq!(refused.json["field"], "principal", "{refused:?}");
        begin(&ana, query).await.is_problem(403, "forbidden");
    }
    find(&all, "?principal=").await.is_problem(404, "no-record");
}

#[tokio::test]
async fn public_guard_passes_authorization_on_untouched() {
    let mut keyring = Keyring::default();
    keyring.add("ci", ALL);
    let upstream = Upstream::start().await;
    let mut config = keyring.config();
    config.guard = guards(&upstream, GuardAccess::Public);
    let service = Service::start_with(config).await;
    for authorization in ["Bearer a-token-of-the-shop", "Basic !"] {
        let order = service.request(Method::POST, "/orders").header("authorization", authorization);
        let order = Answer::of(order.header("idempotency-key", authorization.len())).await;
        assert_eq!(order.status, StatusCode::CREATED, "{order:?}");
        assert_eq!(upstream.last().headers["authorization"], authorization);
    }
}

#[tokio::test]
async fn guard_for_identities_asks_in_its_own_header() {
    let mut keyring = Keyring::default();
    let (ana, ben) = (keyring.add("ana", ""), keyring.add("ben", ""));
    let all = keyring.add("all", &format!("{ALL}\nact_for = [\"*\"]"));
    let upstream = Upstream::start().await;
    let mut config = keyring.config();
    config.guard = guards(&upstream, GuardAccess::Identity);
    let service = Service::start_with(config).await;
    let order = |header: &str, key: &str| {
        let order = service.request(Method::POST, "/orders").header("idempotency-key", "k-1");
        Answer::of(order.header(header, format!("Bearer {key}")))
    };
    order("authorization", &ana).await.is_problem(401, "unauthenticated");
    assert_eq!(upstream.runs(), 0);
    for (key, run) in [(&ana, 1), (&ben, 2)] {
        order("keylatch-authorization", key).await.is_run(run);
        order("keylatch-authorization", key).await.is_replay_of(run);
        assert!(!upstream.last().headers.contains_key("keylatch-authorization"), "it is a secret");
    }
    let record = "/v1/idempotency/k-1?method=POST&path=/orders&principal=ben";
    assert_eq!(get(&service, record, &format!("Bearer {all}")).await.status, 200);
}

#[tokio::test]
async fn wrong_new_file_changes_nothing_and_is_named_in_the_log() {
    let mut keyring = Keyring::default();
    let key = keyring.add("ci", ALL);
    let config = keyring.config();
    let log = LogCapture::start(&config, false);
    let service = Service::start_with(config).await;
    for (wrong, why) in [
        ("[[identity]]\nname = \"ci\"\nkeys = [\"kl_by-mistake\"]", "line 3"),
        ("", "no `[[identity]]`"),
    ] {
        keyring.write(wrong);
        eventually(async || log.text().contains(why).then_some(())).await;
        let answer = get(&service, "/v1/locks", &format!("Bearer {key}")).await;
        assert_eq!(answer.status, 200, "the identities of before stay: {answer:?}");
    }
    let log = log.text();
    assert!(
        log.contains("the previous ones stay in force") && !log.contains("by-mistake"),
        "{log}"
    );
}

/// The guard that a shop has, before this service.
fn guards(upstream: &Upstream, access: GuardAccess) -> Vec<Guard> {
    vec![Guard { path: "/orders".to_owned(), upstream: upstream.url(), access, ..Guard::default() }]
}
