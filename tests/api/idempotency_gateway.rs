//! Goal: the gateway forwards a guarded request once and unchanged, and reports what became of it:
//! executed, not executed, or unknown.
//!
//! Method: upstreams of the test's own that refuse, stall, break off and count.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, Response, StatusCode};
use axum::response::IntoResponse as _;
use futures_util::stream;
use keylatch::http::Guard;
use keylatch_axum::OnFailure;
use keylatch_testkit::{
    Answer, RawConnection, ReceivedRequest, Service, Shop, TestStore, Upstream, created,
    guard_orders, raw_upstream, soon, store_test,
};
use reqwest::Method;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

#[tokio::test]
async fn refused_connection_is_reported_as_not_executed() {
    // A port that is bound without a listener refuses, and no other process gets it.
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a free port");
    let address = socket.local_addr().expect("an address");
    for upstream in [format!("http://{address}"), "http://no-such-host.invalid:8080".to_owned()] {
        for tries in [false, true] {
            let service =
                guard_orders("memory:", &upstream, |guard| guard.upstream_idempotent = tries).await;
            let refused = soon("the refusal", service.buy("k-1")).await;
            refused.is_refusal(502, "upstream-unreachable", "same-key");
            assert_eq!(refused.json["outcome"], "not-executed", "{refused:?}");
            assert_eq!(refused.header("retry-after"), "1", "{refused:?}");
            assert_eq!(refused.header("idempotency-key-expires"), "", "{refused:?}");
            assert!(service.record("k-1").await.is_null(), "the key is free");
            service.get("/orders").await.is_refusal(502, "upstream-unreachable", "same-key");
        }
    }
    let service = guard_orders("memory:", &format!("http://{address}"), |_| {}).await;
    service.buy("k-1").await.is_refusal(502, "upstream-unreachable", "same-key");
    let upstream = Upstream::start_on(socket.listen(64).expect("it listens"), |it| it);
    service.buy("k-1").await.is_run(1);
    service.buy("k-1").await.is_replay_of(1);
    assert_eq!(upstream.runs(), 1);
}

#[tokio::test]
async fn connect_timeout_is_reported_as_not_executed() {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a free port");
    let full = socket.listen(1).expect("it listens");
    let address = full.local_addr().expect("an address");
    // No process accepts, so the next connection is not even made.
    let mut queue = Vec::new();
    while let Ok(Ok(one)) =
        tokio::time::timeout(Duration::from_millis(300), TcpStream::connect(address)).await
    {
        queue.push(one);
    }
    let service = guard_orders("memory:", &format!("http://{address}"), |_| {}).await;
    let refused = soon("the refusal", service.buy("k-1")).await;
    refused.is_refusal(502, "upstream-unreachable", "same-key");
    assert!(service.record("k-1").await.is_null(), "the key is free");
}

/// Asserts that the outcome of the key's run is unknown, and that a repeat is not run.
async fn is_unknown(shop: &Service, key: &str, first: &Answer) {
    first.is_refusal(504, "outcome-unknown", "never");
    assert_eq!(first.json["outcome"], "unknown", "{first:?}");
    assert_ne!(first.header("idempotency-key-expires"), "", "{first:?}");
    let resolve = format!("/v1/idempotency/{key}/resolve?method=POST&path=%2Forders&principal=");
    assert_eq!(first.json["resolve"], resolve, "{first:?}");
    let repeat = shop.buy(key).await;
    repeat.is_refusal(409, "outcome-unknown", "never");
    assert_eq!(repeat.json["resolve"], resolve, "{repeat:?}");
    let record = shop.record(key).await;
    assert_eq!((&record["state"], &record["reason"]), (&json!("unknown"), &json!("no-answer")));
}

