//! Goal: `GET /v1/locks` shows every held lock once, page by page.
//!
//! Method: locks made and released between pages, on each store.

use std::collections::BTreeMap;

use keylatch_testkit::{Answer, Service, store_test};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

const TOKEN: &str = "a-token-of-the-clients-own";

#[store_test(memory)]
async fn listing_shows_the_public_view_of_locks(service: &Service) {
    let fences = create(service, &["deploy", "report"]).await;
    let page = service.get("/v1/locks").await;
    assert_eq!(page.status, 200, "{page:?}");
    assert!(!format!("{page:?}").contains(TOKEN), "{page:?}");
    assert_eq!(names(&page), ["deploy", "report"]);
    for lock in page.json["locks"].as_array().unwrap() {
        let name = lock["name"].as_str().unwrap();
        assert_eq!(lock["fencing_token"], fences[name]);
        let seen = service.look(name).await;
        for (member, value) in seen.json.as_object().unwrap() {
            if member != "expires_in_ms" {
                assert_eq!(lock[member], *value, "{member}");
            }
        }
        assert!(lock["expires_in_ms"].as_u64() >= seen.json["expires_in_ms"].as_u64());
        assert_eq!(lock.as_object().unwrap().len(), seen.json.as_object().unwrap().len());
    }
}

#[store_test(memory)]
async fn listing_filters_by_prefix(service: &Service) {
    create(service, &["deploy", "deploy-eu", "Deploy", "de*loy", "de[p]loy", "é", "x/deploy"])
        .await;
    let prefixes: [(&str, &[&str]); 11] = [
        ("deploy", &["deploy", "deploy-eu"]),
        ("deploy-", &["deploy-eu"]),
        ("eploy", &[]),
        ("de*", &["de*loy"]),
        ("de?", &[]),
        ("de[p]", &["de[p]loy"]),
        ("de\\", &[]),
        ("*", &[]),
        ("x/", &["x/deploy"]),
        ("é", &["é"]),
        ("", &["Deploy", "de*loy", "de[p]loy", "deploy", "deploy-eu", "x/deploy", "é"]),
    ];
    for (prefix, expected) in prefixes {
        let query = utf8_percent_encode(prefix, NON_ALPHANUMERIC);
        let page = service.get(&format!("/v1/locks?prefix={query}")).await;
        assert_eq!(names(&page), expected, "{prefix:?}");
    }
}

#[store_test(memory)]
async fn cursors_visit_every_lock(service: &Service) {
    let held: Vec<_> = (0..25).map(|number| format!("lock-{number:02}")).collect();
    let held: Vec<_> = held.iter().map(String::as_str).collect();
    create(service, &held).await;
    for limit in [1, 7, 24, 25, 26, 1000] {
        assert_eq!(walk(service, &format!("limit={limit}"), limit).await, held, "by {limit}");
    }
}

/// Creates locks, and says which fencing tokens they came with.
async fn create<'a>(service: &Service, names: &[&'a str]) -> BTreeMap<&'a str, u64> {
    let mut fences = BTreeMap::new();
    for name in names {
        let path = name.replace('/', "%2F");
        let answer = service.create_as(&path, TOKEN, &json!({"owner": "ci runner 7"})).await;
        assert_eq!(answer.status, 201, "{answer:?}");
        fences.insert(*name, answer.fencing_token());
    }
    fences
}

/// The names on all pages, in order.
async fn walk(service: &Service, query: &str, limit: usize) -> Vec<String> {
    let (mut found, mut cursor) = (Vec::new(), String::new());
    // As many pages as there can be locks: a walk that goes round in circles ends as well.
    for _ in 0..100 {
        let page = service.get(&format!("/v1/locks?{query}{cursor}")).await;
        assert_eq!(page.status, 200, "{page:?}");
        let names = names(&page);
        assert!(names.len() <= limit, "{} of {limit}", names.len());
        found.extend(names);
        match &page.json["next_cursor"] {
            Value::Null => {
                found.sort_unstable();
                return found;
            }
            next => cursor = format!("&cursor={}", next.as_str().expect("a text")),
        }
    }
    panic!("a listing without an end: {found:?}");
}

/// The names on one page, in order.
fn names(page: &Answer) -> Vec<String> {
    let locks = page.json["locks"].as_array().unwrap_or_else(|| panic!("a page: {page:?}"));
    let mut names: Vec<_> =
        locks.iter().map(|lock| lock["name"].as_str().expect("a name").to_owned()).collect();
    names.sort_unstable();
    names
}
