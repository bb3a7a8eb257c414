//! Goal: instances that share a store and tell keys apart in different ways notice that they do,
//! and clients notice nothing.
//!
//! Method: two services over every store that instances share, whose guards differ in some
//! settings; what each says in `/v1/info`, in its metrics and in its log.

use std::collections::BTreeSet;

use keylatch::config::Config;
use keylatch::http::Guard;
use keylatch_testkit::{
    LogCapture, RedisServer, Service, Shop, TestStore, eventually, redis_test, store_test,
};
use serde_json::{Value, json};

const DIFFERING: &str = "keylatch_guards_differing";

/// A service with a guard of `/orders`, and one of `/refunds` whose principal is in a header.
async fn instance(mut config: Config, header: &str) -> Service {
    let orders = Shop::guard("http://127.0.0.1:9");
    let principal_header = header.to_owned();
    let refunds = Guard { path: "/refunds".to_owned(), principal_header, ..orders.clone() };
    config.guard = vec![orders, refunds];
    Service::start_with(config).await
}

/// Waits until a service says this of its guards.
#[track_caller]
fn says(service: &Service, differing: Value) -> impl Future<Output = ()> {
    let said = async move || service.get("/v1/info").await.json["differing_guards"].clone();
    eventually(async move || (said().await == differing).then_some(()))
}

/// The locks on all pages of one lock each.
async fn listed(service: &Service) -> BTreeSet<String> {
    let (mut names, mut cursor) = (BTreeSet::new(), String::new());
    loop {
        let page = service.get(&format!("/v1/locks?limit=1{cursor}")).await.json;
        let locks = page["locks"].as_array().expect("a page").iter();
        names.extend(locks.map(|lock| lock["name"].as_str().expect("a name").to_owned()));
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return names,
        }
    }
}

#[store_test(service, restart)]
async fn instances_notice_that_a_guard_differs_and_that_it_no_longer_does(store: &TestStore) {
    if store.url().starts_with("embedded:") {
        // It has one instance, which differs from none.
        let alone = instance(store.config(), "X-User").await;
        says(&alone, json!({})).await;
        assert_eq!(alone.metric(DIFFERING).await, 0);
        return;
    }
    let one = instance(store.config(), "X-User").await;
    let other = instance(store.config(), "X-Account").await;
    let like_the_first = instance(store.config(), "x-user").await;
    let differing = json!({"/refunds": ["principal_header"]});
    for service in [&one, &other, &like_the_first] {
        says(service, differing.clone()).await;
        assert_eq!(service.metric(DIFFERING).await, 1);
        assert_eq!(service.metric("keylatch_locks_held").await, 0);
        assert_eq!(service.metric("keylatch_lock_grants_total{mode=\"shared\"}").await, 0);
    }
    assert_eq!(listed(&one).await, BTreeSet::new());
    // In the order of names, keylatch's own locks are between these.
    let names = ["a", "b", "ü"].map(str::to_owned);
    for name in &names {
        assert_eq!(one.create(name, &json!({})).await.status, 201, "{name}");
    }
    assert_eq!(listed(&one).await, BTreeSet::from(names));
    other.stop().await;
    for service in [&one, &like_the_first] {
        says(service, json!({})).await;
        assert_eq!(service.metric(DIFFERING).await, 0);
    }
}

#[redis_test]
async fn difference_is_logged_once_by_each_instance() {
    let redis = RedisServer::start().await;
    let config = keylatch_testkit::config(&redis.url());
    let log = LogCapture::start(&config, true);
    let one = instance(config.clone(), "X-User").await;
    let other = instance(config.clone(), "X-Account").await;
    for service in [&one, &other] {
        says(service, json!({"/refunds": ["principal_header"]})).await;
    }
    other.stop().await;
    says(&one, json!({})).await;
    let lines: Vec<Value> =
        log.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let errors: Vec<_> = lines.iter().filter(|line| line["level"] == "ERROR").collect();
    assert_eq!(errors.len(), 2, "{errors:?}");
    for error in errors {
        assert_eq!(
            (&error["guard"], &error["settings"]),
            (&json!("/refunds"), &json!("principal_header"))
        );
    }
}
