//! Goal: an invalid name, token, query, route or method changes nothing, and the answer names what
//! is wrong and echoes no token.
//!
//! Method: such requests over HTTP. The store has no part in this.

use std::collections::BTreeMap;

use keylatch::http::Code;
use keylatch_testkit::{Answer, Service};
use reqwest::Method;
use reqwest::header::HeaderValue;
use serde_json::json;

const TOKEN: &str = "a-token-of-the-clients-own";

#[tokio::test]
async fn invalid_name_is_refused() {
    let service = Service::start("memory:").await;
    let long = "a".repeat(256);
    let wide = "%C3%A9".repeat(128);
    let names = [
        "", "%FF", "a%C3", "%00", "a%0Ab", "%0D", "%1B", "%7F", "%C2%85", "%", "%2", "a%ZZ", &long,
        &wide,
    ];
    for name in names {
        for method in [Method::POST, Method::PUT, Method::DELETE, Method::GET] {
            let request = service.request(method.clone(), &format!("/v1/locks/{name}"));
            let answer = Answer::of(request.header("Lock-Token", TOKEN)).await;
            answer.is_problem(400, "invalid-name");
            assert_eq!(answer.json["field"], "name", "{method} {name}");
        }
    }
    assert_eq!(service.get("/v1/locks").await.json, json!({"locks": []}));
}

#[tokio::test]
async fn unencoded_slash_in_a_name_is_404() {
    let service = Service::start("memory:").await;
    for method in [Method::POST, Method::PUT, Method::DELETE, Method::GET] {
        for path in ["/v1/locks/a/b", "/v1/locks/a/", "/v1/locks//", "//v1/locks/a"] {
            let answer = Answer::of(service.request(method.clone(), path)).await;
            answer.is_problem(404, "not-found");
        }
    }
}

#[tokio::test]
async fn invalid_token_is_refused_and_not_echoed() {
    let service = Service::start("memory:").await;
    service.create_as("held", TOKEN, &json!({})).await;
    let tokens: [&[u8]; 12] = [
        b"",
        b"short",
        &[b'a'; 19],
        &[b'a'; 129],
        &[b'a'; 4000],
        b"twenty characters or so",
        b"aaaaaaaaaaaaaaaaaaaaaaaa==",
        b"aaaaaaaaaaaaaaaaaaaa+/",
        b"\"aaaaaaaaaaaaaaaaaaaaaa\"",
        b"<opaquelocktoken:aaaaaaaaaaaaaaaa>",
        "aaaaaaaaaaaaaaaaaaaaaü".as_bytes(),
        b"aaaaaaaaaaaaaaaaaaaaaa\xff",
    ];
    for token in tokens {
        for method in [Method::POST, Method::PUT, Method::DELETE] {
            let value = HeaderValue::from_bytes(token).unwrap();
            let request = service.request(method, "/v1/locks/held").header("Lock-Token", value);
            let answer = Answer::of(request).await;
            let said = String::from_utf8_lossy(token);
            answer.is_problem(400, "invalid-token");
            assert_eq!(answer.json["field"], "Lock-Token", "{said}");
            assert!(said.is_empty() || !format!("{answer:?}").contains(&*said), "{answer:?}");
        }
    }
}

#[tokio::test]
async fn two_tokens_are_refused() {
    let service = Service::start("memory:").await;
    service.create_as("held", TOKEN, &json!({})).await;
    for method in [Method::POST, Method::PUT, Method::DELETE] {
        let request = service.request(method, "/v1/locks/held").header("Lock-Token", TOKEN);
        let answer = Answer::of(request.header("Lock-Token", TOKEN)).await;
        answer.is_problem(400, "invalid-token");
        assert_eq!(answer.json["field"], "Lock-Token");
    }
    assert_eq!(service.look("held").await.status, 200);
}

#[tokio::test]
async fn shortest_and_longest_token_are_accepted() {
    let service = Service::start("memory:").await;
    let long = "aZ09_-".repeat(22)[..128].to_owned();
    for token in ["a".repeat(20), long, "6b1f7f0e-9a5c-4c0e-8a5b-0d2f3c4e5a6b".to_owned()] {
        assert_eq!(service.create_as("deploy", &token, &json!({})).await.status, 201);
        assert_eq!(service.renew("deploy", &token, &json!({})).await.token(), token);
        assert_eq!(service.release("deploy", &token).await.status, 204);
    }
}

#[tokio::test]
async fn no_problem_echoes_a_token() {
    let service = Service::start("memory:").await;
    let holder = service.create("held", &json!({})).await.token();
    let refusals = [
        (409, service.create_as("held", TOKEN, &json!({})).await),
        (412, service.renew("held", TOKEN, &json!({})).await),
        (412, service.release("held", TOKEN).await),
        (404, service.release("free", TOKEN).await),
        (400, service.renew("held", &holder, &json!({"ttl_ms": 0})).await),
        (400, service.create_as("free", TOKEN, &json!({"token": TOKEN})).await),
        (404, service.create_as("a/b", TOKEN, &json!({})).await),
        (400, service.create_as("%FF", TOKEN, &json!({})).await),
    ];
    for (status, answer) in refusals {
        assert_eq!(answer.status, status, "{answer:?}");
        let said = format!("{answer:?}");
        assert!(!said.contains(TOKEN) && !said.contains(&holder), "{said}");
    }
}

