//! Goal: a guard finds the key where it says that it is, and the keys of two sources never meet.
//!
//! Method: requests with keys in headers, JSON, forms and queries, on a store in memory; what a
//! record is called and what the upstream reads of it.

use keylatch::http::{Guard, KeySource, MissingKey};
use keylatch_testkit::{Answer, Shop};
use reqwest::{Method, RequestBuilder};

const FORM: &str = "application/x-www-form-urlencoded";

/// The sources of keys with these names.
fn sources<const N: usize>(names: [&str; N]) -> Vec<KeySource> {
    names.map(|name| name.to_owned().try_into().expect("a source")).to_vec()
}

async fn shop_of<const N: usize>(names: [&str; N]) -> Shop {
    Shop::open_with("memory:", |guard| guard.key = sources(names)).await
}

fn json(shop: &Shop, body: &str) -> RequestBuilder {
    let request = shop.request(Method::POST, "/orders").header("Content-Type", "application/json");
    request.body(body.to_owned())
}

fn form(shop: &Shop, body: &str) -> RequestBuilder {
    shop.request(Method::POST, "/orders").header("Content-Type", FORM).body(body.to_owned())
}

fn query(shop: &Shop, query: &str) -> RequestBuilder {
    shop.request(Method::POST, &format!("/orders?{query}"))
}

