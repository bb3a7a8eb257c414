//! Goal: an unknown outcome settles itself where the guard says how to ask its upstream, and
//! nothing else is settled.
//!
//! Method: an upstream that fails and knows what it did, on every store with records.

use std::time::Duration;

use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use keylatch::http::{Guard, Settle};
use keylatch_testkit::{
    Answer, Keyring, ReceivedRequest, RedisServer, Service, Shop, TestStore, created, eventually,
    guard_orders, redis_test, store_test,
};
use reqwest::Method;
use serde_json::{Value, json};

/// A guard that asks at once, and for which nothing is "not done" before `after_ms`.
fn settles(after_ms: u64) -> impl Fn(&mut Guard) {
    move |guard| {
        let get = "/orders/by-key/{key}?of=keylatch".to_owned();
        guard.settle = Some(Settle { get, after_ms, every_ms: 100, ..Settle::default() });
    }
}

const NEVER: u64 = 3_599_999;

/// An upstream that fails to answer, and says this when it is asked.
fn fails(status: u16) -> impl Fn(ReceivedRequest) -> Response {
    move |seen| {
        if seen.method != Method::GET {
            return StatusCode::INTERNAL_SERVER_ERROR.into_response();
        }
        let found = axum::Json(json!({"order": 17, "asked": seen.uri.to_string()}));
        let status = StatusCode::from_u16(status).expect("a status");
        (status, [("Location", "/orders/17"), ("Keylatch-Keep", "response; for=7200")], found)
            .into_response()
    }
}

/// The questions so far.
fn questions(shop: &Shop) -> Vec<ReceivedRequest> {
    shop.upstream.seen().into_iter().filter(|seen| seen.method == Method::GET).collect()
}

async fn is_asked(shop: &Shop, times: usize) {
    eventually(async || (questions(shop).len() >= times).then_some(())).await;
}

#[store_test(service)]
async fn response_that_was_lost_is_kept_and_replayed(store: &TestStore) {
    let shop = Shop::open_with(store.url(), settles(NEVER)).await;
    shop.upstream.answers(fails(200));
    let key = "\"a b+&\"";
    assert_eq!(shop.buy(key).await.status, 500);
    let repeat = shop.until_done(key).await;
    assert_eq!((repeat.status.as_u16(), &repeat.json["order"]), (200, &json!(17)), "{repeat:?}");
    assert_eq!(repeat.json["asked"], "/orders/by-key/a%20b%2B%26?of=keylatch");
    assert_eq!(repeat.header("idempotent-replayed"), "true");
    assert_eq!((repeat.header("location"), repeat.header("keylatch-keep")), ("/orders/17", ""));
    let record = shop.record("a%20b%2B%26").await;
    assert_eq!(record["settled"]["by"], "upstream", "{record}");
    assert!(record["expires_in_ms"].as_u64().expect("a time") <= 7_200_000, "{record}");
    assert_eq!(shop.upstream.runs() - questions(&shop).len(), 1, "the order ran once");
    shop.reaches("keylatch_idempotency_settled_total{verdict=\"done\"}", 1).await;
}

/// Some server reads them as another path, and answers for what is there.
#[tokio::test]
async fn key_that_is_more_than_a_segment_is_asked_for_in_a_query_alone() {
    let keys = ["..", ".", "a/b", "..\\admin", "17;x", "17?x", "17#x", "17.", "%2e%2e"];
    for (get, asks) in [("/orders/by-key/{key}", false), ("/orders/by-key?key={key}", true)] {
        let shop = Shop::open_with("memory:", |guard| {
            settles(NEVER)(guard);
            guard.settle.as_mut().expect("a question").get = get.to_owned();
        })
        .await;
        shop.upstream.answers(fails(503));
        for key in keys.into_iter().chain(["17"]) {
            assert_eq!(shop.buy(&format!("\"{}\"", key.replace('\\', "\\\\"))).await.status, 500);
        }
        eventually(async || {
            let of_plain = |asked: &&ReceivedRequest| asked.uri.to_string().ends_with("17");
            (questions(&shop).iter().filter(of_plain).count() >= 3).then_some(())
        })
        .await;
        let mut asked: Vec<_> =
            questions(&shop).iter().map(|asked| asked.uri.to_string()).collect();
        asked.sort_unstable();
        asked.dedup();
        assert_eq!(asked.len(), if asks { keys.len() + 1 } else { 1 }, "{asked:?}");
    }
}

#[store_test(service)]
async fn what_was_not_done_runs_again(store: &TestStore) {
    let shop = Shop::open_with(store.url(), settles(1500)).await;
    shop.upstream.answers(fails(404));
    assert_eq!(shop.buy("k-1").await.status, 500);
    let before = shop.record("k-1").await;
    is_asked(&shop, 2).await;
    eventually(async || shop.record("k-1").await.is_null().then_some(())).await;
    shop.upstream.answers(|seen| created(seen.run));
    let again = shop.buy("k-1").await;
    assert_eq!(again.status, 201, "{again:?}");
    let (before, after) = (before["fencing_token"].as_u64(), shop.record("k-1").await);
    assert!(after["fencing_token"].as_u64() > before, "{after}");
    shop.reaches("keylatch_idempotency_settled_total{verdict=\"not_done\"}", 1).await;
}

