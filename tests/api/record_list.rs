//! Goal: an operator finds what needs a person, by state and path, with all that it takes to settle
//! it.
//!
//! Method: records made by `/v1/idempotency` and by guarded routes, lists over HTTP, with and
//! without identities, and the URL that a problem and a list give for an unknown outcome.

use keylatch_testkit::{Answer, Keyring, Service, eventually, store_test};
use reqwest::Method;
use serde_json::{Value, json};

/// Begins a run and gives the token of it.
pub(crate) async fn begin(service: &Service, key: &str, path: &str, lease_ms: u64) -> String {
    let url = format!("/v1/idempotency/{key}?method=POST&path={path}");
    let begin = service.request(Method::POST, &url).json(&json!({"lease_ms": lease_ms}));
    let begun = Answer::of(begin).await;
    assert_eq!(begun.status, 201, "{begun:?}");
    begun.token()
}

pub(crate) async fn complete(service: &Service, key: &str, path: &str) {
    let token = begin(service, key, path, 60_000).await;
    let url = format!("/v1/idempotency/{key}?method=POST&path={path}");
    let answer = json!({"status": 201, "headers": {"Location": "/orders/17"}, "body": "secret"});
    let complete = service.request(Method::PUT, &url).header("Lock-Token", token).json(&answer);
    assert_eq!(Answer::of(complete).await.status, 200);
}

/// A service in which a shop has begun runs under `pay-1` and `order-1`; the keys of an operator
/// who may read those that begin with `pay-` for it, and of a stranger who may read the same, but
/// not for it.
pub(crate) async fn used_by_a_shop() -> (Service, Keyring, [String; 2]) {
    let mut keyring = Keyring::default();
    let shop = keyring.add("shop", "allow = [{ keys = \"\", may = [\"use\"] }]");
    let allow = "allow = [{ keys = \"pay-\", may = [\"read\"] }]";
    let operator = keyring.add("operator", &format!("act_for = [\"shop\"]\n{allow}"));
    let stranger = keyring.add("stranger", allow);
    let service = Service::start_with(keyring.config()).await;
    for key in ["pay-1", "order-1"] {
        let begin = service.request(Method::POST, &format!("/v1/idempotency/{key}"));
        assert_eq!(Answer::of(begin.bearer_auth(&shop)).await.status, 201);
    }
    (service, keyring, [operator, stranger])
}

async fn list(service: &Service, query: &str) -> Vec<Value> {
    let page = service.get(&format!("/v1/idempotency?{query}")).await;
    assert_eq!(page.status, 200, "{page:?}");
    page.json["records"].as_array().expect("records").clone()
}

#[store_test(service)]
async fn list_has_the_records_in_one_state(service: &Service) {
    complete(service, "done-1", "/orders").await;
    begin(service, "open-1", "/orders", 60_000).await;
    begin(service, "lost-1", "/payments", 1500).await;
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
        ("path=/payments", "lost-1"),
        ("key_prefix=lost-", "lost-1"),
        ("state=done&key_prefix=done-1", "done-1"),
    ] {
        let found = list(service, query).await;
        assert_eq!((found.len(), &found[0]["key"]), (1, &json!(key)), "{query}: {found:?}");
    }
    assert!(list(service, "state=unknown&prefix=/orders").await.is_empty());
    assert!(list(service, "state=unknown&key_prefix=open").await.is_empty());
}

#[store_test(memory)]
async fn pages_have_every_record_once(service: &Service) {
    for number in 0..5 {
        begin(service, &format!("open-{number}"), "/orders", 60_000).await;
    }
    let (mut seen, mut query) = (Vec::new(), "state=in-flight&limit=2".to_owned());
    loop {
        let page = service.get(&format!("/v1/idempotency?{query}")).await.json;
        let records = page["records"].as_array().expect("records");
        seen.extend(records.iter().map(|record| record["key"].as_str().expect("a key").to_owned()));
        let Some(cursor) = page["next_cursor"].as_str() else { break };
        query = format!("state=in-flight&limit=2&cursor={cursor}");
    }
    seen.sort();
    assert_eq!(seen, ["open-0", "open-1", "open-2", "open-3", "open-4"]);
}

#[store_test(memory)]
async fn problem_of_an_unknown_outcome_leads_to_settling_it(service: &Service) {
    let order = || {
        let order = service.request(Method::POST, "/v1/payments");
        let order = order.header("Idempotency-Key", "\"pay 17; é?&=\"".replace('é', "e"));
        order.json(&json!({"amount": 1999, "currency": "EUR", "fail": 500}))
    };
    assert_eq!(Answer::of(order()).await.status, 500);
    let unknown = Answer::of(order()).await;
    unknown.is_problem(409, "outcome-unknown");
    let url = unknown.json["resolve"].as_str().expect("a URL").to_owned();
    let listed = list(service, "state=unknown").await;
    assert_eq!(listed[0]["resolve"], url, "{listed:?}");

    let settle = json!({"outcome": "not-executed", "reason": "the books have none", "by": "ann"});
    let settled = Answer::of(service.request(Method::POST, &url).json(&settle)).await;
    assert_eq!(settled.status, 204, "{settled:?}");
    assert!(list(service, "state=unknown").await.is_empty());
}