#[tokio::test]
async fn key_is_found_in_each_kind_of_source() {
    let shop = shop_of(["header:Webhook-Id", "json:/order/no", "form:order_no", "query:id"]).await;
    let header =
        || shop.request(Method::POST, "/orders").header("Webhook-Id", "a 1".replace(' ', "-"));
    let kinds: [(&str, &str, &dyn Fn() -> RequestBuilder); 6] = [
        ("header", "a-1", &header),
        ("json", "17", &|| json(&shop, r#"{"order": {"no": 17}}"#)),
        ("json", "a", &|| json(&shop, r#"{"order": {"no": "\u0061"}}"#)),
        ("json", "123456789012345678901234567890", &|| {
            json(&shop, r#"{"order": {"no": 123456789012345678901234567890}}"#)
        }),
        ("form", "17", &|| form(&shop, "order_no=17&x=1")),
        ("query", "1+7", &|| query(&shop, "a=b&%69d=%31+7")),
    ];
    for (run, (kind, key, request)) in (1..).zip(kinds) {
        let first = Answer::of(request()).await;
        first.is_run(run);
        assert_eq!(first.header("idempotency-key-source"), kind, "{first:?}");
        assert_eq!(shop.upstream.last().headers["idempotency-key"], key);
        let again = Answer::of(request()).await;
        again.is_replay_of(run);
        assert_eq!(again.header("idempotency-key-source"), kind, "{again:?}");
    }
}

#[tokio::test]
async fn first_source_that_is_there_counts() {
    let shop = shop_of(["header:Idempotency-Key", "json:/no"]).await;
    Answer::of(json(&shop, r#"{"no": 1}"#).header("Idempotency-Key", "a")).await.is_run(1);
    Answer::of(json(&shop, r#"{"no": 1}"#)).await.is_run(2);
    Answer::of(json(&shop, r#"{"no": 1}"#).header("Idempotency-Key", "a")).await.is_replay_of(1);
    Answer::of(json(&shop, r#"{"no": 1}"#)).await.is_replay_of(2);
    // One that is not listed does not count, and the upstream reads the one that does.
    let shop = shop_of(["json:/no"]).await;
    Answer::of(json(&shop, r#"{"no": 1}"#).header("Idempotency-Key", "a")).await.is_run(1);
    Answer::of(json(&shop, r#"{"no": 1}"#).header("Idempotency-Key", "b")).await.is_replay_of(1);
    let refused = Answer::of(json(&shop, "{}").header("Idempotency-Key", "c")).await;
    refused.is_refusal(400, "key-required", "new-key");
    assert_eq!(
        (refused.header("idempotency-key-source"), &refused.json["field"]),
        ("none", &"json:/no".into())
    );
}

#[tokio::test]
async fn keys_of_two_sources_never_meet() {
    let shop = shop_of(["header:Idempotency-Key", "header:Webhook-Id", "query:id"]).await;
    let order = |header: &str| shop.request(Method::POST, "/orders").header(header, "k");
    Answer::of(order("Idempotency-Key")).await.is_run(1);
    Answer::of(order("Webhook-Id")).await.is_run(2);
    Answer::of(query(&shop, "id=k")).await.is_run(3);
    for (source, state) in
        [("", "done"), ("header:webhook-id", "done"), ("query:id", "done"), ("derived", "")]
    {
        let path = format!("/v1/idempotency/k?method=POST&path=/orders&source={source}");
        let record = shop.get(&path).await;
        assert_eq!(
            record.json["state"].as_str().unwrap_or_default(),
            state,
            "{source}: {record:?}"
        );
    }
    let listed = shop.get("/v1/idempotency?limit=10").await.json;
    let listed = listed["records"].as_array().expect("records").iter();
    let mut listed: Vec<_> = listed.map(|one| one["source"].as_str().unwrap_or_default()).collect();
    listed.sort_unstable();
    assert_eq!(listed, ["", "header:webhook-id", "query:id"]);
}

#[tokio::test]
async fn what_is_no_key_names_its_source() {
    let shop = shop_of(["header:Webhook-Id", "json:/no", "form:no", "query:id"]).await;
    let twice =
        shop.request(Method::POST, "/orders").header("Webhook-Id", "a").header("Webhook-Id", "a");
    let long = "9".repeat(256);
    for (request, field) in [
        (twice, "header:webhook-id"),
        (json(&shop, r#"{"no": {"a": 1}}"#), "json:/no"),
        (json(&shop, r#"{"no": ""}"#), "json:/no"),
        (json(&shop, r#"{"no": null}"#), "json:/no"),
        (json(&shop, r#"{"no": true}"#), "json:/no"),
        (json(&shop, r#"{"no": 1, "no": 2}"#), "json:/no"),
        (json(&shop, "{"), "json:/no"),
        (json(&shop, &format!(r#"{{"no": {long}}}"#)), "json:/no"),
        (form(&shop, "no=1&no=1"), "form:no"),
        (form(&shop, "no="), "form:no"),
        (query(&shop, "id=1&id=1"), "query:id"),
        (query(&shop, "id"), "query:id"),
    ] {
        let refused = Answer::of(request).await;
        refused.is_refusal(400, "invalid-key", "new-key");
        assert_eq!(refused.json["field"], field, "{refused:?}");
    }
    assert_eq!(shop.upstream.runs(), 0);
}

/// A question by the bare key would find nothing at an upstream that kept a quoted one.
#[tokio::test]
async fn upstream_reads_the_bare_key() {
    let shop = shop_of(["header:Idempotency-Key"]).await;
    for quoted in ["\"k-1\"", "\"k-1\";a=b", "k-2"] {
        shop.buy(quoted).await;
        let bare = if quoted == "k-2" { "k-2" } else { "k-1" };
        assert_eq!(shop.upstream.last().headers["idempotency-key"], bare);
    }
}

#[tokio::test]
async fn response_without_a_key_says_none() {
    let pass = |guard: &mut Guard| guard.missing_key = MissingKey::Pass;
    let shop = Shop::open_with("memory:", pass).await;
    let unguarded = Answer::of(json(&shop, "{}")).await;
    assert_eq!(
        (unguarded.status.as_u16(), unguarded.header("idempotency-key-source")),
        (201, "none")
    );
    // What the upstream says of it is not believed.
    shop.upstream.answers(|_| [("Idempotency-Key-Source", "header")]);
    let unguarded = Answer::of(json(&shop, "{}")).await;
    assert_eq!(unguarded.header("idempotency-key-source"), "none");
}
