//! Goal: no spelling of a path goes by a looser guard than the path itself, and none leaves its guard.
//!
//! Method: a guard that wants no key around one that does, and raw requests for every spelling that some
//! server reads as the inner path.

use keylatch::http::Guard;
use keylatch_testkit::{RawConnection, Service, Upstream, config};

/// A service with `/api`, where a key is optional, and within it `/api/payments`, where it is not.
async fn nested_guards(upstream: &Upstream) -> Service {
    let guard = |path: &str, require_key| Guard {
        path: path.to_owned(),
        upstream: upstream.url(),
        require_key,
        ..Guard::default()
    };
    let mut config = config("memory:");
    config.guard = vec![guard("/api", false), guard("/api/payments", true)];
    Service::start_with(config).await
}

async fn post(service: &Service, path: &str) -> keylatch_testkit::Answer {
    let head = format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n");
    RawConnection::sending(service.address, &head).await.answer().await
}

#[tokio::test]
async fn other_spelling_of_a_path_does_not_avoid_its_guard() {
    let upstream = Upstream::start().await;
    let service = nested_guards(&upstream).await;
    post(&service, "/api/payments").await.is_refusal(400, "key-required", "new-key");
    for path in [
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
    ] {
        let answer = post(&service, path).await;
        answer.is_problem(404, "not-found");
    }
    assert_eq!(upstream.runs(), 0);
    // What no server takes for the inner path goes by the outer guard, as it is.
    for (run, path) in (1..).zip(["/api/orders//1", "/api/orders/a%2Fb;v=1", "/api/payment%C3%9F"])
    {
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
    ] {
        post(&service, path).await.is_problem(404, "not-found");
    }
    assert_eq!(upstream.runs(), 0);
    for (run, path) in (1..).zip(["/api/a..b", "/api/...", "/api/a%2Fb", "/api/..a"]) {
        post(&service, path).await.is_run(run);
    }
}