#[tokio::test]
async fn response_timeout_is_an_unknown_outcome() {
    for on_failure in [OnFailure::Unknown, OnFailure::Release] {
        let upstream = Upstream::start().await;
        let service = guard_orders("memory:", &upstream.url(), |guard| {
            (guard.timeout_ms, guard.on_failure) = (1500, on_failure.into());
        })
        .await;
        upstream.hold();
        let first = soon("the timeout", service.buy("k-1")).await;
        is_unknown(&service, "k-1", &first).await;
        let get = soon("the timeout", service.get("/orders")).await;
        get.is_refusal(504, "outcome-unknown", "never");
        assert_eq!(upstream.runs(), 2);
        let url = first.json["resolve"].as_str().expect("a URL");
        let settle = json!({"outcome": "not-executed", "reason": "it has none", "by": "ann"});
        let settled = Answer::of(service.request(Method::POST, url).json(&settle)).await;
        assert_eq!(settled.status, 204, "{settled:?}");
    }
}

/// The upstream did it, and no person has to find that out.
#[store_test(service)]
async fn answer_after_the_timeout_is_kept_for_repeats(store: &TestStore) {
    let upstream = Upstream::start().await;
    let service = guard_orders(store.url(), &upstream.url(), |guard| guard.timeout_ms = 1500).await;
    upstream.hold();
    let first = soon("the timeout", service.buy("k-1")).await;
    is_unknown(&service, "k-1", &first).await;
    upstream.resume();
    let late = service.until_done("k-1");
    late.await.is_replay_of(1);
    assert_eq!(upstream.runs(), 1);
}

/// A service before an upstream of raw bytes, an order through it, and its connection there, on
/// which the whole request has arrived.
async fn ordered(set: impl FnOnce(&mut Guard)) -> (Service, JoinHandle<Answer>, TcpStream) {
    let (address, mut connections) = raw_upstream(1).await;
    let service = guard_orders("memory:", &format!("http://{address}"), set).await;
    let order = tokio::spawn(Answer::of(service.order("k-1")));
    let connection = soon("the request", connections.recv()).await.expect("a request");
    (service, order, connection)
}

#[tokio::test]
async fn body_after_the_timeout_is_kept_for_repeats() {
    let (service, first, mut connection) = ordered(|guard| guard.timeout_ms = 1500).await;
    let head = "HTTP/1.1 201 Created\r\nContent-Length: 9\r\n\r\n{\"run\"";
    connection.write_all(head.as_bytes()).await.expect("it is open");
    is_unknown(&service, "k-1", &soon("the timeout", first).await.expect("an answer")).await;
    connection.write_all(b":1}").await.expect("it is still read");
    let late = service.until_done("k-1");
    late.await.is_replay_of(1);
}

/// A key that a person has freed is another run's, and the answer to the first is too late for it.
#[tokio::test]
async fn late_answer_does_not_replace_what_a_person_resolved() {
    let upstream = Upstream::start().await;
    let service = guard_orders("memory:", &upstream.url(), |guard| guard.timeout_ms = 1500).await;
    upstream.hold();
    let first = soon("the timeout", service.buy("k-1")).await;
    is_unknown(&service, "k-1", &first).await;
    let path = "/v1/idempotency/k-1/resolve?method=POST&path=/orders";
    let freed = service.request(Method::POST, path).json(&json!({"outcome": "not-executed"}));
    assert_eq!(Answer::of(freed).await.status, 204);
    let second = soon("the timeout", service.buy("k-1")).await;
    is_unknown(&service, "k-1", &second).await;
    upstream.answers(|seen| if seen.run == 1 { created(1) } else { panic!("told to") });
    upstream.resume();
    service.buy("k-1").await.is_refusal(409, "outcome-unknown", "never");
    assert_eq!(service.record("k-1").await["state"], "unknown");
}

