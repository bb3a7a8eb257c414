//! Goal: with `idempotency.encryption_keys_file` no store has a kept response in plain text, every
//! repeat reads it as it was, and a response that does not decrypt is 503 and never another run.
//!
//! Method: services with other keys over one store, whose records the test reads and moves by the
//! store's own port; a copy of the embedded store; a file of keys that changes while it is
//! followed.

use axum::body::Body;
use axum::http::Response;
use keylatch::app::App;
use keylatch::http::{Guard, KeyPart, OnStoreDown};
use keylatch_core::idempotency::{
    IdempotencyKey, Principal, RecordKey, RecordStatus, ResolveCommand, Scope, SealedAnswer,
    Settlement, StoredResponse,
};

use keylatch_testkit::{
    Answer, Api, LogCapture, OpenStore, ReceivedRequest, Service, Shop, TestStore, Upstream,
    config, created, eventually, store_test,
};
use reqwest::Method;
use serde_json::{Value, json};

use crate::issued_keys::Secrets;

const OLD: &str = "2026-01 = AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
const NEW: &str = "2026-02=HxwdHh8AAQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRo=";
/// What a response has, and no store.
const SECRET: &str = "Zoe lives in line 7";

/// A response with the number of its run. A store may keep one of `length` bytes elsewhere than a
/// short one.
fn secret(length: usize) -> impl Fn(ReceivedRequest) -> Response<Body> {
    move |seen| {
        let response = Response::builder().status(201).header("X-Person", SECRET);
        let body = format!("{} {SECRET} {}", seen.run, "é".repeat(length));
        response.body(Body::from(body)).expect("a response")
    }
}

/// A service over a store that others share, with these keys; without any where there are no lines.
async fn serve(
    store: &OpenStore,
    upstream: &Upstream,
    lines: &[&str],
    set: impl FnOnce(&mut Guard),
) -> Service {
    let (mut config, keys) = (config("memory:"), Secrets::of(lines));
    if !lines.is_empty() {
        config.idempotency.encryption_keys_file = keys.path();
    }
    let mut guard = Shop::guard(&upstream.url());
    set(&mut guard);
    config.guard = vec![guard];
    Service::over_with(store.0.clone(), config).await
}

fn record_key(key: &str, path: &str) -> RecordKey {
    let method = if path.is_empty() { "" } else { "POST" };
    let scope = Scope { principal: &Principal::None, method, path, source: "" };
    scope.record(&IdempotencyKey::parse(key).expect("a key"))
}

/// What the store keeps of the response under a key.
async fn kept(store: &OpenStore, record: RecordKey) -> StoredResponse {
    let view = store.find(&record).await.expect("the store answers").expect("a record");
    let RecordStatus::Done { kept, .. } = view.phase else { panic!("{view:?}") };
    kept
}

/// Asserts that the store keeps it encrypted, and gives what it keeps.
async fn sealed(store: &OpenStore, record: RecordKey) -> SealedAnswer {
    let StoredResponse::Sealed(sealed) = kept(store, record).await else {
        panic!("it is in plain text");
    };
    assert!(!has_secret(&sealed.bytes), "the bytes are plain text");
    SealedAnswer::clone(&sealed)
}

fn has_secret(bytes: &[u8]) -> bool {
    bytes.windows(SECRET.len()).any(|part| part == SECRET.as_bytes())
}

#[track_caller]
fn is_unreadable(answer: &Answer) {
    answer.is_refusal(503, "answer-unreadable", "same-key");
    assert!(answer.headers.contains_key("retry-after"), "{answer:?}");
    assert!(answer.json["outcome"].is_null(), "it was executed once: {answer:?}");
    assert!(!answer.text.contains(SECRET), "{answer:?}");
}

#[track_caller]
fn is_replay(answer: &Answer, first: &Answer) {
    assert_eq!(answer.header("idempotent-replayed"), "true", "{answer:?}");
    assert_eq!((answer.status, &answer.text), (first.status, &first.text), "{answer:?}");
    assert_eq!(answer.header("x-person"), first.header("x-person"), "{answer:?}");
}