#[store_test(memory)]
async fn record_keeps_who_settled_it_and_why(service: &Service) {
    begin(service, "lost-1", "/payments", 1500).await;
    let url = "/v1/idempotency/lost-1?method=POST&path=/payments";
    let unknown = eventually(async || {
        let record = service.get(url).await.json;
        (record["state"] == "unknown").then_some(record)
    });
    assert_eq!(unknown.await["settled"], Value::Null);
    let resolve = url.replace('?', "/resolve?");
    let answer = json!({"status": 201, "headers": {"Location": "/payments/17"}});
    let settle = json!({
        "outcome": "completed", "answer": answer, "reason": "the bank has it", "by": "ann"
    });
    for _ in 0..2 {
        let settled = Answer::of(service.request(Method::POST, &resolve).json(&settle)).await;
        assert_eq!(settled.status, 200, "{settled:?}");
    }
    let record = service.get(url).await;
    assert_eq!(record.json["settled"], json!({"by": "ann", "reason": "the bank has it"}));
    let again = Answer::of(service.request(Method::POST, url)).await;
    assert_eq!(again.status, 200, "{again:?}");
    assert_eq!(again.json["answer"]["headers"], json!({"location": ["/payments/17"]}));
    assert!(!again.text.contains("the bank has it"), "a client reads the note: {again:?}");
}

#[store_test(memory)]
async fn unknown_outcome_of_a_call_leads_to_settling_it(service: &Service) {
    begin(service, "lost-1", "/payments", 1500).await;
    let unknown = eventually(async || {
        let url = "/v1/idempotency/lost-1?method=POST&path=/payments";
        let again = Answer::of(service.request(Method::POST, url)).await;
        (again.status == 409 && again.json["code"] == "outcome-unknown").then_some(again)
    });
    let unknown = unknown.await;
    let url = unknown.json["resolve"].as_str().expect("a URL");
    let settle = json!({"outcome": "completed", "answer": {"status": 201, "json": {"id": 17}}});
    let settled = Answer::of(service.request(Method::POST, url).json(&settle)).await;
    assert_eq!((settled.status.as_u16(), &settled.json["state"]), (200, &json!("done")));
}

#[tokio::test]
async fn list_has_what_its_reader_may_read_and_the_number_of_the_others() {
    let (service, _keyring, [operator, stranger]) = used_by_a_shop().await;
    service.get("/v1/idempotency").await.is_problem(401, "unauthenticated");
    let get = async |key: &str, path: &str| {
        Answer::of(service.request(Method::GET, path).bearer_auth(key)).await
    };
    let page = get(&operator, "/v1/idempotency?state=in-flight").await.json;
    assert_eq!((page["records"].as_array().map(Vec::len), &page["hidden"]), (Some(1), &json!(1)));
    assert_eq!(
        (&page["records"][0]["key"], &page["records"][0]["principal"]),
        (&json!("pay-1"), &json!("shop"))
    );
    let page = get(&stranger, "/v1/idempotency?state=in-flight").await.json;
    assert_eq!((&page["records"], &page["hidden"]), (&json!([]), &json!(2)));
    // Or the number would tell the keys of others, letter by letter.
    let page = get(&stranger, "/v1/idempotency?state=in-flight&key_prefix=pay-").await.json;
    assert_eq!((&page["records"], &page["hidden"]), (&json!([]), &Value::Null));
    let page = get(&operator, "/v1/idempotency?key_prefix=pay-").await.json;
    assert_eq!(
        (page["records"].as_array().map(Vec::len), &page["hidden"]),
        (Some(1), &Value::Null)
    );
}

#[tokio::test]
async fn search_tells_nothing_of_the_records_of_others() {
    let mut keyring = Keyring::default();
    let shop = keyring.add("shop", "allow = [{ keys = \"\", may = [\"use\"] }]");
    let stranger =
        keyring.add("stranger", "allow = [{ keys = \"my-\", may = [\"use\", \"read\"] }]");
    let worker = keyring.add("worker", "allow = [{ locks = \"\", may = [\"read\"] }]");
    let service = Service::start_with(keyring.config()).await;
    for (key, record, path) in [
        (&shop, "inv-4711-ACME", "/customers/ann"),
        (&shop, "inv-4712-ACME", "/customers/ann"),
        (&stranger, "my-1", "/customers/me"),
    ] {
        let begin = format!("/v1/idempotency/{record}?method=POST&path={path}");
        let begin = service.request(Method::POST, &begin).bearer_auth(key);
        assert_eq!(Answer::of(begin).await.status, 201);
    }
    let list = async |key: &str, query: &str| {
        let list = service.request(Method::GET, &format!("/v1/idempotency?{query}"));
        Answer::of(list.bearer_auth(key)).await
    };
    let nothing = list(&stranger, "limit=1&key_prefix=none").await;
    assert_eq!(nothing.status, 200, "{nothing:?}");
    for query in ["key_prefix=inv-4711", "path=/customers/ann", "prefix=/customers/a"] {
        for state in ["", "&state=in-flight"] {
            let found = list(&stranger, &format!("limit=1&{query}{state}")).await;
            assert_eq!(found.json, nothing.json, "{query}{state}");
        }
    }
    let own = list(&stranger, "limit=2&prefix=/customers/").await.json;
    assert_eq!((own["records"].as_array().map(Vec::len), &own["hidden"]), (Some(1), &Value::Null));
    for query in ["", "key_prefix=inv-4711"] {
        list(&worker, query).await.is_problem(403, "forbidden");
    }
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
        ("state=done&state=done", "state"),
    ] {
        let refused = service.get(&format!("/v1/idempotency?{query}")).await;
        refused.is_problem(400, "invalid-query");
        assert_eq!(refused.json["field"], field, "{query}");
    }
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