#[store_test(memory)]
async fn outcome_that_is_kept_for_a_year_is_settled_as_soon(store: &TestStore) {
    let shop = Shop::open_with(store.url(), |guard| {
        settles(100)(guard);
        guard.retention_ms = Some(31_536_000_000);
    })
    .await;
    shop.upstream.answers(fails(404));
    assert_eq!(shop.buy("k-1").await.status, 500);
    eventually(async || shop.record("k-1").await.is_null().then_some(())).await;
}

#[store_test(memory)]
async fn anything_else_stays_unknown(store: &TestStore) {
    let shop = Shop::open_with(store.url(), settles(0)).await;
    for (place, status) in [500, 503, 403, 204, 302].into_iter().enumerate() {
        shop.upstream.answers(fails(status));
        let key = format!("k-{status}");
        assert_eq!(shop.buy(&key).await.status, 500);
        is_asked(&shop, questions(&shop).len() + 3 * (place + 1)).await;
        assert_eq!(shop.record(&key).await["state"], "unknown", "{status}");
    }
}

#[store_test(memory)]
async fn key_is_not_freed_before_its_time(store: &TestStore) {
    let shop = Shop::open_with(store.url(), settles(NEVER)).await;
    shop.upstream.answers(fails(404));
    assert_eq!(shop.buy("k-1").await.status, 500);
    is_asked(&shop, 4).await;
    assert_eq!(shop.record("k-1").await["state"], "unknown");
}

/// Stores of this process count by the clock of the test's thread, which is set forward.
#[store_test(records, url)]
async fn outcome_that_stays_unknown_is_asked_for_no_longer_than_for_ms(store: &TestStore) {
    let limit = Duration::from_secs(30);
    let shop = Shop::open_with(store.url(), |guard| {
        settles(0)(guard);
        let for_ms = limit.as_millis().try_into().expect("a time");
        guard.settle = guard.settle.take().map(|settle| Settle { for_ms, ..settle });
    })
    .await;
    shop.upstream.answers(fails(500));
    assert_eq!(shop.buy("k-1").await.status, 500);
    is_asked(&shop, 1).await;
    store.advance(limit).await;
    // A round that began before has ended when a younger one was asked for twice.
    assert_eq!(shop.buy("k-2").await.status, 500);
    let of_younger = |seen: &&ReceivedRequest| seen.uri.path().ends_with("/k-2");
    let twice = async || questions(&shop).iter().filter(of_younger).nth(1).map(|_| ());
    eventually(twice).await;
    shop.upstream.answers(fails(200));
    for key in ["k-2", "k-3"] {
        shop.buy(key).await;
        let settled = async || Some(shop.record(key).await).filter(|it| it["state"] == "done");
        eventually(settled).await;
    }
    assert_eq!(shop.record("k-1").await["state"], "unknown");
}

/// A process that died left it, as far as the store knows.
#[store_test(service)]
async fn run_of_a_dead_process_is_asked_for(store: &TestStore) {
    let shop = Shop::open_with(store.url(), settles(NEVER)).await;
    shop.upstream.answers(fails(200));
    let begin = json!({"lease_ms": 100});
    let path = "/v1/idempotency/k-1?method=POST&path=/orders";
    assert_eq!(Answer::of(shop.request(Method::POST, path).json(&begin)).await.status, 201);
    let settled = async || Some(shop.record("k-1").await).filter(|it| it["state"] == "done");
    assert_eq!(eventually(settled).await["settled"]["by"], "upstream");
}

#[store_test(memory)]
async fn late_verdict_never_touches_a_newer_run(store: &TestStore) {
    let shop = Shop::open_with(store.url(), settles(0)).await;
    for status in [200, 404] {
        let key = format!("k-{status}");
        shop.upstream.answers(fails(500));
        assert_eq!(shop.buy(&key).await.status, 500);
        shop.upstream.hold();
        let asked = questions(&shop).len();
        is_asked(&shop, asked + 1).await;
        let path = format!("/v1/idempotency/{key}/resolve?method=POST&path=/orders");
        let resolved = shop.request(Method::POST, &path).json(&json!({"outcome": "not-executed"}));
        assert_eq!(Answer::of(resolved).await.status, 204);
        let run = shop.upstream.runs() + 1;
        let newer = tokio::spawn(Answer::of(shop.order(&key)));
        shop.upstream.begun(run).await;
        let verdict = fails(status);
        shop.upstream.answers(move |seen| {
            if seen.method == Method::GET { verdict(seen) } else { created(seen.run) }
        });
        shop.upstream.resume();
        newer.await.expect("an answer").is_run(run);
        shop.buy(&key).await.is_replay_of(run);
    }
}