#[store_test(service)]
async fn response_is_kept_encrypted_and_replayed_as_it_was(store: &TestStore) {
    let (store, upstream) = (store.open().await, Upstream::start().await);
    let service = serve(&store, &upstream, &[OLD], |_| {}).await;
    for (key, length) in [("k-1", 0), ("k-2", 20_000)] {
        upstream.answers(secret(length));
        let first = service.buy(key).await;
        assert!(first.text.contains(SECRET), "{first:?}");
        is_replay(&service.buy(key).await, &first);
        let sealed = sealed(&store, record_key(key, "/orders")).await;
        assert_eq!((sealed.status, &*sealed.key_id), (201, "2026-01"));
        let record = service.record(key).await;
        let shown = ["state", "status", "answer_kept"].map(|member| &record[member]);
        assert_eq!(shown, [&json!("done"), &json!(201), &json!(true)], "{record}");
    }
    assert_eq!(upstream.runs(), 2);
}

#[store_test(memory)]
async fn key_that_is_missing_is_503_and_never_another_run(store: &TestStore) {
    let (store, upstream) = (store.open().await, Upstream::start().await);
    upstream.answers(secret(0));
    let [old, both, new] = [&[OLD][..], &[NEW, OLD], &[NEW]];
    let old = serve(&store, &upstream, old, |_| {}).await;
    let both = serve(&store, &upstream, both, |_| {}).await;
    let new = serve(&store, &upstream, new, |_| {}).await;
    let none = serve(&store, &upstream, &[], |_| {}).await;
    let first = old.buy("k-1").await;
    is_replay(&both.buy("k-1").await, &first);
    let second = both.buy("k-2").await;
    assert_eq!(sealed(&store, record_key("k-2", "/orders")).await.key_id, "2026-02");
    is_replay(&new.buy("k-2").await, &second);
    // The setting was taken away, or the instance has other keys.
    for (service, key) in [(&new, "k-1"), (&none, "k-1"), (&old, "k-2"), (&none, "k-2")] {
        is_unreadable(&service.buy(key).await);
    }
    is_replay(&old.buy("k-1").await, &first);
    // What was kept before the setting came is read with it.
    let plain = none.buy("k-3").await;
    assert!(matches!(kept(&store, record_key("k-3", "/orders")).await, StoredResponse::Answer(_)));
    is_replay(&new.buy("k-3").await, &plain);
    assert_eq!(upstream.runs(), 3);
}

#[store_test(memory)]
async fn what_is_unreadable_is_listed_looked_at_and_erased(store: &TestStore) {
    let (store, upstream) = (store.open().await, Upstream::start().await);
    upstream.answers(secret(0));
    let old = serve(&store, &upstream, &[OLD], |_| {}).await;
    let new = serve(&store, &upstream, &[NEW], |_| {}).await;
    old.buy("k-1").await;
    let record = new.record("k-1").await;
    assert_eq!((&record["state"], &record["status"]), (&json!("done"), &json!(201)), "{record}");
    let list = new.get("/v1/idempotency?path=/orders&state=done").await;
    assert_eq!(list.json["records"][0]["status"], 201, "{list:?}");
    let other = new.order("k-1").json(&json!({"amount": 7}));
    Answer::of(other).await.is_refusal(422, "idempotency-key-reused", "new-key");
    let answer = "/v1/idempotency/k-1/answer?method=POST&path=/orders";
    assert_eq!(Answer::of(new.request(Method::DELETE, answer)).await.status, 204);
    new.buy("k-1").await.is_refusal(409, "answer-not-kept", "never");
    assert_eq!(upstream.runs(), 1);
}

/// Who can write in the store puts the response of one order under the key of another.
#[store_test(memory)]
async fn response_that_was_moved_or_changed_is_not_replayed(store: &TestStore) {
    let (store, upstream) = (store.open().await, Upstream::start().await);
    let service = serve(&store, &upstream, &[OLD], |_| {}).await;
    upstream.answers(secret(0));
    service.buy("k-1").await;
    let moved = sealed(&store, record_key("k-1", "/orders")).await;
    let mut changed = moved.clone();
    changed.status = 200;
    upstream.answers(|_| axum::http::StatusCode::INTERNAL_SERVER_ERROR);
    for (key, sealed) in [("k-2", moved), ("k-3", changed)] {
        assert_eq!(service.buy(key).await.status, 500);
        let end = Settlement::Done(StoredResponse::Sealed(sealed.into()));
        let key_of_other = record_key(key, "/orders");
        let put = ResolveCommand { key: key_of_other, fencing_token: None, end };
        store.resolve(&put).await.expect("the store answers");
        is_unreadable(&service.buy(key).await);
    }
    assert_eq!(upstream.runs(), 3);
}

