//! Goal: the console lists what needs a person, with all that it takes to settle it, to those who may read it;
//! and shows of an answer what is no one's own.
//!
//! Method: records made by `/v1/idempotency`, and the console's lists over HTTP, with and without identities.

use keylatch_testkit::{Answer, Keyring, Service, eventually, store_test};
use reqwest::Method;
use serde_json::{Value, json};

/// Begins a run and gives the token of it.
async fn begin(service: &Service, key: &str, path: &str, lease_ms: u64) -> String {
    let url = format!("/v1/idempotency/{key}?method=POST&path={path}");
    let begin = service.request(Method::POST, &url).json(&json!({"lease_ms": lease_ms}));
    let begun = Answer::of(begin).await;
    assert_eq!(begun.status, 201, "{begun:?}");
    begun.token()
}

async fn complete(service: &Service, key: &str, path: &str) {
    let token = begin(service, key, path, 60_000).await;
    let url = format!("/v1/idempotency/{key}?method=POST&path={path}");
    let answer = json!({"status": 201, "headers": {"Location": "/orders/17"}, "body": "secret"});
    let complete = service.request(Method::PUT, &url).header("Lock-Token", token).json(&answer);
    assert_eq!(Answer::of(complete).await.status, 200);
}

async fn list(service: &Service, query: &str) -> Vec<Value> {
    let page = service.get(&format!("/console/keys?{query}")).await;
    assert_eq!(page.status, 200, "{page:?}");
    page.json["records"].as_array().expect("records").clone()
}

#[store_test(service)]
async fn list_has_the_records_in_one_state(service: &Service) {
    complete(service, "done-1", "/orders").await;
    begin(service, "open-1", "/orders", 60_000).await;
    begin(service, "lost-1", "/payments", 100).await;
    let lost = eventually(async || {
        let unknown = list(service, "state=unknown").await;
        (unknown.len() == 1).then(|| unknown[0].clone())
    });
    let lost = lost.await;
    for (member, value) in [
        ("key", "lost-1"),
        ("method", "POST"),
        ("path", "/payments"),
        ("principal", ""),
        ("state", "unknown"),
        ("reason", "interrupted"),
    ] {
        assert_eq!(lost[member], value, "{lost}");
    }
    assert_eq!(lost["attempts"], 1);
    assert!(lost["ended_at"].is_string() && lost["fencing_token"].is_u64(), "{lost}");
    for (query, key) in [
        ("state=in-flight", "open-1"),
        ("state=done", "done-1"),
        ("state=unknown&prefix=/pay", "lost-1"),
    ] {
        let found = list(service, query).await;
        assert_eq!((found.len(), &found[0]["key"]), (1, &json!(key)), "{query}: {found:?}");
    }
    assert!(list(service, "state=unknown&prefix=/orders").await.is_empty());
}

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
async fn list_has_what_its_reader_may_read_and_the_number_of_the_others() {
    let mut keyring = Keyring::default();
    let shop = keyring.add("shop", "allow = [{ keys = \"\", may = [\"use\"] }]");
    let allow = "allow = [{ keys = \"pay-\", may = [\"read\"] }]";
    let operator = keyring.add("operator", &format!("act_for = [\"shop\"]\n{allow}"));
    let stranger = keyring.add("stranger", allow);
    let service = Service::start_with(keyring.config()).await;
    service.get("/console/keys").await.is_problem(401, "unauthenticated");
    for key in ["pay-1", "order-1"] {
        let begin = service.request(Method::POST, &format!("/v1/idempotency/{key}"));
        assert_eq!(Answer::of(begin.bearer_auth(&shop)).await.status, 201);
    }
    let get = async |key: &str, path: &str| {
        Answer::of(service.request(Method::GET, path).bearer_auth(key)).await
    };
    let page = get(&operator, "/console/keys?state=in-flight").await.json;
    assert_eq!((page["records"].as_array().map(Vec::len), &page["hidden"]), (Some(1), &json!(1)));
    assert_eq!(
        (&page["records"][0]["key"], &page["records"][0]["principal"]),
        (&json!("pay-1"), &json!("shop"))
    );
    let page = get(&stranger, "/console/keys?state=in-flight").await.json;
    assert_eq!((&page["records"], &page["hidden"]), (&json!([]), &json!(2)));
    let record = "/console/keys/pay-1?principal=shop";
    assert_eq!(get(&operator, record).await.status, 200);
    get(&stranger, record).await.is_problem(403, "forbidden");
    get(&operator, "/console/keys/order-1?principal=shop").await.is_problem(403, "forbidden");
}

#[tokio::test]
async fn record_that_its_scope_does_not_lead_to_is_marked() {
    let service = Service::start("memory:").await;
    let long = format!("/{}", "x".repeat(2000));
    for (key, path) in [("short", "/orders"), ("long", &*long)] {
        begin(&service, key, path, 60_000).await;
    }
    let mut whole: Vec<_> = list(&service, "state=in-flight")
        .await
        .into_iter()
        .map(|record| (record["key"].clone(), record["is_whole"].clone()))
        .collect();
    whole.sort_by_key(|(key, _)| key.to_string());
    assert_eq!(whole, [(json!("long"), json!(false)), (json!("short"), json!(true))]);
}

#[tokio::test]
async fn list_refuses_what_it_does_not_know_by_name() {
    let service = Service::start("memory:").await;
    for (query, field) in [
        ("state=lost", "state"),
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("cursor=%20", "cursor"),
        ("key=a", "key"),
    ] {
        let refused = service.get(&format!("/console/keys?{query}")).await;
        refused.is_problem(400, "invalid-query");
        assert_eq!(refused.json["field"], field, "{query}");
    }
}
