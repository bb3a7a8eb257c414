//! Goal: a double submit runs once although the client sends no key, and a thing is done once for
//! each user.
//!
//! Method: requests without a key on every store with records, one after the other and at once,
//! over one instance and over two; whose request it is comes from a header that the client of the
//! test may set, as a trusted proxy does.

use std::time::{Duration, SystemTime};

use futures_util::{StreamExt as _, stream};
use keylatch::http::{DeriveKey, Guard, KeyPart, MissingKey};
use keylatch_testkit::{
    Answer, Api, RedisServer, Shop, TestStore, eventually, guard_orders, redis_test, store_test,
};
use reqwest::{Method, RequestBuilder, StatusCode};
use serde_json::json;

fn derives(guard: &mut Guard) {
    guard.missing_key = MissingKey::Derive;
    guard.principal_header = "X-User".to_owned();
}

fn once_per(parts: &[KeyPart]) -> impl FnOnce(&mut Guard) {
    move |guard| {
        guard.once_per = parts.to_vec();
        guard.principal_header = "X-User".to_owned();
    }
}

fn order(shop: &Api, user: &str, path: &str, amount: u32) -> RequestBuilder {
    shop.request(Method::POST, path).header("X-User", user).json(&json!({"amount": amount}))
}

#[store_test(memory)]
async fn second_click_reads_the_response_of_the_first(store: &TestStore) {
    let shop = Shop::open_with(store.url(), derives).await;
    let first = Answer::of(order(&shop, "ann", "/orders", 1)).await;
    first.is_run(1);
    assert_eq!(first.header("idempotency-key-source"), "derived", "{first:?}");
    let key = shop.upstream.last().headers["idempotency-key"].clone();
    assert_eq!(key.len(), 64, "{key:?}");
    let spelt = shop.request(Method::POST, "/orders").header("X-User", "ann");
    let spelt = spelt.header("Content-Type", "application/json");
    Answer::of(spelt.body(r#"{ "amount" : 1 }"#)).await.is_replay_of(1);
    for (run, other) in (2..).zip([
        order(&shop, "ben", "/orders", 1),
        order(&shop, "ann", "/orders/2", 1),
        order(&shop, "ann", "/orders?a=1", 1),
        order(&shop, "ann", "/orders", 2),
        shop.request(Method::PATCH, "/orders").header("X-User", "ann").json(&json!({"amount": 1})),
        order(&shop, "ann", "/orders", 1).header("If-Match", "\"1\""),
    ]) {
        Answer::of(other).await.is_run(run);
    }
    // A client that has a key may send it.
    Answer::of(order(&shop, "ann", "/orders", 1).header("Idempotency-Key", "k")).await.is_run(8);
}

#[store_test(service)]
async fn second_click_waits_for_the_first(store: &TestStore) {
    let shop = Shop::open_with(store.url(), derives).await;
    shop.upstream.hold();
    let first = shop.upstream.holding(order(&shop, "ann", "/orders", 1)).await;
    let second = tokio::spawn(Answer::of(order(&shop, "ann", "/orders", 1)));
    shop.has_in_hand(2).await;
    shop.upstream.resume();
    first.await.expect("an answer").is_run(1);
    second.await.expect("an answer").is_replay_of(1);
}

#[store_test(memory)]
async fn request_is_new_when_its_window_is_over(store: &TestStore) {
    let shop = Shop::open_with(store.url(), |guard| {
        derives(guard);
        guard.derive = DeriveKey { window_ms: 1000, ..DeriveKey::default() };
    })
    .await;
    let first = Answer::of(order(&shop, "ann", "/orders", 1)).await;
    first.is_run(1);
    let expires = httpdate::parse_http_date(first.header("idempotency-key-expires"));
    let left = expires.expect("a date").duration_since(SystemTime::now()).unwrap_or_default();
    assert!(left <= Duration::from_secs(1), "{first:?}");
    let again = async || Some(Answer::of(order(&shop, "ann", "/orders", 1)).await);
    let next = eventually(async move || again().await.filter(|next| next.json != first.json)).await;
    next.is_run(2);
}

/// Each of many payments arrives at two instances at once, as in two clicks behind a load balancer.
async fn clicks_at_two_instances_run_once(store: &str) {
    let one = Shop::open_with(store, derives).await;
    let other = guard_orders(store, &one.upstream.url(), derives).await;
    let (one, other) = (&one, &other);
    let payments = stream::iter(1..=1000).map(|amount| async move {
        let click = |api: &Api| Answer::of(order(api, "ann", "/orders", amount));
        let (first, second) = tokio::join!(click(one), click(other));
        assert_eq!((first.status.as_u16(), second.status.as_u16()), (201, 201), "{second:?}");
        assert_eq!(first.json, second.json);
    });
    payments.buffer_unordered(16).collect::<()>().await;
    assert_eq!(one.upstream.runs(), 1000);
}

#[redis_test]
async fn clicks_at_two_instances_on_redis_run_once() {
    clicks_at_two_instances_run_once(&RedisServer::start().await.url()).await;
}

#[cfg(feature = "test-engines")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clicks_at_two_instances_on_postgres_run_once() {
    let server = keylatch_testkit::PostgresServer::start().await;
    clicks_at_two_instances_run_once(&server.url("postgres")).await;
}

#[tokio::test]
async fn request_of_nobody_gets_no_derived_key() {
    let shop = Shop::open_with("memory:", |guard| {
        derives(guard);
        guard.require_principal = false;
    })
    .await;
    let nobody = || shop.request(Method::POST, "/orders").json(&json!({"amount": 1}));
    Answer::of(nobody()).await.is_refusal(401, "principal-required", "same-key");
    assert_eq!(shop.upstream.runs(), 0);
    let shop = Shop::open_with("memory:", |guard| {
        guard.missing_key = MissingKey::Derive;
        guard.derive = DeriveKey { anonymous: true, ..DeriveKey::default() };
    })
    .await;
    let nobody = || shop.request(Method::POST, "/orders").json(&json!({"amount": 1}));
    Answer::of(nobody()).await.is_run(1);
    Answer::of(nobody()).await.is_replay_of(1);
}

#[tokio::test]
async fn parts_that_are_left_out_do_not_count() {
    let of = [
        (vec![KeyPart::Principal, KeyPart::Query, KeyPart::Body], "/orders/7", 1),
        (vec![KeyPart::Principal, KeyPart::Path, KeyPart::Body], "/orders?a=1", 1),
        (vec![KeyPart::Principal, KeyPart::Path, KeyPart::Query], "/orders", 2),
    ];
    for (of, path, amount) in of {
        let shop = Shop::open_with("memory:", |guard| {
            derives(guard);
            guard.derive = DeriveKey { of: of.clone(), ..DeriveKey::default() };
        })
        .await;
        Answer::of(order(&shop, "ann", "/orders", 1)).await.is_run(1);
        Answer::of(order(&shop, "ann", path, amount)).await.is_replay_of(1);
        Answer::of(order(&shop, "ben", path, amount)).await.is_run(2);
    }
}

#[store_test(memory)]
async fn one_order_for_each_user(store: &TestStore) {
    let shop = Shop::open_with(store.url(), once_per(&[KeyPart::Principal, KeyPart::Path])).await;
    shop.upstream.answers(|_| (StatusCode::CREATED, [("Location", "/orders/17")]));
    let first = Answer::of(order(&shop, "ann", "/orders", 1)).await;
    assert_eq!((first.status.as_u16(), first.header("idempotency-key-source")), (201, "once-per"));
    let same =
        Answer::of(order(&shop, "ann", "/orders", 1).header("Idempotency-Key", "other")).await;
    assert_eq!((same.status.as_u16(), same.header("idempotent-replayed")), (201, "true"));
    let other = Answer::of(order(&shop, "ann", "/orders", 2)).await;
    other.is_refusal(409, "already-done", "never");
    assert_eq!(other.header("location"), "/orders/17");
    assert_eq!(shop.upstream.runs(), 1);
    assert_eq!(Answer::of(order(&shop, "ben", "/orders", 1)).await.status, 201);
    assert_eq!(Answer::of(order(&shop, "ann", "/orders/x", 1)).await.status, 201);
    assert_eq!(shop.upstream.runs(), 3);
}

/// Servers take each of these for the same path.
#[tokio::test]
async fn spelling_of_the_path_makes_no_room_for_another_order() {
    let shop = Shop::open_with("memory:", once_per(&[KeyPart::Principal, KeyPart::Path])).await;
    Answer::of(order(&shop, "ann", "/orders/buy", 1)).await.is_run(1);
    for path in ["/BUY", "//buy", "/buy/", "/b%75y", "/buy;x=1", "/buy.json", "/buy%20", "%2Fbuy"] {
        let again = Answer::of(order(&shop, "ann", &format!("/orders{path}"), 1)).await;
        assert!(
            again.status == 404 || again.header("idempotent-replayed") == "true",
            "{path}: {again:?}"
        );
    }
    assert_eq!(shop.upstream.runs(), 1);
    Answer::of(order(&shop, "ann", "/orders/bu", 1)).await.is_run(2);
}

/// A repeated call never frees the next order.
#[store_test(service)]
async fn undone_order_makes_room_for_one_more(store: &TestStore) {
    let shop = Shop::open_with(store.url(), once_per(&[KeyPart::Principal])).await;
    Answer::of(order(&shop, "ann", "/orders", 1)).await.is_run(1);
    let first = shop.upstream.last().headers["idempotency-fence"].clone();
    let key = shop.upstream.last().headers["idempotency-key"].to_str().expect("text").to_owned();
    let undo = |fencing_token: Option<u64>| {
        let path = format!(
            "/v1/idempotency/{key}/resolve?method=POST&path=/orders&principal=user:ann&source=once-per"
        );
        let outcome =
            json!({"outcome": "undone", "fencing_token": fencing_token, "reason": "cancelled"});
        Answer::of(shop.request(Method::POST, &path).json(&outcome))
    };
    let run: u64 = first.to_str().expect("text").parse().expect("a number");
    undo(None).await.is_problem(409, "nothing-to-resolve");
    undo(Some(run + 1)).await.is_problem(409, "nothing-to-resolve");
    assert_eq!(undo(Some(run)).await.status, 204);
    undo(Some(run)).await.is_problem(404, "no-record");
    Answer::of(order(&shop, "ann", "/orders/any", 2)).await.is_run(2);
    let second =
        shop.upstream.last().headers["idempotency-fence"].to_str().expect("text").to_owned();
    assert!(second.parse::<u64>().expect("a number") > run);
    undo(Some(run)).await.is_problem(409, "nothing-to-resolve");
    Answer::of(order(&shop, "ann", "/orders/any", 2)).await.is_replay_of(2);
}