#[tokio::test]
async fn invalid_query_is_refused_by_name() {
    let service = Service::start("memory:").await;
    service.create("a", &json!({})).await;
    let long = format!("cursor={}", "a".repeat(513));
    let queries = [
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("limit=x", "limit"),
        ("limit=", "limit"),
        ("limit=-1", "limit"),
        ("limit=1.5", "limit"),
        ("limit=99999999999999999999", "limit"),
        ("page=2", "page"),
        ("prefix=a&Limit=1", "Limit"),
        ("cursor=", "cursor"),
        ("cursor=%21%21", "cursor"),
        ("cursor=_", "cursor"),
        ("limit=1&limit=1", "limit"),
        (&long, "cursor"),
    ];
    for (query, field) in queries {
        let answer = service.get(&format!("/v1/locks?{query}")).await;
        assert_names_field(&answer, "invalid-query", field, query);
    }
    for query in ["prefix=%FF", "cursor=%FF", "prefix=%", "prefix=%Zz"] {
        service.get(&format!("/v1/locks?{query}")).await.is_problem(400, "invalid-query");
    }
    for limit in [1, 1000] {
        assert_eq!(service.get(&format!("/v1/locks?limit={limit}")).await.status, 200);
    }
}

#[tokio::test]
async fn query_beside_a_name_is_refused() {
    let service = Service::start("memory:").await;
    for method in [Method::POST, Method::PUT, Method::DELETE, Method::GET] {
        let request = service.request(method.clone(), "/v1/locks/free?ttl_ms=60000");
        let answer = Answer::of(request.header("Lock-Token", TOKEN)).await;
        assert_names_field(&answer, "invalid-query", "ttl_ms", method.as_str());
    }
    service.look("free").await.is_problem(404, "lock-not-held");
}

#[tokio::test]
async fn unknown_route_is_a_problem() {
    let service = Service::start("memory:").await;
    for path in ["/v1", "/v2/locks", "/v1/lock/a", "/V1/locks", "/favicon.ico", "/problems/nothing"]
    {
        service.get(path).await.is_problem(404, "not-found");
    }
    Answer::of(service.request(Method::POST, "/nowhere")).await.is_problem(404, "not-found");
}

#[tokio::test]
async fn unknown_method_is_a_problem_that_lists_allowed_ones() {
    let service = Service::start("memory:").await;
    let routes: BTreeMap<&str, &[&str]> = BTreeMap::from([
        ("/v1/locks/a", &["DELETE", "GET", "HEAD", "POST", "PUT"][..]),
        ("/v1/locks", &["DELETE", "GET", "HEAD", "POST", "PUT"]),
        ("/v1/info", &["GET", "HEAD"]),
        ("/livez", &["GET", "HEAD"]),
        ("/readyz", &["GET", "HEAD"]),
        ("/metrics", &["GET", "HEAD"]),
        ("/openapi.json", &["GET", "HEAD"]),
        ("/docs/", &["GET", "HEAD"]),
        ("/problems/lock-held", &["GET", "HEAD"]),
        ("/", &["GET", "HEAD"]),
    ]);
    for (path, allowed) in routes {
        for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "BREW"] {
            if allowed.contains(&method) {
                continue;
            }
            let method = Method::from_bytes(method.as_bytes()).unwrap();
            let answer = Answer::of(service.request(method, path)).await;
            answer.is_problem(405, "method-not-allowed");
            let mut allow: Vec<_> = answer.header("allow").split(',').map(str::trim).collect();
            allow.sort_unstable();
            assert_eq!(allow, allowed, "{path}");
            let detail = answer.json["detail"].as_str().unwrap_or_default();
            let names_all =
                allowed.iter().all(|method| detail.contains(method) || *method == "HEAD");
            let is_in_document = path.starts_with("/v1/") || path == "/livez";
            assert!(names_all || !is_in_document, "{path}: {detail}");
        }
    }
}

#[tokio::test]
async fn problem_type_leads_to_a_page() {
    let service = Service::start("memory:").await;
    service.create_as("held", TOKEN, &json!({})).await;
    let problems = [
        service.create("", &json!({})).await,
        service.create_as("free", "short", &json!({})).await,
        service.create("free", &json!({"ttl_ms": 0})).await,
        service.get("/v1/locks?limit=0").await,
        service.get("/nowhere").await,
        service.look("free").await,
        Answer::of(service.request(Method::PATCH, "/v1/locks/held")).await,
        service.create("held", &json!({})).await,
        service.release("held", "a-token-of-somebody-else").await,
        Answer::of(service.request(Method::DELETE, "/v1/locks/held")).await,
        send(&service, Method::POST, "free", vec![b' '; 70_000]).await,
    ];
    for problem in problems {
        let code = problem.json["code"].as_str().unwrap_or_else(|| panic!("{problem:?}"));
        assert!(Code::all().any(|known| known.slug() == code), "{code}");
        let page = service.get(problem.json["type"].as_str().unwrap()).await;
        assert_eq!(page.status, 200, "{code}");
        assert_eq!(page.header("content-type"), "text/html; charset=utf-8");
        assert!(page.text.contains(code), "{code}");
    }
}

/// Sends a body to a lock, with a token.
pub(crate) async fn send(
    service: &Service,
    method: Method,
    name: &str,
    body: impl Into<reqwest::Body>,
) -> Answer {
    let request = service.request(method, &format!("/v1/locks/{name}"));
    Answer::of(request.header("Lock-Token", TOKEN).body(body)).await
}

/// Asserts that this is a 400 that names what is wrong, for programs and for people.
#[track_caller]
pub(crate) fn assert_names_field(answer: &Answer, code: &str, field: &str, sent: &str) {
    assert_eq!(answer.status, 400, "{sent}: {answer:?}");
    answer.is_problem(400, code);
    assert_eq!(answer.json["field"], field, "{sent}: {answer:?}");
    let detail = answer.json["detail"].as_str().unwrap_or_default();
    assert!(detail.contains(field), "{sent}: {answer:?}");
}