#[tokio::test]
async fn response_that_breaks_off_or_stalls_is_an_unknown_outcome() {
    let upstream = Upstream::start().await;
    let service = guard_orders("memory:", &upstream.url(), |_| {}).await;
    upstream.answers(|_| -> StatusCode { panic!("told to") });
    let first = service.buy("k-1").await;
    is_unknown(&service, "k-1", &first).await;
    assert_eq!(upstream.runs(), 1);

    let (half_a_line, head) =
        ("HTTP/1.1 20", "HTTP/1.1 201 Created\r\nContent-Length: 100\r\n\r\n{");
    for (said, end) in
        [(half_a_line, "closed"), (half_a_line, "reset"), (head, "closed"), (head, "stalled")]
    {
        let (service, first, mut connection) = ordered(|guard| guard.timeout_ms = 1500).await;
        connection.write_all(said.as_bytes()).await.expect("it is open");
        if end == "reset" {
            connection.set_zero_linger().expect("a connection can be reset");
        }
        let stalled = (end == "stalled").then_some(connection);
        let first = soon(end, first).await.expect("an answer");
        is_unknown(&service, "k-1", &first).await;
        drop(stalled);
    }
}

#[tokio::test]
async fn idempotent_upstream_is_retried_under_the_same_key() {
    let upstream = Upstream::start().await;
    let service =
        guard_orders("memory:", &upstream.url(), |guard| guard.upstream_idempotent = true).await;
    upstream.answers(|seen| if seen.run < 3 { panic!("told to") } else { created(seen.run) });
    service.buy("k-1").await.is_run(3);
    service.buy("k-1").await.is_replay_of(3);
    let tries = upstream.seen();
    assert_eq!(tries.len(), 3);
    for again in &tries {
        assert_eq!(again.headers["idempotency-key"], "k-1");
        assert_eq!(again.headers["idempotency-fence"], tries[0].headers["idempotency-fence"]);
        assert_eq!((&again.uri, &again.body), (&tries[0].uri, &tries[0].body));
    }
    upstream.answers(|_| -> StatusCode { panic!("told to") });
    let first = service.buy("k-2").await;
    is_unknown(&service, "k-2", &first).await;
    assert_eq!(upstream.runs(), 6);
    // What has no key, and so no proof that it is the same, is sent once.
    service.get("/orders").await.is_refusal(504, "outcome-unknown", "never");
    assert_eq!(upstream.runs(), 7);
}

#[tokio::test]
async fn refused_retry_does_not_clear_an_unknown_outcome() {
    let (service, first, connection) = ordered(|guard| guard.upstream_idempotent = true).await;
    drop(connection);
    is_unknown(&service, "k-1", &first.await.expect("an answer")).await;
}

#[tokio::test]
async fn upstream_receives_the_key_and_a_rising_fencing_token() {
    let shop = Shop::open("memory:").await;
    let mut last = 0;
    for key in ["k-1", "\"k-2\"", "k-3"] {
        let request = shop.order(key).header("Idempotency-Fence", "1").header("X-Mine", "a");
        assert_eq!(Answer::of(request.header("Accept-Encoding", "br")).await.status, 201);
        let ReceivedRequest { headers, method, uri, body, .. } = shop.upstream.last();
        assert_eq!((method, uri.to_string()), (Method::POST, "/orders".to_owned()));
        assert_eq!(headers["idempotency-key"], key.trim_matches('"'));
        assert_eq!(headers["x-mine"], "a");
        assert!(!body.is_empty() && headers["content-type"] == "application/json", "{headers:?}");
        let fences: Vec<_> = headers.get_all("idempotency-fence").iter().collect();
        assert_eq!(fences.len(), 1, "{fences:?}");
        let fencing_token: u64 =
            fences[0].to_str().ok().and_then(|it| it.parse().ok()).expect("a fence");
        assert!(fencing_token > last && fencing_token < 1 << 53, "{fencing_token} after {last}");
        assert_eq!(shop.record(key.trim_matches('"')).await["fencing_token"], fencing_token);
        // An answer that is kept has to be readable for every client.
        assert!(!headers.contains_key("accept-encoding"), "{headers:?}");
        last = fencing_token;
    }
    for method in [Method::GET, Method::PUT] {
        let request = shop.request(method, "/orders").header("Idempotency-Fence", "1");
        Answer::of(request.header("Accept-Encoding", "br")).await;
        let headers = shop.upstream.last().headers;
        assert!(!headers.contains_key("idempotency-fence"), "{headers:?}");
        assert_eq!(headers["accept-encoding"], "br");
    }
}