#[store_test(memory)]
async fn question_is_of_the_principal(store: &TestStore) {
    let shop = Shop::open_with(store.url(), |guard| {
        settles(NEVER)(guard);
        guard.principal_header = "X-User".to_owned();
    })
    .await;
    shop.upstream.answers(fails(200));
    let order = |user: &[u8]| {
        let user = reqwest::header::HeaderValue::from_bytes(user).expect("a value");
        shop.order("k-1").header("X-User", user)
    };
    for user in [&b"ann"[..], b"b\xe9n"] {
        assert_eq!(Answer::of(order(user)).await.status, 500);
        let settled = async || Some(Answer::of(order(user)).await).filter(|it| it.status == 200);
        eventually(settled).await;
        let asked = questions(&shop);
        let asked = asked.last().expect("a question");
        assert_eq!(asked.headers["x-user"].as_bytes(), user);
        for absent in ["idempotency-fence", "cookie", "authorization"] {
            assert!(!asked.headers.contains_key(absent), "{asked:?}");
        }
    }
}

#[tokio::test]
async fn records_of_other_routes_are_not_asked_for() {
    let upstream = keylatch_testkit::Upstream::start().await;
    upstream.answers(fails(200));
    let mut config = keylatch_testkit::config("memory:");
    let mut outer = Shop::guard(&upstream.url());
    settles(NEVER)(&mut outer);
    let inner = Guard { path: "/orders/inner".to_owned(), ..Shop::guard(&upstream.url()) };
    config.guard = vec![outer, inner];
    let service = Service::start_with(config).await;
    let scopes = ["path=/orders/inner/a", "path=/orders-of-others", "method=PUT&path=/orders"];
    for scope in scopes {
        let path = format!("/v1/idempotency/k?method=POST&{scope}").replace("POST&method=", "");
        let begin = service.request(Method::POST, &path).json(&json!({"lease_ms": 100}));
        assert_eq!(Answer::of(begin).await.status, 201);
    }
    // When this one is asked for, the others had their turn.
    assert_eq!(service.buy("k-2").await.status, 500);
    service.until_done("k-2").await;
    let asked = upstream.seen().into_iter().filter(|seen| seen.method == Method::GET);
    let asked: Vec<_> = asked.map(|seen| seen.uri.path().to_owned()).collect();
    assert!(asked.iter().all(|path| path == "/orders/by-key/k-2"), "{asked:?}");
}

#[tokio::test]
async fn settling_is_in_the_audit_log() {
    let keyring = Keyring::default();
    let file = keyring.path().with_file_name("audit.log");
    let upstream = keylatch_testkit::Upstream::start().await;
    upstream.answers(fails(200));
    let mut config = keylatch_testkit::config("memory:");
    config.log.audit = file.display().to_string();
    let mut guard = Shop::guard(&upstream.url());
    settles(NEVER)(&mut guard);
    config.guard = vec![guard];
    let service = Service::start_with(config).await;
    assert_eq!(service.buy("k-1").await.status, 500);
    service.until_done("k-1").await;
    let lines = async || {
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        let lines = text.lines().map(|line| serde_json::from_str(line).expect("JSON"));
        let lines: Vec<Value> = lines.filter(|line: &Value| line["act"] == "resolve").collect();
        (lines.len() == 2).then_some(lines)
    };
    let lines = eventually(lines).await;
    for (line, result) in lines.iter().zip(["asked", "done"]) {
        let members = ["key", "path", "outcome", "by", "result"].map(|name| &line[name]);
        assert_eq!(members, ["k-1", "/orders", "completed", "upstream", result], "{line}");
    }
}

/// The instances have upstreams of their own, which shows who asks.
#[redis_test]
async fn one_instance_asks_and_another_takes_over() {
    let redis = RedisServer::start().await;
    let one = Shop::open_with(&redis.url(), settles(NEVER)).await;
    one.upstream.answers(fails(500));
    assert_eq!(one.buy("k-1").await.status, 500);
    is_asked(&one, 1).await;
    let other = Shop::open_with(&redis.url(), settles(NEVER)).await;
    other.upstream.answers(fails(500));
    is_asked(&one, questions(&one).len() + 5).await;
    assert_eq!(questions(&other).len(), 0, "both instances ask");
    drop(one);
    is_asked(&other, 1).await;
}

/// Two instances of one store both ask, and the order still runs once more at most.
#[redis_test]
async fn two_instances_settle_once() {
    let redis = RedisServer::start().await;
    let one = Shop::open_with(&redis.url(), settles(0)).await;
    one.upstream.answers(fails(404));
    assert_eq!(one.buy("k-1").await.status, 500);
    let other = guard_orders(&redis.url(), &one.upstream.url(), settles(0)).await;
    eventually(async || one.record("k-1").await.is_null().then_some(())).await;
    one.upstream.answers(|seen| created(seen.run));
    let (first, second) = tokio::join!(one.until_done("k-1"), other.until_done("k-1"));
    assert_eq!((first.status.as_u16(), &first.json), (201, &second.json), "{first:?}");
}
