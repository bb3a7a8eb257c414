//! Goal: the toy shop is served where the configuration says, and its orders live as long as their
//! keys.
//!
//! Method: services that stop, are killed, and share a store.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use keylatch::config::{Config, Flags};
use keylatch::http::SandboxMode;
use keylatch_core::store::Store;
use keylatch_testkit::{Answer, Api, RedisServer, Service, config, eventually, redis_test};
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;

use crate::KEYLATCH;

fn order(api: &Api, key: &str, body: &Value) -> RequestBuilder {
    api.request(Method::POST, "/v1/orders").header("Idempotency-Key", key).json(body)
}

fn coffee() -> Value {
    json!({"amount": 1999, "currency": "EUR", "items": [{"name": "coffee", "quantity": 2}]})
}

/// The status and the JSON of an answer.
async fn answer(request: RequestBuilder) -> (u16, Value) {
    let answer = Answer::of(request).await;
    (answer.status.as_u16(), answer.json)
}

async fn get(api: &Api, path: &str) -> (u16, Value) {
    answer(api.request(Method::GET, path)).await
}

async fn ids(api: &Api) -> Vec<String> {
    let (status, list) = get(api, "/v1/orders").await;
    assert_eq!(status, 200, "{list}");
    let orders = list["orders"].as_array().expect("a list").iter();
    orders.map(|order| order["id"].as_str().expect("an id").to_owned()).collect()
}

#[tokio::test]
async fn order_outlives_restart_of_embedded_store_with_its_key() {
    let directory = TempDir::new().expect("a directory");
    let store = format!("embedded:{}", directory.path().display());
    let service = Service::start(&store).await;
    let placed = order(&service, "k-1", &coffee()).send().await.expect("an answer");
    let location = placed.headers()["location"].to_str().expect("text").to_owned();
    let placed: Value = placed.json().await.expect("an order");
    service.stop().await;

    let service = Service::start(&store).await;
    assert_eq!(get(&service, &location).await, (200, placed.clone()));
    assert_eq!(answer(order(&service, "k-1", &coffee())).await, (201, placed));
    let (status, next) = answer(order(&service, "k-2", &coffee())).await;
    assert_eq!((status, next["id"].as_str()), (201, Some("2")));
    assert_eq!(ids(&service).await, ["2", "1"]);
    service.stop().await;
}

async fn two_instances_share_orders(store: Arc<dyn Store>) {
    let one = Service::over(Arc::clone(&store)).await;
    let other = Service::over(store).await;
    let placed = (0..20).map(|number| {
        let api = if number % 2 == 0 { &one } else { &other };
        tokio::spawn(answer(order(api, &format!("k-{number}"), &coffee())))
    });
    let mut numbers = BTreeSet::new();
    for placed in placed.collect::<Vec<_>>() {
        let (status, order) = placed.await.expect("an answer");
        assert_eq!(status, 201, "{order}");
        assert!(numbers.insert(order["id"].as_str().expect("an id").to_owned()), "{order}");
    }
    let listed = ids(&one).await;
    assert_eq!(listed, ids(&other).await);
    assert_eq!(listed.into_iter().collect::<BTreeSet<_>>(), numbers);
    // Payments are numbered by themselves.
    let payment = one.request(Method::POST, "/v1/payments");
    let (status, payment) = answer(payment.header("Idempotency-Key", "k-1").json(&coffee())).await;
    assert_eq!((status, payment["id"].as_str()), (201, Some("1")));
    one.stop().await;
    other.stop().await;
}

#[tokio::test]
async fn instances_over_memory_number_orders_apart() {
    let config = config("memory:");
    let store = keylatch_stores::open("memory:", config.stores()).await.expect("a store");
    two_instances_share_orders(store).await;
}

#[redis_test]
async fn instances_over_redis_number_orders_apart() {
    let redis = RedisServer::start().await;
    let url = redis.url();
    let config = config(&url);
    let store = keylatch_stores::open(&url, config.stores()).await.expect("a store");
    two_instances_share_orders(store).await;
}

#[tokio::test]
async fn list_has_last_hundred_orders_and_older_ones_are_found_by_id() {
    let service = Service::start("memory:").await;
    for number in 0..103 {
        let (status, order) = answer(order(&service, &format!("k-{number}"), &coffee())).await;
        assert_eq!(status, 201, "{order}");
    }
    let expected: Vec<_> = (4..=103).rev().map(|number: u32| number.to_string()).collect();
    assert_eq!(ids(&service).await, expected);
    assert_eq!(get(&service, "/v1/orders/1").await.0, 200);
    for absent in ["0", "104", "01", "+1", "x", "4294967296"] {
        assert_eq!(get(&service, &format!("/v1/orders/{absent}")).await.0, 404, "{absent}");
    }
}

