//! Goal: no spelling of a path goes by a looser guard than the path itself, and none leaves its
//! guard.
//!
//! Method: a guard that wants no key around one that does, and raw requests for every spelling that
//! some server reads as the inner path.

use keylatch::http::{Guard, MissingKey};
use keylatch_testkit::{RawConnection, Service, Upstream, config};

/// A service with `/api`, where a key is optional, and within it `/api/payments`, where it is not.
async fn nested_guards(upstream: &Upstream) -> Service {
    let guard = |path: &str, missing_key| Guard {
        path: path.to_owned(),
        upstream: upstream.url(),
        missing_key,
        ..Guard::default()
    };
    let mut config = config("memory:");
    config.guard =
        vec![guard("/api", MissingKey::Pass), guard("/api/payments", MissingKey::Refuse)];
    Service::start_with(config).await
}

async fn post(service: &Service, path: &str) -> keylatch_testkit::Answer {
    let head = format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n");
    RawConnection::sending(service.address, &head).await.answer().await
}

/// What some server reads as `/api/payments`, or what no two servers read alike.
const SPELLINGS: [&str; 33] = [
    "/api/Payments",
    "/api/payments.json",
    "/api/%70ayments",
    "/api/payment%73/1",
    "/api//payments",
    "/api/./payments",
    "/api/%2e/payments",
    "/api/.;x/payments",
    "/api/;x/payments",
    "/api/payments;x=1",
    "/api/payments;x=1/1",
    "/api/%2Fpayments",
    "/api/payments%2F1",
    "/api/payments%5c1",
    "/api/payments%3bx=1",
    "/api/payments\\1",
    "/api/\\payments",
    "/api/%2570ayments",
    "/api/%25252570ayments",
    "/api/%252Fpayments",
    "/api/payments.",
    "/api/payments..%20./1",
    "/api/payments%20",
    "/api/payments%20;x",
    "/api/.../payments",
    "/api/%20/payments",
    "/api/payments%00",
    "/api/payments%2500.txt",
    "/api/pay%0Aments",
    "/api/%c0%afpayments",
    "/api/pa%F9ments",
    "/api/100%25",
    "/api/100%2525",
];

#[tokio::test]
async fn other_spelling_of_a_path_does_not_avoid_its_guard() {
    let upstream = Upstream::start().await;
    let service = nested_guards(&upstream).await;
    post(&service, "/api/payments").await.is_refusal(400, "key-required", "new-key");
    for path in SPELLINGS {
        let answer = post(&service, path).await;
        answer.is_problem(404, "not-found");
    }
    assert_eq!(upstream.runs(), 0);
    // What no server takes for the inner path goes by the outer guard, as it is.
    for (run, path) in (1..).zip([
        "/api/orders//1",
        "/api/orders/a%2Fb;v=1",
        "/api/payment%C3%9F",
        "/api/report.",
        "/api/a%20b",
    ]) {
        post(&service, path).await.is_run(run);
        assert_eq!(upstream.last().uri.to_string(), path);
    }
}

#[tokio::test]
async fn path_that_climbs_is_refused_in_every_spelling() {
    let upstream = Upstream::start().await;
    let service = nested_guards(&upstream).await;
    for path in [
        "/api/../admin",
        "/api/%2e%2E/admin",
        "/api/..;/admin",
        "/api/..;x=1/admin",
        "/api/%2e%2e%3b/admin",
        "/api/..%2fadmin",
        "/api/a/..%2F..%2Fadmin",
        "/api/..%5cadmin",
        "/api/..\\admin",
        "/api/a%5C..%5Cadmin",
        "/api/a%2f..",
        "/api/%252e%252e/admin",
        "/api/%25252e%25252e%25252fadmin",
        "/api/%252525252525252525252525252e./admin",
        "/api/..%20/admin",
        "/api/..%20./admin",
        "/api/..%00/admin",
        "/api/..%00x",
        "/api/a%1Fb",
        "/api/a%7Fb",
        "/api/%c0%ae%c0%ae/admin",
        "/api/..%c0%afadmin",
        "/api/..%e0%80%afadmin",
        "/api/..%f0%80%80%afadmin",
    ] {
        post(&service, path).await.is_problem(404, "not-found");
    }
    assert_eq!(upstream.runs(), 0);
    for (run, path) in (1..).zip(["/api/a..b", "/api/...", "/api/a%2Fb", "/api/..a", "/api/..%20a"])
    {
        post(&service, path).await.is_run(run);
    }
}

/// Where no stricter guard is within, what only one of them could mistake is the upstream's to
/// read.
#[tokio::test]
async fn odd_path_passes_where_no_guard_is_within() {
    let upstream = Upstream::start().await;
    let service = nested_guards(&upstream).await;
    for (run, path) in (1..).zip(["/100%25", "/caf%E9", "/report.", "/%2570ayments"]) {
        let path = format!("/api/payments{path}");
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nIdempotency-Key: k\r\nContent-Length: 0\r\n\r\n"
        );
        RawConnection::sending(service.address, &head).await.answer().await.is_run(run);
        assert_eq!(upstream.last().uri.to_string(), path);
    }
}
