//! Goal: the guards and the shop that a first start serves run every order once.
//!
//! Method: orders with and without JavaScript, slow, failing and repeated, on each store.

use keylatch_testkit::{Answer, Api, Service, eventually, store_test};
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};

fn order(api: &Api, path: &str, key: &str, body: &Value) -> RequestBuilder {
    api.request(Method::POST, path).header("Idempotency-Key", key).json(body)
}

async fn orders(api: &Api, path: &str) -> Vec<Value> {
    let list = api.get(path).await;
    assert_eq!(list.status, 200, "{list:?}");
    list.json[path.trim_start_matches("/v1/")].as_array().expect("a list").clone()
}

#[store_test(service)]
async fn order_is_created_read_and_listed(service: &Service) {
    let items = json!([{"name": "coffee", "quantity": 2}]);
    let body = json!({"amount": 1999, "currency": "EUR", "items": items});
    let first = Answer::of(order(service, "/v1/orders", "k-1", &body)).await;
    assert_eq!(first.status, 201, "{first:?}");
    for (member, value) in body.as_object().expect("an object") {
        assert_eq!(&first.json[member], value);
    }
    assert!(first.json["created_at"].is_string() && first.fencing_token() > 0, "{first:?}");
    for _ in 0..3 {
        let repeat = Answer::of(order(service, "/v1/orders", "\"k-1\"", &body)).await;
        assert_eq!((repeat.status, &repeat.text), (first.status, &first.text));
        assert_eq!(repeat.header("location"), first.header("location"));
        assert_eq!(repeat.header("idempotent-replayed"), "true");
    }
    let read = service.get(first.header("location")).await;
    assert_eq!((read.status.as_u16(), &read.json), (200, &first.json));
    assert_eq!(orders(service, "/v1/orders").await, [first.json]);
    service.get("/v1/orders/none").await.is_problem(404, "not-found");
    // What the shop itself remembers is in no list and no count.
    let records = service.get("/v1/idempotency").await.json;
    let keys = records["records"].as_array().expect("a list").iter().map(|record| &record["key"]);
    assert_eq!(keys.collect::<Vec<_>>(), ["k-1"]);
    let counts = service.get("/console/glance").await.json["records"].take();
    assert_eq!((&counts["unknown"], &counts["in_flight"]), (&json!(0), &json!(0)));
    assert!(counts["done"] == 1 || counts["done"].is_null(), "{counts}");
    let of_shop = service.get("/v1/idempotency/1?path=/v1/orders&source=internal").await;
    of_shop.is_problem(400, "invalid-query");
}

/// A key for what does not exist helps nobody.
#[tokio::test]
async fn method_that_is_not_there_is_405_before_a_key_is_asked_for() {
    let service = Service::start("memory:").await;
    for (method, path) in [
        (Method::POST, "/v1/orders/1"),
        (Method::PATCH, "/v1/orders/1"),
        (Method::PATCH, "/v1/payments"),
        (Method::DELETE, "/v1/orders"),
    ] {
        let refused = Answer::of(service.request(method, path)).await;
        refused.is_problem(405, "method-not-allowed");
        assert_ne!(refused.header("allow"), "", "{path}: {refused:?}");
    }
}

#[store_test(memory)]
async fn invalid_order_gets_422_and_is_not_created(service: &Service) {
    for (number, (field, body)) in (1..).zip([
        ("amount", json!({"currency": "EUR"})),
        ("amount", json!({"amount": 0, "currency": "EUR"})),
        ("amount", json!({"amount": 100_000_000, "currency": "EUR"})),
        ("currency", json!({"amount": 1})),
        ("currency", json!({"amount": 1, "currency": "eur"})),
        ("items", json!({"amount": 1, "currency": "EUR", "items": [{"name": "a", "quantity": 0}]})),
        ("delay_ms", json!({"amount": 1, "currency": "EUR", "delay_ms": 60_001})),
        ("fail", json!({"amount": 1, "currency": "EUR", "fail": 200})),
    ]) {
        let request = order(service, "/v1/orders", &format!("k-{number}"), &body);
        let refused = Answer::of(request).await;
        refused.is_refusal(422, "validation-failed", "new-key");
        assert_eq!(refused.json["field"], field, "{refused:?}");
    }
    assert!(orders(service, "/v1/orders").await.is_empty());
}

#[store_test(memory)]
async fn order_fails_as_requested(service: &Service) {
    for (status, code) in [(500, "outcome-unknown"), (503, "outcome-unknown"), (429, ""), (404, "")]
    {
        let body = json!({"amount": 1, "currency": "EUR", "fail": status});
        let key = format!("k-{status}");
        for round in 0..2 {
            let answer = Answer::of(order(service, "/v1/orders", &key, &body)).await;
            if round == 1 && !code.is_empty() {
                answer.is_refusal(409, code, "never");
            } else {
                assert_eq!(answer.status.as_u16(), status, "{answer:?}");
            }
        }
    }
    assert!(orders(service, "/v1/orders").await.is_empty());
}

#[tokio::test]
async fn nothing_but_an_id_gets_into_the_page() {
    let service = Service::start("memory:").await;
    let shown = async |query: &str| {
        let page = service.get(&format!("/demo{query}")).await.text;
        let (_, rest) = page.split_once("data-order=\"").expect("the place of the order");
        rest.split('"').next().unwrap_or_default().to_owned()
    };
    assert_eq!(shown("?a=b&order=00ff").await, "00ff");
    for query in ["", "?order=", "?order", "?order=%3Cscript%3E", "?order=a%22", "?a&order=a%20b"] {
        assert_eq!(shown(query).await, "", "{query}");
    }
}

#[tokio::test]
async fn overloaded_service_runs_nothing_and_names_the_next_key() {
    let service = Service::set(|config| config.server.max_requests = 1).await;
    let body = json!({"amount": 1, "currency": "EUR", "delay_ms": 1000});
    let first = tokio::spawn(Answer::of(order(&service, "/v1/orders", "k-1", &body)));
    let shed = eventually(async || {
        let quick = json!({"amount": 1, "currency": "EUR"});
        let answer = Answer::of(order(&service, "/v1/orders", "k-2", &quick)).await;
        (answer.status != 201).then_some(answer)
    })
    .await;
    shed.is_refusal(503, "overloaded", "same-key");
    assert_eq!(shed.json["outcome"], "not-executed");
    assert_eq!(first.await.expect("an answer").status, 201);
}

#[tokio::test]
async fn plain_form_sent_twice_leads_to_one_page() {
    let service = Service::start("memory:").await;
    let send = || {
        let form = "amount=1&currency=EUR&delay_ms=300&idempotency_key=k-1";
        let request = service.request(Method::POST, "/v1/orders").header("Accept", "text/html");
        Answer::of(request.header("Content-Type", "application/x-www-form-urlencoded").body(form))
    };
    let (first, second) = tokio::join!(send(), send());
    assert_eq!((first.status.as_u16(), second.status.as_u16()), (303, 303), "{second:?}");
    assert_eq!(first.header("location"), second.header("location"));
    let [made] = &orders(&service, "/v1/orders").await[..] else { panic!("one order") };
    let page = format!("/demo?order={}", made["id"].as_str().expect("an id"));
    assert_eq!(first.header("location"), page);
}
