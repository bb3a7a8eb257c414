//! Goal: a guard with `mode = "observe"` changes nothing for client and upstream, says what
//! enforcing would have done, and keeps hashes alone, which no enforcing guard reads.
//!
//! Method: an upstream that counts its runs, on every store with records. A machine under load may
//! delay a step of the store beyond what a request waits for it, so what is counted is awaited over
//! further requests; the runs are exact.

use std::sync::mpsc;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use axum::routing::post;
use keylatch::http::{Guard, KeyPart, MissingKey, Mode};
use keylatch_axum::{IdempotencyLayer, Observed};
use keylatch_stores::optimistic;
use keylatch_testkit::{
    Answer, Api, FakeEngine, Faults, LogCapture, Proxy, RawConnection, RedisServer, Service, Shop,
    TestStore, Upstream, config, eventually, guard_orders, redis_test, seed, store_test,
};
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use tower::ServiceExt as _;

fn observes(guard: &mut Guard) {
    guard.mode = Mode::Observe;
}

/// How many requests would have come to this, since the start.
async fn seen(api: &Api, outcome: &str) -> u64 {
    let series =
        format!("keylatch_guard_observed_total{{guard=\"/orders\",outcome=\"{outcome}\"}}");
    api.metric(&series).await
}

/// Sends a request until one more would have come to this; each runs.
async fn comes_to(shop: &Shop, outcome: &str, request: impl Fn() -> RequestBuilder) {
    let before = seen(shop, outcome).await;
    let counted = async || {
        let run = shop.upstream.runs() + 1;
        Answer::of(request()).await.is_run(run);
        (seen(shop, outcome).await > before).then_some(())
    };
    eventually(counted).await;
}

#[store_test(service)]
async fn duplicates_run_and_are_counted(store: &TestStore) {
    let shop = Shop::open_with(store.url(), observes).await;
    comes_to(&shop, "first", || shop.order("\"k-1\"").header("Prefer", "wait=5")).await;
    comes_to(&shop, "replayed", || shop.order("k-1").header("Prefer", "wait=5")).await;
    comes_to(&shop, "mismatched", || shop.order("k-1").json(&json!({"amount": 1}))).await;
    assert_eq!(seen(&shop, "first").await, 1);
    let first = &shop.upstream.seen()[0];
    assert_eq!(first.headers["idempotency-key"], "\"k-1\"", "as the client sent it");
    assert_eq!(first.headers["prefer"], "wait=5");
    assert!(!first.headers.contains_key("idempotency-fence"), "{first:?}");
    let answer = shop.buy("k-1").await;
    for absent in ["idempotency-key-source", "idempotency-key-expires", "preference-applied"] {
        assert_eq!(answer.header(absent), "", "{absent}");
    }
    for of_enforcing in ["replays", "mismatches", "unknowns"] {
        assert_eq!(shop.metric(&format!("keylatch_idempotency_{of_enforcing}_total")).await, 0);
    }
    let counts = &shop.get("/v1/info").await.json["observed_guards"]["/orders"];
    let replayed = seen(&shop, "replayed").await;
    assert_eq!(
        (&counts["today"], &counts["since_start"]["replayed"]),
        (&counts["since_start"], &json!(replayed))
    );
}

#[store_test(memory)]
async fn second_one_waits_for_no_first_one(store: &TestStore) {
    let shop = Shop::open_with(store.url(), observes).await;
    let mut held = vec![shop.upstream.holding(shop.order("k-1")).await];
    eventually(async || {
        let runs = shop.upstream.runs();
        held.push(tokio::spawn(Answer::of(shop.order("k-1").header("Prefer", "wait=30"))));
        shop.upstream.begun(runs + 1).await;
        (seen(&shop, "in_progress").await > 0).then_some(())
    })
    .await;
    assert_eq!(shop.get("/v1/idempotency").await.json["records"], json!([]));
    shop.upstream.resume();
    for answer in held {
        assert_eq!(answer.await.expect("an answer").status, 201);
    }
}

