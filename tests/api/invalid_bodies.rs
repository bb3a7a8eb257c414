//! Goal: a body that is invalid, too large or cut off changes nothing, and the answer names what is
//! wrong.
//!
//! Method: such bodies through an HTTP client and through raw connections. The store has no part in
//! this.

use futures_util::stream;
use keylatch_testkit::{Answer, RawConnection, Service};
use reqwest::{Body, Method};
use serde_json::json;

use crate::invalid_input::{assert_names_field, send};

const TOKEN: &str = "a-token-of-the-clients-own";
const LIMIT: usize = 64 * 1024;
const TEN_MEGABYTES: usize = 10_000_000;

#[tokio::test]
async fn ttl_out_of_range_is_refused_by_name() {
    let service = Service::start("memory:").await;
    let ttls = [
        "0",
        "99",
        "-1",
        "1.5",
        "30000.5",
        "-30000.0",
        "86400001",
        "1e1",
        "1e400",
        "99999999999999999999",
        "18446744073709551615",
        r#""30000""#,
        r#""""#,
        "true",
        "[]",
        "[30000]",
        "{}",
    ];
    service.create_as("held", TOKEN, &json!({})).await;
    for ttl in ttls {
        let body = format!(r#"{{"ttl_ms": {ttl}}}"#);
        for (method, name) in [(Method::POST, "free"), (Method::PUT, "held")] {
            let answer = send(&service, method.clone(), name, body.clone()).await;
            assert_names_field(&answer, "invalid-body", "ttl_ms", &format!("{method} {body}"));
        }
    }
    service.look("free").await.is_problem(404, "lock-not-held");
}

#[tokio::test]
async fn shortest_and_longest_ttl_are_accepted() {
    let service = Service::start("memory:").await;
    for ttl in [100, 86_400_000] {
        let body = json!({"ttl_ms": ttl});
        let created = service.create(&format!("for-{ttl}"), &body).await;
        assert_eq!((created.status.as_u16(), &created.json["ttl_ms"]), (201, &json!(ttl)));
        service.create_as("renewed", TOKEN, &json!({})).await;
        let renewed = service.renew("renewed", TOKEN, &body).await;
        assert_eq!((renewed.status.as_u16(), &renewed.json["ttl_ms"]), (200, &json!(ttl)));
    }
}

/// Programs whose numbers are floats write whole numbers so, and JSON has no other kind.
#[tokio::test]
async fn whole_number_is_accepted_however_it_is_written() {
    let service = Service::start("memory:").await;
    for (number, ttl) in ["5000", "5000.0", "5e3", "50e2", "5.0E+3"].into_iter().enumerate() {
        let body = format!(r#"{{"ttl_ms": {ttl}, "wait_ms": 0.0}}"#);
        let created = send(&service, Method::POST, &format!("l-{number}"), body).await;
        assert_eq!(
            (created.status.as_u16(), &created.json["ttl_ms"]),
            (201, &json!(5000)),
            "{ttl}"
        );
    }
    let record = service.request(Method::POST, "/v1/idempotency/k-1");
    let begun = Answer::of(record.body(r#"{"lease_ms": 5000.0, "retention_ms": null}"#)).await;
    assert_eq!(begun.json["lease_expires_in_ms"], 5000, "{begun:?}");
    let answer = service.request(Method::PUT, "/v1/idempotency/k-1");
    let answer = answer.header("Lock-Token", begun.token()).body(r#"{"status": 201.0}"#);
    assert_eq!(Answer::of(answer).await.json["status"], 201);
    let order = service.request(Method::POST, "/v1/orders").header("Idempotency-Key", "k-2");
    let order = Answer::of(order.body(r#"{"amount": 5000.0, "currency": "EUR"}"#)).await;
    assert_eq!((order.status.as_u16(), &order.json["amount"]), (201, &json!(5000)), "{order:?}");
}

/// A refusal names the rule or the right name, and no type of serde.
#[tokio::test]
async fn detail_says_what_is_wrong_and_what_is_right() {
    let service = Service::start("memory:").await;
    let range = "must be 100 to 86400000 (24 h), not";
    for (body, detail) in [
        (r#"{"ttl_ms":5}"#, format!("`ttl_ms` {range} 5.")),
        (r#"{"ttl_ms":-5}"#, format!("`ttl_ms` {range} -5.")),
        (r#"{"ttl_ms":1.5}"#, format!("`ttl_ms` {range} 1.5.")),
        (r#"{"ttl_ms":"30s"}"#, format!("`ttl_ms` {range} \"30s\".")),
        (r#"{"ttl_ms":[]}"#, format!("`ttl_ms` {range} a list.")),
        (r#"{"wait_ms":-1}"#, "`wait_ms` must be a whole number of 0 or more, not -1.".into()),
        (r#"{"owner":5}"#, "`owner` must be a string, not 5.".into()),
        (r#"{"mode":"x"}"#, "`mode` must be `exclusive` or `shared`, not `x`.".into()),
        (r#"{"tll_ms":5}"#, "`tll_ms` is unknown: did you mean `ttl_ms`?".into()),
        (r#"{"ttl_ms":1000,"ttl_ms":1000}"#, "`ttl_ms` is there twice.".into()),
        (r#"{"ttl_ms":"#, "The JSON ends too early, after `ttl_ms`, at line 1, column 10.".into()),
        ("{\n\"ttl_ms\":500", "The JSON ends too early, at line 2, column 12.".into()),
        (r#"{"ttl_ms":500,}"#, "The body is not JSON at line 1, column 15.".into()),
        ("\"x\"", "The body must be a JSON object, not \"x\".".into()),
        ("<lock/>", "The body is XML; send a JSON object.".into()),
    ] {
        let refused = send(&service, Method::POST, "a", body).await;
        refused.is_problem(400, "invalid-body");
        assert_eq!(refused.json["detail"], detail, "{body}");
    }
    let unknown = send(&service, Method::POST, "a", r#"{"password":1}"#).await;
    let detail = unknown.json["detail"].as_str().unwrap_or_default();
    let all = "`password` is unknown: use one of `ttl_ms`, `owner`, `wait_ms`";
    assert!(detail.starts_with(all), "{detail}");
}

/// What `curl -d ttl_ms=5000` and an HTML form send.
#[tokio::test]
async fn form_in_place_of_json_gets_a_message_that_helps() {
    let service = Service::start("memory:").await;
    for path in ["/v1/locks/deploy", "/v1/locks", "/v1/idempotency/k-1"] {
        for body in ["ttl_ms=5000", "ttl_ms=5000&owner=ci+runner", "owner=", "names%5B%5D=a"] {
            let request = service.request(Method::POST, path);
            let form = ("Content-Type", "application/x-www-form-urlencoded");
            let refused = Answer::of(request.header(form.0, form.1).body(body)).await;
            refused.is_problem(400, "invalid-body");
            let detail = refused.json["detail"].as_str().expect("a detail");
            assert!(detail.contains("is a form") && detail.contains("{\"ttl_ms\""), "{refused:?}");
        }
    }
}

#[tokio::test]
async fn owner_above_256_bytes_is_refused() {
    let service = Service::start("memory:").await;
    for (name, owner) in [("a", "a".repeat(256)), ("b", "é".repeat(128))] {
        let created = service.create(name, &json!({"owner": owner})).await;
        assert_eq!((created.status.as_u16(), &created.json["owner"]), (201, &json!(owner)));
    }
    let too_long = json!("a".repeat(257));
    let wide = json!("é".repeat(129));
    for owner in [
        too_long,
        wide,
        json!("a\nb"),
        json!("\0"),
        json!("\u{7f}"),
        json!("\u{85}"),
        json!(7),
        json!(true),
        json!(["ci"]),
        json!({}),
    ] {
        let answer = service.create("free", &json!({"owner": owner})).await;
        assert_names_field(&answer, "invalid-body", "owner", &owner.to_string());
    }
    let half = send(&service, Method::POST, "free", r#"{"owner": "\ud800"}"#).await;
    half.is_problem(400, "invalid-body");
}

#[tokio::test]
async fn invalid_wait_is_refused() {
    let service = Service::start("memory:").await;
    for wait in [json!(300_001), json!(-1), json!(0.5), json!("x"), json!("0"), json!([])] {
        let answer = service.create("free", &json!({"wait_ms": wait})).await;
        assert_names_field(&answer, "invalid-body", "wait_ms", &wait.to_string());
    }
    assert_eq!(service.create("free", &json!({"wait_ms": 0})).await.status, 201);
}

#[tokio::test]
async fn unknown_member_is_refused_by_name() {
    let service = Service::start("memory:").await;
    service.create_as("held", TOKEN, &json!({})).await;
    let bodies = [
        (Method::POST, r#"{"ttl": 30000}"#, "ttl"),
        (Method::POST, r#"{"ttl_ms": 30000, "TTL_MS": 1}"#, "TTL_MS"),
        (Method::POST, r#"{"token": null}"#, "token"),
        (Method::POST, r#"{"": 1}"#, ""),
        (Method::PUT, r#"{"owner": "ci"}"#, "owner"),
        (Method::PUT, r#"{"wait_ms": 0}"#, "wait_ms"),
    ];
    for (method, body, field) in bodies {
        let name = if method == Method::PUT { "held" } else { "free" };
        let answer = send(&service, method, name, body).await;
        assert_names_field(&answer, "invalid-body", field, body);
    }
    service.look("free").await.is_problem(404, "lock-not-held");
}

#[tokio::test]
async fn duplicate_member_is_refused() {
    let service = Service::start("memory:").await;
    service.create_as("held", TOKEN, &json!({})).await;
    for (body, member) in [
        (r#"{"ttl_ms": 30000, "ttl_ms": 30000}"#, "ttl_ms"),
        (r#"{"ttl_ms": null, "ttl_ms": 40000}"#, "ttl_ms"),
    ] {
        for (method, name) in [(Method::POST, "free"), (Method::PUT, "held")] {
            let answer = send(&service, method, name, body).await;
            answer.is_problem(400, "invalid-body");
            assert!(answer.json["detail"].as_str().unwrap().contains(member), "{answer:?}");
        }
    }
}

#[tokio::test]
async fn body_that_is_not_a_json_object_is_refused() {
    let service = Service::start("memory:").await;
    service.create_as("held", TOKEN, &json!({})).await;
    let deep = "[".repeat(10_000);
    let deep_member = format!(r#"{{"owner": {deep}"#);
    let deep_unknown = format!(r#"{{"x": {deep}"#);
    let bodies: [&[u8]; 20] = [
        b"[]",
        b"[30000]",
        b" [30000, null, 0]",
        b"\"x\"",
        b"1",
        b"true",
        b"nul",
        b"{",
        b"}",
        b"{\"ttl_ms\": 30000",
        b"{\"ttl_ms\"}",
        b"{} {}",
        b"{}x",
        b"{\"ttl_ms\": 30000},",
        b"ttl_ms=30000",
        b"\xff\xfe",
        b"{\"owner\": \"\xff\"}",
        deep.as_bytes(),
        deep_member.as_bytes(),
        deep_unknown.as_bytes(),
    ];
    for body in bodies {
        for (method, name) in [(Method::POST, "free"), (Method::PUT, "held")] {
            let answer = send(&service, method, name, body.to_vec()).await;
            let start = String::from_utf8_lossy(&body[..body.len().min(40)]);
            assert_eq!(answer.status, 400, "{start}: {answer:?}");
            answer.is_problem(400, "invalid-body");
        }
    }
    service.look("free").await.is_problem(404, "lock-not-held");
    assert_eq!(service.get("/livez").await.status, 200);
}

#[tokio::test]
async fn body_above_64_kib_is_refused() {
    let service = Service::start("memory:").await;
    for (name, length, status) in [("largest", LIMIT, 201), ("larger", LIMIT + 1, 413)] {
        let body = format!("{}{{}}", " ".repeat(length - 2));
        let request = service.request(Method::POST, &format!("/v1/locks/{name}"));
        let answer = Answer::of(request.body(body)).await;
        assert_eq!(answer.status, status, "{length}: {answer:?}");
    }
    let chunk = || stream::iter([Ok::<_, std::io::Error>(" ".repeat(LIMIT / 2))]);
    for (name, end, status) in [("chunks", "", 201), ("more-chunks", "{}", 413)] {
        let rest = " ".repeat(LIMIT / 2 - 2) + "{}" + end;
        let chunks = stream::StreamExt::chain(chunk(), stream::iter([Ok(rest)]));
        let request = service.request(Method::POST, &format!("/v1/locks/{name}"));
        let answer = Answer::of(request.body(Body::wrap_stream(chunks))).await;
        assert_eq!(answer.status, status, "{name}: {answer:?}");
    }
}

#[tokio::test]
async fn http_client_reads_413_for_10_mb() {
    let service = Service::start("memory:").await;
    for method in [Method::POST, Method::PUT] {
        let chunk = || Ok::<_, std::io::Error>(vec![b' '; TEN_MEGABYTES / 100]);
        let chunks = stream::iter((0..100).map(move |_| chunk()));
        for body in [Body::from(vec![b' '; TEN_MEGABYTES]), Body::wrap_stream(chunks)] {
            let request = service.request(method.clone(), "/v1/locks/deploy");
            let request = request.header("Lock-Token", "a-token-of-the-clients-own");
            let answer = Answer::of(request.body(body)).await;
            answer.is_problem(413, "payload-too-large");
            // The client must not use the connection again.
            assert_eq!(answer.header("connection"), "close");
        }
    }
    service.look("deploy").await.is_problem(404, "lock-not-held");
}

#[tokio::test]
async fn client_that_writes_10_mb_first_reads_413() {
    let service = Service::start("memory:").await;
    let part = TEN_MEGABYTES / 100;
    let chunk = format!("{part:x}\r\n{}\r\n", " ".repeat(part));
    for (framing, body) in [
        (format!("Content-Length: {TEN_MEGABYTES}"), " ".repeat(TEN_MEGABYTES)),
        ("Transfer-Encoding: chunked".to_owned(), chunk.repeat(100) + "0\r\n\r\n"),
    ] {
        let mut wire = RawConnection::sending(service.address, &head(&framing)).await;
        wire.send(&body).await;
        wire.answer().await.is_problem(413, "payload-too-large");
    }
}

#[tokio::test]
async fn truncated_body_acquires_nothing() {
    let service = Service::start("memory:").await;
    let cuts = [
        ("Content-Length: 100", r#"{"ttl_ms": 30000}"#),
        ("Content-Length: 100", ""),
        ("Transfer-Encoding: chunked", "11\r\n{\"ttl_ms\": 30000}\r\n"),
        ("Transfer-Encoding: chunked", "40\r\n{\"ttl_ms\": 30000}"),
    ];
    for (framing, body) in cuts {
        let mut wire = RawConnection::connect(service.address).await;
        wire.send(&format!("{}{body}", head(framing))).await;
        wire.finish().await;
        // A client that has ended its side counts as gone, and gets an answer only by chance.
        let rest = wire.rest().await;
        let is_refused = rest.starts_with("HTTP/1.1 400 ") && rest.contains("invalid-body");
        assert!(rest.is_empty() || is_refused, "{framing} {body}: {rest}");
        service.look("deploy").await.is_problem(404, "lock-not-held");
    }
    assert_eq!(service.create("deploy", &json!({})).await.status, 201);
}

fn head(framing: &str) -> String {
    format!(
        "POST /v1/locks/deploy HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{framing}\r\n\r\n"
    )
}
