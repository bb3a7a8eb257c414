//! Goal: a guard with `key = ["issued"]` runs a request once under a key that was issued for it,
//! and under no other key; an expired one never runs.
//!
//! Method: keys that are used as issued, changed in each character, taken to another route and
//! principal, rotated and expired; secrets of files and of the embedded store.

use std::os::unix::fs::{PermissionsExt as _, symlink};

use keylatch::app::App;
use keylatch::config::Config;
use keylatch::http::{Guard, KeySource};
use keylatch_testkit::{Answer, Service, Shop, Upstream, config, created, eventually};
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use tempfile::TempDir;

const OLD: &str = "an-old-secret-of-32-bytes-or-more";
const NEW: &str = "another-secret-of-32-bytes-or-more";

/// A file of secrets that is gone with the test.
pub(crate) struct Secrets(TempDir);

impl Secrets {
    pub(crate) fn of(lines: &[&str]) -> Self {
        let file = Self(tempfile::tempdir().expect("a directory"));
        file.write(lines);
        file
    }

    pub(crate) fn write(&self, lines: &[&str]) {
        std::fs::write(self.path(), lines.join("\n") + "\n").expect("a file");
    }

    pub(crate) fn path(&self) -> String {
        self.0.path().join("secrets").display().to_string()
    }
}

/// A service that guards `/orders` and takes issued keys there, and who orders are of.
fn guarded(store: &str, secret_file: &str, upstream: &Upstream) -> Config {
    let mut config = config(store);
    config.issued_keys.secret_file = secret_file.to_owned();
    let issued = vec![KeySource::Issued];
    let principal_header = "X-User".to_owned();
    config.guard = vec![Guard { key: issued, principal_header, ..Shop::guard(&upstream.url()) }];
    config
}

async fn issue(service: &Service, asked: Value) -> Answer {
    let request = service.request(Method::POST, "/v1/idempotency-keys");
    Answer::of(request.json(&asked)).await
}

/// A key for Ann's order.
async fn key_of_ann(service: &Service) -> String {
    let asked = json!({"method": "POST", "path": "/orders", "principal": "user:ann"});
    let issued = issue(service, asked).await;
    assert_eq!(issued.status, 201, "{issued:?}");
    issued.json["key"].as_str().expect("a key").to_owned()
}

fn order(service: &Service, path: &str, user: &str, key: &str) -> RequestBuilder {
    let request = service.request(Method::POST, path).header("X-User", user);
    request.header("Idempotency-Key", key).json(&json!({"amount": 1}))
}

#[track_caller]
fn is_foreign(answer: &Answer) {
    answer.is_refusal(400, "invalid-key", "new-key");
    assert_eq!(answer.json["field"], "Idempotency-Key", "{answer:?}");
}

#[tokio::test]
async fn issued_key_runs_its_request_once() {
    let (upstream, secrets) = (Upstream::start().await, Secrets::of(&[OLD]));
    let service = Service::start_with(guarded("memory:", &secrets.path(), &upstream)).await;
    let key = key_of_ann(&service).await;
    let first = Answer::of(order(&service, "/orders", "ann", &key)).await;
    first.is_run(1);
    assert_eq!(first.header("idempotency-key-source"), "issued", "{first:?}");
    assert_eq!(upstream.last().headers["idempotency-key"], key);
    let again = Answer::of(order(&service, "/orders/", "ann", &format!("\"{key}\""))).await;
    again.is_replay_of(1);
    assert_eq!(again.header("idempotency-key-source"), "issued", "{again:?}");
    let other = order(&service, "/orders", "ann", &key).json(&json!({"amount": 2}));
    Answer::of(other).await.is_refusal(422, "idempotency-key-reused", "new-key");
    // A form has it in its field.
    let key = key_of_ann(&service).await;
    let form = || {
        let request = service.request(Method::POST, "/orders").header("X-User", "ann");
        let request = request.header("Content-Type", "application/x-www-form-urlencoded");
        request.body(format!("amount=1&idempotency_key={key}"))
    };
    Answer::of(form()).await.is_run(2);
    Answer::of(form()).await.is_replay_of(2);
    let path =
        format!("/v1/idempotency/{key}?method=POST&path=/orders&principal=user:ann&source=issued");
    assert_eq!(service.get(&path).await.json["state"], "done");
    let without = service.request(Method::POST, "/orders").header("X-User", "ann");
    Answer::of(without).await.is_refusal(400, "key-required", "new-key");
    assert_eq!(upstream.runs(), 2);
}