#[store_test(memory)]
async fn run_is_counted_as_one_also_when_its_client_leaves(store: &TestStore) {
    let shop = Shop::open_with(store.url(), observes).await;
    shop.upstream.holding(shop.order("k-1")).await.abort();
    shop.has_in_hand(0).await;
    shop.upstream.resume();
    comes_to(&shop, "replayed", || shop.order("k-1")).await;
}

#[store_test(memory)]
async fn what_has_no_valid_key_passes(store: &TestStore) {
    let shop = Shop::open_with(store.url(), |guard| {
        observes(guard);
        guard.body_limit_bytes = 1000;
    })
    .await;
    let order = || shop.request(Method::POST, "/orders");
    for (run, (request, outcome)) in [
        (order().json(&json!({})), "key_required"),
        (order().header("Idempotency-Key", "\"open"), "unreadable"),
        (shop.order("k").header("X-HTTP-Method-Override", "DELETE"), "unreadable"),
        (shop.order("k").header("Sec-Fetch-Site", "cross-site").body("a=1"), "unreadable"),
        (shop.order("k").body("x".repeat(1001)), "unreadable"),
    ]
    .into_iter()
    .enumerate()
    {
        let before = seen(&shop, outcome).await;
        Answer::of(request).await.is_run(run + 1);
        assert_eq!(seen(&shop, outcome).await, before + 1, "{outcome} {run}");
    }
    assert_eq!(shop.upstream.last().body.len(), 1001);
    let head = "POST /orders HTTP/1.1\r\nHost: localhost\r\nIdempotency-Key: k-2\r\n";
    let text = format!("{head}Transfer-Encoding: chunked\r\n\r\n3e9\r\n{}\r\n", "y".repeat(1001));
    let mut upload = RawConnection::sending(shop.address, &text).await;
    upload.send("1\r\nz\r\n0\r\n\r\n").await;
    assert_eq!(upload.answer().await.status, 201);
    assert_eq!(shop.upstream.last().body, format!("{}z", "y".repeat(1001)));
    let upgrade = "Connection: upgrade\r\nUpgrade: chat\r\nContent-Length: 0\r\n\r\n";
    let mut upgrade = RawConnection::sending(shop.address, &format!("{head}{upgrade}")).await;
    assert_eq!(upgrade.answer().await.status, 201);
    assert_eq!(shop.upstream.last().headers["upgrade"], "chat");
    assert_eq!(seen(&shop, "unreadable").await, 6);
    assert_eq!(seen(&shop, "first").await, 0);
}

#[store_test(memory)]
async fn slow_upload_passes(store: &TestStore) {
    let shop = Shop::open_with(store.url(), |guard| {
        observes(guard);
        guard.body_timeout_ms = 100;
    })
    .await;
    let head = "POST /orders HTTP/1.1\r\nHost: localhost\r\nIdempotency-Key: k-1\r\nContent-Length: 2\r\n\r\n";
    let mut upload = RawConnection::sending(shop.address, &format!("{head}a")).await;
    eventually(async || (seen(&shop, "unreadable").await == 1).then_some(())).await;
    upload.send("b").await;
    assert_eq!(upload.answer().await.status, 201);
    assert_eq!(shop.upstream.last().body, "ab");
}

#[store_test(memory)]
async fn unknown_outcome_is_counted_and_nothing_to_settle(store: &TestStore) {
    let shop = Shop::open_with(store.url(), observes).await;
    shop.upstream.answers(|_| StatusCode::INTERNAL_SERVER_ERROR);
    let failed = async || {
        assert_eq!(shop.buy("k-1").await.status, 500);
        (seen(&shop, "unknown").await > 0).then_some(())
    };
    eventually(failed).await;
    assert_eq!(shop.get("/v1/idempotency").await.json["records"], json!([]));
    assert_eq!(shop.metric("keylatch_idempotency_records{state=\"unknown\"}").await, 0);
    let firsts = seen(&shop, "first").await;
    shop.upstream.answers(|_| StatusCode::BAD_REQUEST);
    let freed = async || {
        assert_eq!(shop.buy("k-2").await.status, 400);
        (seen(&shop, "first").await == firsts + 3).then_some(())
    };
    eventually(freed).await;
}