async fn step(api: &Api, method: Method, path: &str, body: &Value) -> Answer {
    let request = api.request(method, &format!("/v1/idempotency/{path}"));
    Answer::of(request.header("Lock-Token", "a-token-of-the-clients-own").json(body)).await
}

#[store_test(memory)]
async fn responses_of_calls_and_of_persons_are_encrypted(store: &TestStore) {
    let (store, upstream) = (store.open().await, Upstream::start().await);
    let old = serve(&store, &upstream, &[OLD], |_| {}).await;
    let both = serve(&store, &upstream, &[NEW, OLD], |_| {}).await;
    let new = serve(&store, &upstream, &[NEW], |_| {}).await;
    let answer = json!({"status": 201, "body": SECRET});
    step(&old, Method::POST, "completed", &json!({})).await;
    step(&old, Method::POST, "resolved", &json!({})).await;
    step(&old, Method::POST, "resolved/fail", &json!({})).await;
    let resolve = json!({"outcome": "completed", "answer": answer, "by": "Ann"});
    // The same again is the same, also where another key encrypts by now.
    for service in [&old, &old, &both] {
        let done = step(service, Method::PUT, "completed", &answer).await;
        assert_eq!((done.status.as_u16(), &done.json["state"]), (200, &json!("done")), "{done:?}");
        let done = step(service, Method::POST, "resolved/resolve", &resolve).await;
        assert_eq!((done.status.as_u16(), &done.json["state"]), (200, &json!("done")), "{done:?}");
        assert_eq!(done.json["settled"]["by"], "Ann", "{done:?}");
    }
    let other = json!({"status": 201, "body": "another"});
    step(&old, Method::PUT, "completed", &other).await.is_problem(412, "token-mismatch");
    let other = json!({"outcome": "completed", "answer": other});
    let other = step(&old, Method::POST, "resolved/resolve", &other).await;
    other.is_problem(409, "nothing-to-resolve");
    for key in ["completed", "resolved"] {
        assert_eq!(sealed(&store, record_key(key, "")).await.key_id, "2026-01");
        let again = step(&both, Method::POST, key, &json!({})).await;
        assert_eq!(again.json["answer"]["body"], SECRET, "{again:?}");
        is_unreadable(&step(&new, Method::POST, key, &json!({})).await);
    }
    // No run but the one that is meant is resolved.
    let wrong = json!({"outcome": "completed", "answer": answer, "fencing_token": 1});
    step(&old, Method::POST, "unknown", &json!({})).await;
    step(&old, Method::POST, "unknown/fail", &json!({})).await;
    let wrong = step(&old, Method::POST, "unknown/resolve", &wrong).await;
    wrong.is_problem(409, "nothing-to-resolve");
    step(&old, Method::POST, "none/resolve", &resolve).await.is_problem(404, "no-record");
}

#[tokio::test]
async fn guard_that_passes_when_the_store_is_down_does_not_for_want_of_a_key() {
    let store = OpenStore(keylatch_stores::memory());
    let upstream = Upstream::start().await;
    let pass = |guard: &mut Guard| guard.on_store_down = OnStoreDown::Pass;
    let old = serve(&store, &upstream, &[OLD], pass).await;
    let new = serve(&store, &upstream, &[NEW], pass).await;
    old.buy("k-1").await.is_run(1);
    is_unreadable(&new.buy("k-1").await);
    assert_eq!(upstream.runs(), 1);
}

#[tokio::test]
async fn keys_are_read_again_when_their_file_changes() {
    let (keys, upstream) = (Secrets::of(&[OLD]), Upstream::start().await);
    let mut config = config("memory:");
    config.idempotency.encryption_keys_file = keys.path();
    config.guard = vec![Shop::guard(&upstream.url())];
    let log = LogCapture::start(&config, true);
    let service = Service::start_with(config).await;
    service.buy("k-1").await.is_run(1);
    keys.write(&[NEW, "2026-01 = c2hvcnQ="]);
    eventually(async || log.text().contains("line 2 must be `ID = KEY`").then_some(())).await;
    service.buy("k-1").await.is_replay_of(1);
    keys.write(&[NEW]);
    let unreadable = async || Some(service.buy("k-1").await).filter(|it| it.status == 503);
    is_unreadable(&eventually(unreadable).await);
    service.buy("k-2").await.is_run(2);
    keys.write(&["# The old one is back.", "", NEW, OLD]);
    let readable = async || Some(service.buy("k-1").await).filter(|it| it.status != 503);
    eventually(readable).await.is_replay_of(1);
    service.buy("k-2").await.is_replay_of(2);
    assert_eq!(upstream.runs(), 2);
    let text = log.text();
    assert!(text.contains("encrypted with the key `2026-01`"), "the log names the key: {text}");
    assert!(!text.contains("c2hvcnQ"), "{text}");
}