#[tokio::test]
async fn key_that_was_not_issued_for_the_request_is_refused() {
    let (upstream, secrets) = (Upstream::start().await, Secrets::of(&[OLD]));
    let mut config = guarded("memory:", &secrets.path(), &upstream);
    config.guard[0].methods.push("PUT".to_owned());
    let service = Service::start_with(config).await;
    let key = key_of_ann(&service).await;
    let put = service.request(Method::PUT, "/orders").header("X-User", "ann");
    is_foreign(&Answer::of(put.header("Idempotency-Key", &key)).await);
    for (path, user, key) in [
        ("/orders/7", "ann", &*key),
        ("/orders", "bob", &key),
        ("/orders", "user:ann", &key),
        ("/orders", "ann", "a-key-of-the-client"),
        ("/orders", "ann", "issued-"),
        ("/orders", "ann", &key[..key.len() - 1]),
        ("/orders", "ann", &format!("{key}A")),
        ("/orders", "ann", &key.to_uppercase()),
    ] {
        is_foreign(&Answer::of(order(&service, path, user, key)).await);
    }
    for place in 0..key.len() {
        let mut forged = key.clone().into_bytes();
        forged[place] = if forged[place] == b'A' { b'B' } else { b'A' };
        let forged = String::from_utf8(forged).expect("ASCII");
        is_foreign(&Answer::of(order(&service, "/orders", "ann", &forged)).await);
    }
    // Not even the bits that a lenient reader of base64 drops may differ.
    for last in ["A", "Q", "g", "w", "B", "R"] {
        let forged = key[..key.len() - 1].to_owned() + last;
        if forged != key {
            is_foreign(&Answer::of(order(&service, "/orders", "ann", &forged)).await);
        }
    }
    assert_eq!(upstream.runs(), 0);
    Answer::of(order(&service, "/orders", "ann", &key)).await.is_run(1);
}

#[tokio::test]
async fn upstream_does_not_shorten_the_life_of_a_key() {
    let (upstream, secrets) = (Upstream::start().await, Secrets::of(&[OLD]));
    let service = Service::start_with(guarded("memory:", &secrets.path(), &upstream)).await;
    upstream.answers(|seen| ([("Keylatch-Keep", "response; for=1")], created(seen.run)));
    let key = key_of_ann(&service).await;
    Answer::of(order(&service, "/orders", "ann", &key)).await.is_run(1);
    let path =
        format!("/v1/idempotency/{key}?method=POST&path=/orders&principal=user:ann&source=issued");
    let record = service.get(&path).await.json;
    assert!(record["expires_in_ms"].as_u64() > Some(86_400_000), "{record}");
}

#[tokio::test]
async fn expired_key_is_gone_and_never_runs() {
    let (upstream, secrets) = (Upstream::start().await, Secrets::of(&[OLD]));
    let service = Service::start_with(guarded("memory:", &secrets.path(), &upstream)).await;
    let mut asked = json!({"method": "post", "path": "/orders/", "principal": "user:ann"});
    asked["ttl_ms"] = json!(1000);
    let issued = issue(&service, asked).await.json;
    assert_eq!(issued["ttl_ms"], 1000);
    let key = issued["key"].as_str().expect("a key");
    let send = || Answer::of(order(&service, "/orders", "ann", key));
    let expired = eventually(async || Some(send().await).filter(|answer| answer.status != 201));
    expired.await.is_refusal(410, "key-expired", "never");
    let runs = upstream.runs();
    assert!(runs <= 1, "{runs}");
    send().await.is_refusal(410, "key-expired", "never");
    assert_eq!(upstream.runs(), runs);
    let bob = Answer::of(order(&service, "/orders", "bob", key)).await;
    is_foreign(&bob);
}

/// An instance with other settings may have issued it for longer than this one keeps responses.
#[tokio::test]
async fn record_lives_at_least_until_its_key_expires() {
    let (upstream, secrets) = (Upstream::start().await, Secrets::of(&[OLD]));
    let mut issuing = config("memory:");
    issuing.issued_keys.secret_file = secrets.path();
    let issuing = Service::start_with(issuing).await;
    let mut guarding = guarded("memory:", &secrets.path(), &upstream);
    guarding.guard[0].retention_ms = Some(1000);
    let guarding = Service::start_with(guarding).await;
    let key = key_of_ann(&issuing).await;
    let run = Answer::of(order(&guarding, "/orders", "ann", &key)).await;
    run.is_run(1);
    let until = httpdate::parse_http_date(run.header("idempotency-key-expires")).expect("a date");
    let day = std::time::Duration::from_secs(24 * 60 * 60);
    assert!(until >= std::time::SystemTime::now() + day - std::time::Duration::from_secs(60));
}

#[tokio::test]
async fn two_secrets_are_valid_while_one_is_rotated() {
    let upstream = Upstream::start().await;
    let files = [&[OLD][..], &[NEW, OLD], &[NEW]].map(Secrets::of);
    let [old, both, new] = &files;
    let start = |file: &Secrets| Service::start_with(guarded("memory:", &file.path(), &upstream));
    let (old, both, new) = (start(old).await, start(both).await, start(new).await);
    let of_old = key_of_ann(&old).await;
    assert_eq!(Answer::of(order(&both, "/orders", "ann", &of_old)).await.status, 201);
    is_foreign(&Answer::of(order(&new, "/orders", "ann", &of_old)).await);
    let of_both = key_of_ann(&both).await;
    assert_eq!(Answer::of(order(&new, "/orders", "ann", &of_both)).await.status, 201);
    is_foreign(&Answer::of(order(&old, "/orders", "ann", &of_both)).await);
}

