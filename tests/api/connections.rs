//! Goal: a client that is slow, silent, too large, or one too many keeps no connection for longer
//! than a timeout and hinders no other client.
//!
//! Method: raw connections to a service with one limit short and all others long, so that what
//! happens is the doing of that limit.

use std::time::{Duration, Instant};

use keylatch::config::Config;
use keylatch::http::Settings;
use keylatch_testkit::{
    Answer, RawConnection, Service, config, eventually, get_request, post_head, soon,
};

const SHORT: Duration = Duration::from_secs(1);
const SHORT_MS: u64 = 1000;
/// The connection that asks is among them.
const CONNECTIONS: &str = "keylatch_http_connections";
const LONG_MS: u64 = 60_000;

/// A service on which every time limit is long, but for what `set` changes.
async fn service(set: impl FnOnce(&mut Settings)) -> Service {
    Service::start_with(patient(set)).await
}

fn patient(set: impl FnOnce(&mut Settings)) -> Config {
    let mut config = config("memory:");
    // A request that may wait has more time.
    config.wait.max_wait_ms = 0;
    let server = &mut config.server;
    server.request_timeout_ms = LONG_MS;
    server.body_timeout_ms = LONG_MS;
    server.first_byte_timeout_ms = LONG_MS;
    server.header_timeout_ms = LONG_MS;
    server.keep_alive_timeout_ms = LONG_MS;
    set(server);
    config
}

/// Sends `bytes` one at a time, slowly and for ever, until the service closes the connection.
async fn dribble(wire: &mut RawConnection, bytes: &str) {
    for byte in bytes.split("").filter(|byte| !byte.is_empty()).cycle() {
        if !wire.stays_open(SHORT / 10).await || !wire.try_send(byte).await {
            return;
        }
    }
}

#[track_caller]
fn is_overloaded(answer: &Answer) {
    answer.is_problem(503, "overloaded");
    assert_eq!(answer.json["outcome"], "not-executed", "{answer:?}");
    assert!(answer.header("retry-after").parse::<u64>().is_ok_and(|s| s > 0), "{answer:?}");
}

/// Asserts that a connection ended without a word or with an error of the client's.
#[track_caller]
fn is_refusal(rest: &str) {
    assert!(rest.is_empty() || rest.starts_with("HTTP/1.1 4"), "{rest}");
}

/// What a browser sends to a port without TLS that it takes for one with, another protocol, and a
/// request that two programs could read in two ways.
#[tokio::test]
async fn what_is_no_request_gets_a_sentence() {
    let service = service(|_| {}).await;
    let lengths = "Content-Length: 2\r\nContent-Length: 3";
    let two = format!("POST /v1/locks/a HTTP/1.1\r\nHost: localhost\r\n{lengths}\r\n\r\n{{}}");
    for sent in ["\u{16}\u{3}\u{1}\u{2}\0\u{1}\0", "garbage\r\n\r\n", &two] {
        let mut wire = RawConnection::sending(service.address, sent).await;
        let answer = wire.answer().await;
        assert_eq!((answer.status.as_u16(), answer.header("connection")), (400, "close"));
        assert!(answer.text.starts_with("This is no HTTP request"), "{sent:?}: {answer:?}");
        wire.closed().await;
    }
    // A refusal of the service's own is as it was, also beside a request that is not whole.
    let ask = "GET /v1/locks?limit=0 HTTP/1.1\r\nHost: localhost\r\n\r\nGET /";
    let mut wire = RawConnection::sending(service.address, ask).await;
    wire.answer().await.is_problem(400, "invalid-query");
}

#[tokio::test]
async fn silent_connection_is_closed() {
    let service = service(|server| server.first_byte_timeout_ms = SHORT_MS).await;
    let started = Instant::now();
    let mut silent = RawConnection::connect(service.address).await;
    silent.closed().await;
    assert!(started.elapsed() >= SHORT, "closed too early, after {:?}", started.elapsed());
}

/// Also one that comes after another request, or right behind it.
#[tokio::test]
async fn dribbled_head_is_closed_at_its_timeout() {
    let half = "GET /livez HTTP/1.1\r\n";
    let whole = get_request("/livez");
    for (keep_alive, before, then) in
        [(LONG_MS, "", half), (LONG_MS, &whole, half), (SHORT_MS, &(whole.clone() + half), "")]
    {
        let service = service(|server| {
            server.header_timeout_ms = SHORT_MS;
            server.keep_alive_timeout_ms = keep_alive;
        })
        .await;
        let started = Instant::now();
        let mut slow = RawConnection::sending(service.address, before).await;
        if !before.is_empty() {
            assert_eq!(slow.answer().await.status, 200, "{before}");
        }
        slow.send(then).await;
        soon("the close", dribble(&mut slow, "X-Slow: slow\r\n")).await;
        assert!(started.elapsed() >= SHORT, "{before}: closed after {:?}", started.elapsed());
    }
}