#[tokio::test]
async fn hop_by_hop_headers_are_not_forwarded() {
    let host = "localhost:8080";
    let shop = Shop::open("memory:").await;
    shop.upstream.answers(|_| {
        let answer = Response::builder().header("Connection", "X-Hop").header("X-Hop", "b");
        let answer = answer.header("Keep-Alive", "timeout=1").header("X-Stays", "c");
        answer.body(Body::from("paid")).expect("an answer")
    });
    for method in ["POST", "GET"] {
        let head = format!(
            "{method} /orders HTTP/1.1\r\nHost: {host}\r\nIdempotency-Key: k-1\r\n\
             Connection: X-Hop, keep-alive\r\nConnection: x-other\r\nX-Hop: a\r\nX-Other: a\r\n\
             Keep-Alive: timeout=5\r\nProxy-Authorization: a\r\nProxy-Connection: a\r\n\
             TE: trailers\r\nTrailer: a\r\nUpgrade: websocket\r\nExpect: 100-continue\r\n\
             X-Stays: a\r\n\r\n"
        );
        let mut wire = RawConnection::sending(shop.address, &head).await;
        let answer = wire.answer().await;
        assert_eq!((answer.status.as_u16(), &*answer.text), (200, "paid"), "{answer:?}");
        assert_eq!((answer.header("x-hop"), answer.header("keep-alive")), ("", ""));
        assert_eq!(answer.header("x-stays"), "c");
        let mut headers = shop.upstream.last().headers;
        assert_eq!(headers.remove("x-stays"), Some(HeaderValue::from_static("a")));
        let forwarded = headers.remove("x-forwarded-host").expect("the client's Host");
        assert_eq!(forwarded, host);
        for added in ["forwarded", "x-forwarded-for", "x-forwarded-proto", "x-request-id"] {
            assert!(headers.remove(added).is_some(), "{added}: {headers:?}");
        }
        let names: BTreeSet<_> = headers.keys().map(|name| name.as_str().to_owned()).collect();
        let guarded = method == "POST";
        let expected = ["host", "idempotency-key", "idempotency-fence"].map(str::to_owned);
        let expected: BTreeSet<_> =
            expected.into_iter().filter(|name| guarded || name != "idempotency-fence").collect();
        let length = BTreeSet::from(["content-length".to_owned()]);
        assert_eq!(&names - &length, expected, "{method}");
    }
}

#[tokio::test]
async fn request_cannot_choose_its_upstream() {
    let shop = Shop::open("memory:").await;
    let elsewhere = Upstream::start().await;
    let to = elsewhere.address;
    for (run, head) in (1..).zip([
        format!("POST /orders HTTP/1.1\r\nHost: {to}\r\nX-Forwarded-Host: {to}\r\n"),
        format!("POST http://{to}/orders HTTP/1.1\r\nHost: {to}\r\n"),
        format!("POST http://{to}/orders HTTP/1.1\r\nHost: localhost\r\nForwarded: host={to}\r\n"),
    ]) {
        let head = format!("{head}Idempotency-Key: k-{run}\r\nContent-Length: 0\r\n\r\n");
        RawConnection::sending(shop.address, &head).await.answer().await.is_run(run);
        let seen = shop.upstream.last();
        assert_eq!(seen.headers["host"], shop.upstream.address.to_string());
        assert_eq!(seen.uri, "/orders");
    }
    assert_eq!(elsewhere.runs(), 0);
}