#[tokio::test]
async fn secrets_are_read_again_when_their_file_changes() {
    let (upstream, secrets) = (Upstream::start().await, Secrets::of(&[OLD]));
    let service = Service::start_with(guarded("memory:", &secrets.path(), &upstream)).await;
    let key = key_of_ann(&service).await;
    std::fs::write(secrets.path(), NEW).expect("a file");
    let refused = eventually(async || {
        let answer = Answer::of(order(&service, "/orders", "ann", &key)).await;
        Some(answer).filter(|answer| answer.status == 400)
    });
    is_foreign(&refused.await);
}

#[tokio::test]
async fn what_no_key_is_issued_for_is_named() {
    let (upstream, secrets) = (Upstream::start().await, Secrets::of(&[OLD]));
    let service = Service::start_with(guarded("memory:", &secrets.path(), &upstream)).await;
    for (asked, field) in [
        (json!({"path": "/orders"}), "method"),
        (json!({"method": "PO ST", "path": "/orders"}), "method"),
        (json!({"method": "POST"}), "path"),
        (json!({"method": "POST", "path": "orders"}), "path"),
        (json!({"method": "POST", "path": "/orders?a=1"}), "path"),
        (json!({"method": "POST", "path": "/orders", "ttl_ms": 999}), "ttl_ms"),
        (json!({"method": "POST", "path": "/orders/7", "ttl_ms": 86_400_001_u64}), "ttl_ms"),
        (json!({"method": "POST", "path": "/other", "ttl_ms": 31_536_000_001_u64}), "ttl_ms"),
    ] {
        let refused = issue(&service, asked.clone()).await;
        refused.is_problem(400, "invalid-body");
        assert_eq!(refused.json["field"], field, "{asked}: {refused:?}");
    }
    let other = json!({"method": "POST", "path": "/other", "ttl_ms": 31_536_000_000_u64});
    assert_eq!(issue(&service, other).await.status, 201);
    let unsigned = Service::start("memory:").await;
    let refused = issue(&unsigned, json!({"method": "POST", "path": "/orders"})).await;
    refused.is_problem(501, "not-supported");
    assert!(refused.text.contains("issued_keys.secret_file"), "{refused:?}");
}

#[tokio::test]
async fn embedded_store_makes_a_secret_of_its_own() {
    let (upstream, directory) =
        (Upstream::start().await, tempfile::tempdir().expect("a directory"));
    let config = guarded(&format!("embedded:{}", directory.path().display()), "", &upstream);
    App::check(&config).expect("a configuration");
    let file = directory.path().join("issued_keys.secret");
    assert!(!file.exists(), "a check makes none");
    let service = Service::start_with(config.clone()).await;
    let mode = file.metadata().expect("a file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let key = key_of_ann(&service).await;
    service.stop().await;
    let service = Service::start_with(config.clone()).await;
    Answer::of(order(&service, "/orders", "ann", &key)).await.is_run(1);
    service.stop().await;
    // Who else may write in the directory would choose the secret by a link.
    std::fs::rename(&file, directory.path().join("elsewhere")).expect("a free name");
    symlink(directory.path().join("elsewhere"), &file).expect("a free name");
    let refused = App::new(config).await.expect_err("a link").to_string();
    assert!(refused.contains("`issued_keys.secret` is a link"), "{refused}");
}

#[test]
fn start_names_the_setting_of_a_secret_that_is_missing_or_wrong() {
    let refusal = |secret_file: &str| {
        let mut config = config("memory:");
        config.issued_keys.secret_file = secret_file.to_owned();
        config.guard =
            vec![Guard { key: vec![KeySource::Issued], ..Shop::guard("http://127.0.0.1:9") }];
        App::check(&config).err().map(|error| error.to_string())
    };
    for wrong in
        [&[][..], &["short"], &[OLD, "short"], &[OLD, NEW, "a-third-secret-of-32-bytes-or-more"]]
    {
        let refused = refusal(&Secrets::of(wrong).path()).expect("a refusal");
        assert!(refused.contains("issued_keys.secret_file"), "{refused}");
        assert!(!refused.contains("short"), "{refused}");
    }
    assert_eq!(refusal(&Secrets::of(&["", OLD, " ", NEW]).path()), None);
    for missing in ["", "/nowhere/secrets"] {
        let refused = refusal(missing).expect("a refusal");
        assert!(refused.contains("issued_keys.secret_file"), "{refused}");
    }
}
