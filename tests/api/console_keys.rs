//! Goal: the console shows of a record all that it takes to settle it, to those who may read it,
//! and of an answer what is no one's own.
//!
//! Method: records made by `/v1/idempotency`, over HTTP, with and without identities.

use std::time::Instant;

use keylatch_testkit::{Answer, Service, eventually, store_test};
use reqwest::Method;
use serde_json::json;

use crate::record_list::{begin, complete, used_by_a_shop};

#[tokio::test]
async fn record_shows_the_headers_of_its_answer_and_no_body() {
    let service = Service::start("memory:").await;
    complete(&service, "done-1", "/orders").await;
    let record = service.get("/console/keys/done-1?method=POST&path=/orders").await;
    assert_eq!((&record.json["status"], &record.json["state"]), (&json!(201), &json!("done")));
    assert_eq!(record.json["headers"]["location"], json!(["/orders/17"]));
    assert!(!record.text.contains("secret"), "{record:?}");
    service.get("/console/keys/nothing").await.is_problem(404, "no-record");
}

#[tokio::test]
async fn record_is_shown_to_those_who_may_read_it() {
    let (service, _keyring, [operator, stranger]) = used_by_a_shop().await;
    let get = async |key: &str, path: &str| {
        Answer::of(service.request(Method::GET, path).bearer_auth(key)).await
    };
    let record = "/console/keys/pay-1?principal=shop";
    assert_eq!(get(&operator, record).await.status, 200);
    get(&stranger, record).await.is_problem(403, "forbidden");
    get(&operator, "/console/keys/order-1?principal=shop").await.is_problem(403, "forbidden");
}

#[store_test(service)]
async fn glance_counts_keys_by_state(service: &Service) {
    begin(service, "lost-1", "/orders", 1500).await;
    begin(service, "open-1", "/orders", 60_000).await;
    begin(service, "open-2", "/orders", 60_000).await;
    complete(service, "done-1", "/orders").await;
    let counted = eventually(async || {
        let records = service.get("/console/glance").await.json["records"].take();
        (records["unknown"] == 1).then_some(records)
    });
    let counted = counted.await;
    assert_eq!((&counted["in_flight"], &counted["counted_to"]), (&json!(2), &json!(1000)));
    let kind = service.get("/v1/info").await.json["store"]["kind"].clone();
    let is_known = kind == "memory" || kind == "embedded";
    assert_eq!(counted["done"], if is_known { json!(1) } else { json!(null) }, "{kind}");
}

#[tokio::test]
async fn store_is_asked_for_counts_once_for_many_consoles_and_scrapes() {
    let service = Service::start("memory:").await;
    let lists = async || {
        let metrics = service.get("/metrics").await.text;
        let counts = metrics.lines().filter(|line| {
            line.starts_with("keylatch_store_operation_duration_seconds_count{")
                && line.contains("operation=\"list\"")
        });
        let counts = counts.filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok());
        counts.sum::<u64>()
    };
    service.get("/console/glance").await;
    let (before, began) = (lists().await, Instant::now());
    for _ in 0..20 {
        service.get("/console/glance").await;
    }
    for _ in 0..20 {
        lists().await;
    }
    let found = lists().await - before;
    // Two lists for each count.
    let counts = began.elapsed().as_secs() / 2 + 1;
    assert!(found <= 2 * counts, "{found} lists for 20 glances and 21 scrapes");
}