#[tokio::test]
async fn order_above_64_kib_is_refused() {
    let service = Service::start("memory:").await;
    let large = json!({"amount": 1, "currency": "EUR", "items": [{"name": "x".repeat(65_536)}]});
    let (status, problem) = answer(order(&service, "k-1", &large)).await;
    assert_eq!((status, &problem["code"]), (413, &json!("payload-too-large")));
    assert!(ids(&service).await.is_empty());
}

#[tokio::test]
async fn order_that_service_was_killed_in_is_in_doubt_after_three_seconds() {
    let directory = TempDir::new().expect("a directory");
    let store = format!("embedded:{}", directory.path().display());
    let process = KEYLATCH.serve(&["--store", &store], &[]).await;
    let api = Api::at(process.address);
    let slow = json!({"amount": 1, "currency": "EUR", "delay_ms": 60_000});
    let request = tokio::spawn(order(&api, "k-1", &slow).send());
    let record = "/v1/idempotency/k-1?method=POST&path=/v1/orders";
    eventually(async || (get(&api, record).await.1["state"] == "in-flight").then_some(())).await;
    process.ended_by("-KILL").await;
    request.await.expect("a task").expect_err("its service is gone");

    let process = KEYLATCH.serve(&["--store", &store], &[]).await;
    let api = Api::at(process.address);
    let (_, found) = get(&api, record).await;
    let left = found["lease_expires_in_ms"].as_u64().unwrap_or_default();
    assert!(left <= 3000, "{found}");
    let refused = eventually(async || {
        let (status, problem) = answer(order(&api, "k-1", &slow)).await;
        assert_eq!(status, 409, "{problem}");
        (problem["code"] == "outcome-unknown").then_some(problem)
    });
    assert_eq!(refused.await["retry"], "never");
    assert!(ids(&api).await.is_empty());
}

#[tokio::test]
async fn shop_is_served_where_configuration_says() {
    let directory = TempDir::new().expect("a directory");
    let file = directory.path().join("keylatch.toml");
    std::fs::write(&file, "log.level = \"warn\"\n").expect("a file");
    let with = |file: Option<&Path>, listen: &str, variable: Option<&str>| {
        let flags = Flags {
            config: file.map(Path::to_owned),
            listen: Some(listen.to_owned()),
            store: Some("memory:".to_owned()),
        };
        let variable = variable.map(|mode| ("KEYLATCH_SANDBOX".to_owned(), mode.to_owned()));
        Config::load(&flags, variable).expect("a configuration")
    };
    let (loopback, everywhere) = ("127.0.0.1:7070", "0.0.0.0:7070");
    for (config, is_served) in [
        (with(None, loopback, None), true),
        (with(None, "[::1]:7070", None), true),
        (with(None, "localhost:7070", None), true),
        (with(None, everywhere, None), false),
        (with(None, "[::]:7070", None), false),
        (with(None, "locks.example:7070", None), false),
        (with(Some(&file), loopback, None), false),
        (with(Some(&file), everywhere, Some("on")), true),
        (with(None, loopback, Some("off")), false),
    ] {
        let what = format!("{:?} {} {}", config.sandbox, config.listen, config.has_file);
        let service = Service::start_with(Config { open: true, ..config }).await;
        let status = if is_served { 200 } else { 404 };
        for path in ["/v1/orders", "/v1/payments", "/demo", "/assets/demo.js"] {
            assert_eq!(get(&service, path).await.0, status, "{what} {path}");
        }
        let (_, document) = get(&service, "/openapi.json").await;
        assert_eq!(document["paths"]["/v1/orders"].is_object(), is_served, "{what}");
        assert_eq!(document["components"]["schemas"]["Order"].is_object(), is_served, "{what}");
        service.stop().await;
    }
}

#[tokio::test]
async fn guard_on_path_of_shop_takes_it() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let upstream = format!("http://{}", listener.local_addr().expect("an address"));
    let router = axum::Router::new().fallback(async || "mine");
    tokio::spawn(async move { axum::serve(listener, router).await.expect("serves") });
    let mut config = config("memory:");
    config.sandbox = SandboxMode::On;
    let path = "/v1/orders".to_owned();
    config.guard = vec![keylatch::http::Guard { path, upstream, ..Default::default() }];
    let service = Service::start_with(config).await;
    let mine = service.request(Method::GET, "/v1/orders").send().await;
    assert_eq!(mine.expect("an answer").text().await.expect("text"), "mine");
    assert_eq!(get(&service, "/v1/payments").await.0, 200);
    service.stop().await;
}