#[tokio::test]
async fn idle_connection_is_closed_after_keep_alive_timeout() {
    let service = service(|server| server.keep_alive_timeout_ms = SHORT_MS).await;
    let mut idle = RawConnection::connect(service.address).await;
    let started = Instant::now();
    assert_eq!(idle.get("/livez").await.status, 200);
    idle.closed().await;
    assert!(started.elapsed() >= SHORT, "closed too early, after {:?}", started.elapsed());
}

#[tokio::test]
async fn busy_connection_outlives_every_timeout() {
    let limit = Duration::from_secs(5);
    let service = service(|server| {
        server.request_timeout_ms = 5000;
        server.body_timeout_ms = 5000;
        server.first_byte_timeout_ms = 5000;
        server.header_timeout_ms = 5000;
        server.keep_alive_timeout_ms = 5000;
    })
    .await;
    let mut busy = RawConnection::connect(service.address).await;
    let started = Instant::now();
    while started.elapsed() < limit + limit / 5 {
        assert_eq!(busy.get("/livez").await.status, 200);
        assert!(busy.stays_open(limit / 50).await, "closed between two requests");
    }
}

#[tokio::test]
async fn idle_timeouts_spare_a_request_in_progress() {
    let service = service(|server| {
        server.first_byte_timeout_ms = SHORT_MS;
        server.header_timeout_ms = SHORT_MS;
        server.keep_alive_timeout_ms = SHORT_MS;
    })
    .await;
    let mut slow = RawConnection::sending(service.address, &post_head("/v1/locks/a", 2)).await;
    assert!(slow.stays_open(2 * SHORT).await, "closed before its body");
    slow.send("{").await;
    assert!(slow.stays_open(2 * SHORT).await, "closed within its body");
    slow.send("}").await;
    assert_eq!(slow.answer().await.status, 201);
}

#[tokio::test]
async fn body_that_never_arrives_gets_408() {
    let service = service(|server| server.body_timeout_ms = SHORT_MS).await;
    let head = post_head("/v1/locks/a", 100);
    let mut never = RawConnection::sending(service.address, &head).await;
    let answer = never.answer().await;
    answer.is_problem(408, "request-timeout");
    assert_eq!(answer.header("connection"), "close");
    never.closed().await;
    let mut half = RawConnection::sending(service.address, &format!("{head}{{\"ttl_ms\":")).await;
    half.answer().await.is_problem(408, "request-timeout");
    half.closed().await;
    service.look("a").await.is_problem(404, "lock-not-held");
}

#[tokio::test]
async fn connection_that_a_response_leaves_open_takes_the_next_request() {
    let service = service(|_| {}).await;
    for request in ["POST /v1/locks/a%00", "POST /nowhere", "DELETE /v1/locks/a", "GET /v1/locks/a"]
    {
        let head = format!("{request} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n");
        let mut wire = RawConnection::sending(service.address, &head).await;
        let answer = wire.answer().await;
        assert!(answer.status.is_client_error(), "{answer:?}");
        if answer.headers.get("connection").is_none_or(|said| said != "close") {
            wire.send("{}").await;
            assert_eq!(wire.get("/livez").await.status, 200, "{request}");
        }
    }
}

#[tokio::test]
async fn request_past_its_deadline_gets_503() {
    let service = service(|server| server.request_timeout_ms = SHORT_MS).await;
    let mut slow = RawConnection::sending(service.address, &post_head("/v1/locks/a", 100)).await;
    let answer = slow.answer().await;
    answer.is_problem(503, "timeout");
    assert_eq!(answer.json["outcome"], "unknown", "{answer:?}");
    assert!(!answer.header("retry-after").is_empty(), "{answer:?}");
}

#[tokio::test]
async fn client_that_does_not_read_is_closed() {
    let service = service(|server| {
        server.header_timeout_ms = SHORT_MS;
        server.keep_alive_timeout_ms = SHORT_MS;
    })
    .await;
    // More than the kernel buffers between the two.
    let many = get_request("/docs/swagger-ui-bundle.js").repeat(40);
    let mut deaf = RawConnection::connect(service.address).await;
    assert_eq!(deaf.get("/livez").await.status, 200);
    deaf.send(&many).await;
    assert_eq!(service.metric(CONNECTIONS).await, 2);
    service.reaches(CONNECTIONS, 1).await;
}

#[tokio::test]
async fn connection_above_the_cap_gets_503_until_another_closes() {
    let service = service(|server| server.max_connections = 2).await;
    let (mut one, mut two) = (
        RawConnection::connect(service.address).await,
        RawConnection::connect(service.address).await,
    );
    assert_eq!(one.get("/livez").await.status, 200);
    assert_eq!(two.get("/livez").await.status, 200);

    let mut three = RawConnection::connect(service.address).await;
    let refusal = three.get("/v1/info").await;
    is_overloaded(&refusal);
    assert_eq!(refusal.header("connection"), "close");
    three.closed().await;
    // Nor does one stay that is silent.
    RawConnection::connect(service.address).await.closed().await;
    assert_eq!(one.get("/livez").await.status, 200);
    assert_eq!(two.get("/livez").await.status, 200);

    drop(two);
    eventually(async || {
        let answer = RawConnection::connect(service.address).await.get("/v1/info").await;
        (answer.status == 200).then_some(())
    })
    .await;
    assert_eq!(one.get("/livez").await.status, 200);
}