#[tokio::test]
async fn path_is_forwarded_unchanged_within_its_guard() {
    let shop = Shop::open("memory:").await;
    for path in ["/orders/", "/orders/a%2Fb/c?x=1&y=%20&x=2", "/orders/%C3%BC?", "/orders/a//b"] {
        for method in ["GET", "DELETE", "PUT", "BREW"] {
            let head =
                format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n");
            assert_eq!(
                RawConnection::sending(shop.address, &head).await.answer().await.status,
                201
            );
            let seen = shop.upstream.last();
            assert_eq!((seen.method.as_str(), seen.uri.to_string().as_str()), (method, path));
        }
    }
    let runs = shop.upstream.runs();
    for path in ["/orders/../a", "/orders/%2e%2E/a", "/orders/a/..", "/ordersx", "/a", "/Orders"] {
        for method in ["GET", "POST"] {
            let head = format!(
                "{method} {path} HTTP/1.1\r\nHost: localhost\r\nIdempotency-Key: k\r\nContent-Length: 0\r\n\r\n"
            );
            let answer = RawConnection::sending(shop.address, &head).await.answer().await;
            answer.is_problem(404, "not-found");
        }
    }
    assert_eq!(shop.upstream.runs(), runs);
}

#[tokio::test]
async fn most_specific_guard_applies() {
    let (all, some) = (Upstream::start().await, Upstream::start().await);
    let guard = |path: &str, upstream: &Upstream| Guard {
        path: path.to_owned(),
        upstream: upstream.url(),
        ..Guard::default()
    };
    let service = Service::set(|config| {
        config.guard = vec![guard("/orders", &all), guard("/orders/special", &some)];
    })
    .await;
    for (path, runs) in [
        ("/orders", (1, 0)),
        ("/orders/special", (1, 1)),
        ("/orders/special/1", (1, 2)),
        ("/orders/specials", (2, 2)),
    ] {
        let order = service.request(Method::POST, path).header("Idempotency-Key", "k-1");
        assert_eq!(Answer::of(order).await.status, 201);
        assert_eq!((all.runs(), some.runs()), runs, "{path}");
    }
}

#[tokio::test]
async fn upstream_connections_are_reused() {
    let shop = Shop::open("memory:").await;
    for run in 1..=20 {
        shop.buy(&format!("k-{run}")).await.is_run(run);
    }
    let peers: BTreeSet<_> = shop.upstream.seen().iter().map(|seen| seen.peer).collect();
    assert_eq!(peers.len(), 1, "{peers:?}");
}

/// A server that closes idle connections after 2 s, as gunicorn does, may be closing one that is
/// used then.
#[tokio::test]
async fn idle_connection_is_closed_before_the_upstream_closes_it() {
    let (_service, order, mut connection) = ordered(|_| {}).await;
    let answer = b"HTTP/1.1 201 Created\r\nContent-Length: 9\r\n\r\n{\"run\":1}";
    connection.write_all(answer).await.expect("it is open");
    order.await.expect("an answer").is_run(1);
    let end = tokio::time::timeout(Duration::from_millis(2500), connection.read_u8()).await;
    assert!(end.is_ok(), "the connection was still in use when the upstream would have closed it");
}

#[tokio::test]
async fn unguarded_methods_stream_in_both_directions() {
    let shop = Shop::open("memory:").await;
    let (events, receiver) = mpsc::channel::<&str>(1);
    let receiver = std::sync::Mutex::new(Some(receiver));
    shop.upstream.answers(move |_| {
        let receiver = receiver.lock().expect("the receiver").take().expect("the first run");
        Body::from_stream(stream::unfold(receiver, |mut receiver| async {
            Some((Ok::<_, Infallible>(receiver.recv().await?), receiver))
        }))
        .into_response()
    });
    let mut answer = shop.request(Method::GET, "/orders").send().await.expect("an answer");
    for event in ["one", "two"] {
        events.send(event).await.expect("the stream is open");
        let chunk = soon("the event", answer.chunk()).await.expect("a chunk");
        assert_eq!(chunk.as_deref(), Some(event.as_bytes()));
    }
    drop(events);
    assert_eq!(soon("the end", answer.chunk()).await.expect("the end"), None);

    // Larger than what a guarded request may be.
    let large = Bytes::from(vec![b'x'; 5 * 1024 * 1024]);
    shop.upstream.answers(|seen| seen.body);
    let request = shop.request(Method::PUT, "/orders").body(large.clone());
    let echo = request.send().await.expect("an answer").bytes().await.expect("a body");
    assert!(echo == large);
}