#[store_test(memory)]
async fn what_is_done_once_for_each_user_is_counted(store: &TestStore) {
    let shop = Shop::open_with(store.url(), |guard| {
        observes(guard);
        guard.principal_header = "X-User".to_owned();
        guard.once_per = vec![KeyPart::Principal];
    })
    .await;
    let order = |user, amount: u32| {
        let request = shop.request(Method::POST, "/orders").json(&json!({"amount": amount}));
        request.header("X-User", user)
    };
    comes_to(&shop, "first", || order("ann", 1)).await;
    comes_to(&shop, "replayed", || order("ann", 1)).await;
    comes_to(&shop, "already_done", || order("ann", 2)).await;
    let nobody = shop.request(Method::POST, "/orders").json(&json!({}));
    Answer::of(nobody).await.is_run(shop.upstream.runs());
    assert_eq!(seen(&shop, "unreadable").await, 1);
}

#[store_test(memory)]
async fn keys_that_would_be_derived_are_counted(store: &TestStore) {
    let shop = Shop::open_with(store.url(), |guard| {
        observes(guard);
        guard.missing_key = MissingKey::Derive;
        guard.derive.anonymous = true;
    })
    .await;
    let order =
        |amount: u32| shop.request(Method::POST, "/orders").json(&json!({"amount": amount}));
    comes_to(&shop, "first", || order(1)).await;
    comes_to(&shop, "replayed", || order(1)).await;
    comes_to(&shop, "first", || order(2)).await;
    assert!(!shop.upstream.last().headers.contains_key("idempotency-key"));
}

#[store_test(memory)]
async fn request_that_needs_no_key_is_not_counted(store: &TestStore) {
    let shop = Shop::open_with(store.url(), |guard| {
        observes(guard);
        guard.missing_key = MissingKey::Pass;
    })
    .await;
    Answer::of(shop.request(Method::POST, "/orders").json(&json!({}))).await.is_run(1);
    let guards = shop.get("/v1/info").await.json["observed_guards"].clone();
    assert_eq!(guards, json!({"/orders": {"today": {}, "since_start": {}}}));
}

#[store_test(service)]
async fn enforcing_reads_nothing_of_what_was_observed(store: &TestStore) {
    let upstream = Upstream::start().await;
    let url = upstream.url();
    let observing = guard_orders(store.url(), &url, observes).await;
    let observed = async || {
        let run = upstream.runs() + 1;
        observing.buy("k-1").await.is_run(run);
        (seen(&observing, "replayed").await > 0).then_some(())
    };
    eventually(observed).await;
    assert!(observing.record("k-1").await.is_null());
    observing.stop().await;
    let run = upstream.runs() + 1;
    let enforcing = guard_orders(store.url(), &url, |_| {}).await;
    enforcing.buy("k-1").await.is_run(run);
    enforcing.buy("k-1").await.is_replay_of(run);
    assert_eq!(enforcing.get("/v1/info").await.json["observed_guards"], json!({}));
}

#[redis_test]
async fn store_that_is_away_refuses_nothing() {
    let mut redis = RedisServer::start().await;
    let shop = Shop::open_with(&redis.url(), observes).await;
    comes_to(&shop, "first", || shop.order("k-1")).await;
    redis.kill().await;
    comes_to(&shop, "unobserved", || shop.order("k-1")).await;
    redis.restart().await;
    comes_to(&shop, "first", || shop.order("k-2")).await;
}

#[redis_test]
async fn silent_store_refuses_nothing() {
    let redis = RedisServer::start().await;
    let proxy = Proxy::start(redis.address()).await;
    let upstream = Upstream::start().await;
    let service = guard_orders(&proxy.url(), &upstream.url(), observes).await;
    service.buy("k-1").await.is_run(1);
    proxy.stall();
    service.buy("k-1").await.is_run(2);
    proxy.forward();
    let during = upstream.holding(service.order("k-2")).await;
    proxy.stall();
    upstream.resume();
    during.await.expect("an answer").is_run(3);
    proxy.forward();
    eventually(async || (seen(&service, "unobserved").await > 0).then_some(())).await;
}