#[tokio::test]
async fn request_above_the_cap_gets_503() {
    let service = service(|server| server.max_requests = 1).await;
    let mut slow = RawConnection::sending(service.address, &post_head("/v1/locks/a", 2)).await;
    let mut other = RawConnection::connect(service.address).await;
    // The service may have read this one's request before the slow one's head.
    let shed = eventually(async || Some(other.get("/v1/info").await).filter(|a| a.status != 200));
    is_overloaded(&shed.await);
    is_overloaded(&other.get("/v1/info").await);

    slow.send("{}").await;
    assert_eq!(slow.answer().await.status, 201);
    assert_eq!(other.get("/v1/info").await.status, 200);
}

#[tokio::test]
async fn head_with_too_many_lines_is_rejected() {
    let service = service(|server| server.max_headers = 10).await;
    let head = |lines: usize| {
        let lines: String = (0..lines).map(|line| format!("X-{line}: x\r\n")).collect();
        format!("GET /livez HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n")
    };
    let mut wire = RawConnection::sending(service.address, &head(9)).await;
    assert_eq!(wire.answer().await.status, 200);
    wire.send(&head(10)).await;
    let refusal = wire.answer().await;
    assert_eq!((refusal.status.as_u16(), refusal.text.as_str()), (431, ""));
    wire.closed().await;
    assert_eq!(service.get("/livez").await.status, 200);
}

#[tokio::test]
async fn head_above_the_limit_is_rejected() {
    let service = service(|server| server.header_limit_bytes = 2048).await;
    let head = |bytes: usize| {
        let (start, end) = ("GET /livez HTTP/1.1\r\nHost: localhost\r\nX-Large: ", "\r\n\r\n");
        format!("{start}{}{end}", "x".repeat(bytes - start.len() - end.len()))
    };
    let mut wire = RawConnection::sending(service.address, &head(2048)).await;
    assert_eq!(wire.answer().await.status, 200);
    wire.send(&head(2049)).await;
    let refusal = wire.answer().await;
    assert_eq!((refusal.status.as_u16(), refusal.text.as_str()), (431, ""));

    let mut huge = RawConnection::connect(service.address).await;
    huge.try_send(&head(1_000_000)).await;
    is_refusal(&huge.rest().await);
    assert_eq!(service.get("/livez").await.status, 200);
}

#[tokio::test]
async fn bytes_that_are_not_http_are_rejected() {
    let service = service(|_| {}).await;
    let (tls, http2) = ("\u{16}\u{3}\u{1}\u{2}\u{0}\u{1}", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    for nonsense in [tls, http2, "hello\r\n\r\n", "GET /livez\r\n\r\n", "GET / HTTP/9.9\r\n\r\n"] {
        let mut wire = RawConnection::sending(service.address, nonsense).await;
        is_refusal(&wire.rest().await);
    }
    assert_eq!(service.get("/livez").await.status, 200);
}

#[tokio::test]
async fn half_open_connections_block_no_request() {
    // Both ends are files of this process, more than a process is usually given.
    rlimit::increase_nofile_limit(4096).expect("more open files");
    let service = service(|_| {}).await;
    let mut half_open = Vec::new();
    for _ in 0..300 {
        half_open.push(RawConnection::connect(service.address).await);
        half_open
            .push(RawConnection::sending(service.address, "GET /livez HTTP/1.1\r\nHost:").await);
    }
    service.reaches(CONNECTIONS, 601).await;
    assert_eq!(service.create("a", &serde_json::json!({})).await.status, 201);
    drop(half_open);
    service.reaches(CONNECTIONS, 1).await;
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let service = service(|_| {}).await;
    let token = "a-token-of-some-length";
    let request = |number: usize, method: &str| {
        format!(
            "{method} /v1/locks/a HTTP/1.1\r\nHost: localhost\r\nLock-Token: {token}\r\n\
             X-Request-Id: {number}\r\nContent-Length: 2\r\n\r\n{{}}"
        )
    };
    let methods = ["POST", "PUT", "DELETE", "PUT", "GET", "POST"];
    let all: String = (0..).zip(methods).map(|(number, method)| request(number, method)).collect();
    let mut wire = RawConnection::sending(service.address, &all).await;
    for (number, status) in [201, 200, 204, 404, 404, 201].into_iter().enumerate() {
        let answer = wire.answer().await;
        assert_eq!(answer.header("x-request-id"), number.to_string());
        assert_eq!(answer.status, status, "{answer:?}");
    }
    assert!(wire.stays_open(SHORT).await, "closed after the last answer");
}
