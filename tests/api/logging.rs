//! Goal: the access log has the requests that its setting names.
//!
//! Method: the log of the test's thread in each setting.

use std::time::Duration;

use keylatch::http::{AccessLog, Guard, MissingKey};
use keylatch_testkit::{
    Answer, LogCapture, Proxy, RawConnection, RedisServer, Service, config, eventually, post_head,
    redis_test, soon,
};
use reqwest::Method;
use serde_json::Value;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpListener;

/// The method, the route, the status and the request id of a line.
fn request_of(line: &Value) -> (&str, &str, u64, &str) {
    let text = |field: &str| line[field].as_str().unwrap_or_else(|| panic!("`{field}`: {line}"));
    let status = line["status"].as_u64().unwrap_or_else(|| panic!("`status`: {line}"));
    (text("method"), text("route"), status, text("request_id"))
}

async fn send(service: &Service, method: &str, path: &str, id: &str) -> Answer {
    let method = Method::from_bytes(method.as_bytes()).expect("a method");
    Answer::of(service.request(method, path).header("X-Request-Id", id)).await
}

#[tokio::test]
async fn access_log_all_has_one_line_per_request() {
    let mut config = config("memory:");
    config.log.access = AccessLog::All;
    let log = LogCapture::start(&config, true);
    let service = Service::start_with(config).await;
    let requests = [
        ("POST", "/v1/locks/a", "/v1/locks/{name}", 201, "one"),
        ("POST", "/v1/locks/a", "/v1/locks/{name}", 409, "two"),
        ("GET", "/v1/locks?limit=5", "/v1/locks", 200, "three"),
        ("GET", "/nowhere", "unmatched", 404, "four"),
        ("BREW", "/v1/locks/a", "/v1/locks/{name}", 405, "five"),
        ("GET", "/livez", "/livez", 200, "six"),
    ];
    for (method, path, .., id) in requests {
        let answer = send(&service, method, path, id).await;
        assert_eq!(answer.header("x-request-id"), id);
    }
    let given = service.get("/livez").await.header("x-request-id").to_owned();
    let lines = log.requests();
    let mut expected: Vec<_> = requests
        .into_iter()
        .map(|(method, _, route, status, id)| {
            (if method == "BREW" { "other" } else { method }, route, status, id)
        })
        .collect();
    expected.push(("GET", "/livez", 200, &given));
    assert_eq!(lines.iter().map(request_of).collect::<Vec<_>>(), expected);
    for line in &lines {
        assert!(line["duration_ms"].as_f64().is_some_and(|took| took > 0.0), "{line}");
        assert_eq!(line["level"], "INFO", "{line}");
    }
}

#[redis_test]
async fn access_log_errors_has_failed_and_slow_requests_only() {
    let redis = RedisServer::start().await;
    let proxy = Proxy::start(redis.address()).await;
    let config = config(&proxy.url());
    assert_eq!(config.log.access, AccessLog::Errors, "the default");
    let slow = Duration::from_millis(config.log.slow_ms);
    let log = LogCapture::start(&config, true);
    let service = Service::start_with(config).await;
    assert_eq!(send(&service, "POST", "/v1/locks/a", "good").await.status, 201);
    assert_eq!(send(&service, "POST", "/v1/locks/a", "held").await.status, 409);
    assert_eq!(send(&service, "GET", "/nowhere", "lost").await.status, 404);
    assert!(log.requests().is_empty(), "{}", log.text());

    let head = post_head("/v1/locks/b", 2).replace("\r\n\r\n", "\r\nX-Request-Id: slow\r\n\r\n");
    let mut wire = RawConnection::sending(service.address, &head).await;
    // The service counts from when it has the head.
    service.has_in_hand(1).await;
    assert!(wire.stays_open(slow).await);
    wire.send("{}").await;
    assert_eq!(wire.answer().await.status, 201);
    proxy.lose_answers();
    eventually(async || {
        (send(&service, "GET", "/v1/locks/a", "fails").await.status == 503).then_some(())
    })
    .await;
    let mut lines = log.requests();
    // The test asks for metrics meanwhile, which may be slow as well.
    lines.retain(|line| request_of(line).1 != "/metrics");
    let expected =
        [("POST", "/v1/locks/{name}", 201, "slow"), ("GET", "/v1/locks/{name}", 503, "fails")];
    assert_eq!(lines.iter().map(request_of).collect::<Vec<_>>(), expected);
    assert_eq!((&lines[0]["level"], &lines[1]["level"]), (&"INFO".into(), &"ERROR".into()));
    assert!(lines[1]["cause"].as_str().is_some_and(|cause| !cause.is_empty()), "{}", lines[1]);
}

#[tokio::test]
async fn line_of_a_gateway_error_names_the_upstream_and_the_cause() {
    let gone = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let upstream = format!("http://{}", gone.local_addr().expect("an address"));
    let mut config = config("memory:");
    let guard = |path: &str, missing_key| Guard {
        path: path.to_owned(),
        upstream: upstream.clone(),
        missing_key,
        ..Guard::default()
    };
    config.guard = vec![guard("/orders", MissingKey::Refuse), guard("/carts", MissingKey::Pass)];
    let log = LogCapture::start(&config, true);
    let service = Service::start_with(config).await;

    // One that takes the request and closes the connection, and then none at all.
    let closing = tokio::spawn(async move {
        for _ in 0..2 {
            let (mut stream, _) = gone.accept().await.expect("a connection");
            let _ = stream.read(&mut [0; 4096]).await;
        }
    });
    let keyed = service.request(Method::POST, "/orders").header("Idempotency-Key", "\"one\"");
    assert_eq!(Answer::of(keyed).await.status, 504);
    assert_eq!(Answer::of(service.request(Method::POST, "/carts")).await.status, 504);
    soon("the end of the upstream", closing).await.expect("it ends");
    let keyed = service.request(Method::POST, "/orders").header("Idempotency-Key", "\"two\"");
    assert_eq!(Answer::of(keyed).await.status, 502);

    let lines = log.requests();
    let causes: Vec<_> = lines.iter().map(|line| line["cause"].as_str().unwrap_or("")).collect();
    let of_upstream = |cause: &&str| cause.starts_with(&format!("the upstream {upstream}"));
    assert!(causes.len() == 3 && causes.iter().all(of_upstream), "{causes:?}");
    assert!(causes[0].contains("closed") && causes[1].contains("closed"), "{causes:?}");
    assert!(causes[2].contains("Connection refused"), "{causes:?}");
}

#[redis_test]
async fn access_log_off_has_no_request() {
    let redis = RedisServer::start().await;
    let proxy = Proxy::start(redis.address()).await;
    let mut config = config(&proxy.url());
    config.log.access = AccessLog::Off;
    config.log.slow_ms = 0;
    let log = LogCapture::start(&config, true);
    let service = Service::start_with(config).await;
    assert_eq!(send(&service, "POST", "/v1/locks/a", "good").await.status, 201);
    proxy.lose_answers();
    assert_eq!(send(&service, "GET", "/v1/locks/a", "fails").await.status, 503);
    assert!(log.requests().is_empty(), "{}", log.text());
}