/// The clock is stopped, so that no load changes what is measured.
#[tokio::test(start_paused = true)]
async fn step_of_a_silent_store_delays_a_request_by_a_quarter_of_a_second() {
    let engine = FakeEngine::new(Faults::default(), seed());
    let (outcomes, observed) = mpsc::channel();
    let guard = Guard { mode: Mode::Observe, ..Guard::default() };
    let layer = IdempotencyLayer::new(optimistic(engine.clone())).with_guard(guard);
    let layer = layer.expect("a guard").with_observer(move |one| outcomes.send(one).expect("room"));
    let of_handler = engine.clone();
    let order = async move || of_handler.hold_next_batch();
    let orders = Router::new().route("/orders", post(order)).layer(layer);
    let send = async |key| {
        let request = Request::post("/orders").header("Idempotency-Key", key).body(Body::empty());
        let sent = tokio::time::Instant::now();
        let sending = orders.clone().oneshot(request.expect("a request"));
        assert_eq!(sending.await.expect("a response").status(), 200);
        engine.release_batch();
        let took = sent.elapsed();
        assert!((250..300).contains(&took.as_millis()), "{took:?}");
        observed.recv().expect("an outcome")
    };
    assert_eq!(send("k-1").await, Observed::First, "its end is silent");
    engine.hold_next_batch();
    assert_eq!(send("k-2").await, Observed::Unobserved, "its beginning is silent");
}

#[tokio::test]
async fn store_has_hashes_alone() {
    let texts = ["order-of-zoe", "/orders", "for Zoe", "house of Zoe"];
    for mode in [Mode::Observe, Mode::Enforce] {
        let directory = tempfile::tempdir().expect("a directory");
        let url = format!("embedded:{}", directory.path().display());
        let upstream = Upstream::start().await;
        upstream.answers(|_| (StatusCode::CREATED, [("X-To", "house of Zoe")], "for Zoe"));
        let service = guard_orders(&url, &upstream.url(), |guard| guard.mode = mode).await;
        let order = service.order("order-of-zoe").body("for Zoe");
        assert_eq!(Answer::of(order).await.status, 201);
        service.stop().await;
        let files = std::fs::read_dir(directory.path()).expect("a directory");
        let files = files.map(|file| std::fs::read(file.expect("a file").path()).expect("a file"));
        let bytes = files.collect::<Vec<_>>().concat();
        let has = |text: &str| bytes.windows(text.len()).any(|part| part == text.as_bytes());
        for text in texts {
            assert_eq!(has(text), mode == Mode::Enforce, "{mode:?} {text}");
        }
        assert_eq!(has("internal"), mode == Mode::Observe, "a record was written");
    }
}

#[tokio::test]
async fn duplicate_is_logged_without_its_key() {
    let log = LogCapture::start(&config("memory:"), true);
    let shop = Shop::open_with("memory:", observes).await;
    comes_to(&shop, "replayed", || shop.order("key-of-zoe")).await;
    let lines = log.text();
    let line = |line: &str| serde_json::from_str::<Value>(line).expect("JSON");
    let line = lines.lines().map(line).find(|line| line["outcome"] == "replayed").expect("a line");
    assert_eq!((&line["guard"], &line["level"]), (&json!("/orders"), &json!("INFO")), "{line}");
    assert!(!lines.contains("key-of-zoe"), "{lines}");
}

#[tokio::test]
async fn console_says_what_enforcing_would_have_changed() {
    let shop = Shop::open_with("memory:", observes).await;
    comes_to(&shop, "replayed", || shop.order("k-1")).await;
    comes_to(&shop, "mismatched", || shop.order("k-1").json(&json!({"amount": 1}))).await;
    let counts = [seen(&shop, "replayed").await, seen(&shop, "mismatched").await];
    assert_eq!(counts, [1, 1]);
    let glance = shop.get("/console/glance").await.json;
    let sentence = "1 duplicate would have run once, 1 would have been 422 today";
    assert_eq!(glance["observed"], json!({"/orders": sentence}));
    let other = Service::start("memory:").await;
    assert_eq!(other.get("/console/glance").await.json["observed"], json!({}));
}