#[tokio::test]
async fn copy_of_the_store_has_no_plain_text() {
    let upstream = Upstream::start().await;
    for lines in [&[][..], &[OLD]] {
        let (directory, keys) = (tempfile::tempdir().expect("a directory"), Secrets::of(lines));
        let mut config = config(&format!("embedded:{}", directory.path().display()));
        if !lines.is_empty() {
            config.idempotency.encryption_keys_file = keys.path();
        }
        config.guard = vec![Shop::guard(&upstream.url())];
        let service = Service::start_with(config).await;
        for (key, length) in [("k-1", 0), ("k-2", 20_000)] {
            upstream.answers(secret(length));
            assert_eq!(service.buy(key).await.status, 201);
        }
        let copy = service.request(Method::GET, "/v1/backup").send().await.expect("a copy");
        let copy = copy.bytes().await.expect("a whole copy");
        assert_eq!(has_secret(&copy), lines.is_empty());
    }
}

/// What an instance without the key refuses says that it was done, and where only with the key.
#[tokio::test]
async fn other_request_of_what_is_done_once_is_refused_without_the_key() {
    let store = OpenStore(keylatch_stores::memory());
    let upstream = Upstream::start().await;
    let once = |guard: &mut Guard| guard.once_per = vec![KeyPart::Path];
    let old = serve(&store, &upstream, &[OLD], once).await;
    let new = serve(&store, &upstream, &[NEW], once).await;
    upstream.answers(|seen| ([("Location", "/orders/17")], created(seen.run)));
    old.buy("k-1").await.is_run(1);
    for (service, place) in [(&old, "/orders/17"), (&new, "")] {
        let refused = Answer::of(service.order("k-2").json(&json!({"amount": 7}))).await;
        refused.is_refusal(409, "already-done", "never");
        assert_eq!(refused.header("location"), place, "{refused:?}");
    }
    is_unreadable(&new.buy("k-2").await);
    assert_eq!(upstream.runs(), 1);
}

#[test]
fn start_names_what_is_wrong_in_the_file_of_keys() {
    let refusal = |path: String| {
        let mut config = config("memory:");
        config.idempotency.encryption_keys_file = path;
        App::check(&config).err().map(|error| error.to_string())
    };
    assert_eq!(refusal(Secrets::of(&["# Both are valid.", "", OLD, NEW]).path()), None);
    let key = OLD.split_once('=').expect("a key").1;
    let (bare, long) = (format!("={key}"), format!("{}={key}", "x".repeat(33)));
    for (lines, sentence) in [
        (&["# none", ""][..], "it has no key: write a line `ID = KEY`"),
        (&[OLD, "2026-02"], "line 2 must be `ID = KEY`"),
        (&[key.trim()], "line 1 must be `ID = KEY`"),
        (&["", &bare], "line 2 must be `ID = KEY`"),
        (&[&long], "line 1 must be `ID = KEY`"),
        (&["a b = AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="], "line 1 must be `ID = KEY`"),
        (&["2026-01 = AAECAwQFBgcICQoLDA0ODw=="], "line 1 must be `ID = KEY`"),
        (&["2026-01 = AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8"], "line 1 must be `ID = KEY`"),
        (&[OLD, "#", OLD], "line 3 has the id of an earlier line"),
    ] {
        let refused = refusal(Secrets::of(lines).path()).expect("a refusal");
        assert!(refused.contains(sentence), "{refused}");
        assert!(refused.contains("idempotency.encryption_keys_file: /"), "{refused}");
        assert!(!refused.contains("AAEC"), "{refused}");
    }
    let refused = refusal("/nowhere/keys".to_owned()).expect("a refusal");
    assert!(refused.contains("idempotency.encryption_keys_file: /nowhere/keys"), "{refused}");
}
