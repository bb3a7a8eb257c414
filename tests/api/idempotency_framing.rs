//! Goal: an answer ends where its body ends. An upstream that states two lengths does not split it,
//! and a connection that becomes another protocol is never an answer.
//!
//! Method: a raw upstream answers in chunks with a wrong length beside them. The client reads the
//! whole body, and then its next answer on the same connection.

use keylatch_testkit::{Answer, RawConnection, Service, Shop, guard_orders, raw_upstream, soon};
use tokio::io::AsyncWriteExt;

/// A body that an attacker chose: cut off early, its rest reads as an answer.
const FORGED: &str = "{}HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\npoisoned";
/// Lengths that are not that of [`FORGED`]: too short and too long.
const WRONG: [usize; 5] = [0, 2, FORGED.len() - 1, FORGED.len() + 1, 1000];

/// Sends a request through the gateway to an upstream that answers with [`FORGED`] in chunks and
/// with a wrong length beside them. Asserts that the client reads the whole body, and its own
/// answer next.
async fn wrong_length_splits_nothing(
    method: &str,
    head: &str,
    length: usize,
) -> (Service, RawConnection) {
    let (address, mut connections) = raw_upstream(1).await;
    let service = guard_orders("memory:", &format!("http://{address}"), |guard| {
        guard.response_limit_bytes = if head.contains("octet-stream") { 16 } else { 1024 };
    })
    .await;
    let mut wire = RawConnection::sending(service.address, &order(method)).await;
    let mut upstream = soon("the request", connections.recv()).await.expect("a request");
    let forged = format!(
        "HTTP/1.1 {head}\r\nContent-Length: {length}\r\nTransfer-Encoding: chunked\r\n\r\n\
         {:x}\r\n{FORGED}\r\n0\r\n\r\n",
        FORGED.len()
    );
    upstream.write_all(forged.as_bytes()).await.expect("it is open");
    let answer = wire.answer().await;
    assert_eq!(answer.text, FORGED, "with a length of {length}: {answer:?}");
    assert!(head.starts_with(answer.status.as_str()), "with a length of {length}: {answer:?}");
    let next = wire.get("/v1/info").await;
    assert_eq!(next.json["store"]["kind"], "memory", "with a length of {length}: {next:?}");
    (service, wire)
}

/// The bytes of a request, whose key is always the same.
fn order(method: &str) -> String {
    format!(
        "{method} /orders HTTP/1.1\r\nHost: localhost\r\nIdempotency-Key: k-1\r\n\
         Content-Length: 2\r\n\r\n{{}}"
    )
}

#[tokio::test]
async fn contradicting_length_does_not_split_a_stored_response() {
    for length in WRONG {
        let (service, mut wire) = wrong_length_splits_nothing("POST", "201 Created", length).await;
        wire.send(&order("POST")).await;
        let repeat = wire.answer().await;
        assert_eq!((repeat.header("idempotent-replayed"), &*repeat.text), ("true", FORGED));
        assert_eq!(wire.get("/v1/info").await.json["store"]["kind"], "memory");
        drop(service);
    }
}

#[tokio::test]
async fn contradicting_length_does_not_split_a_streamed_response() {
    for (method, head) in [
        // A stream, an answer above the limit, a failure, a refusal for the moment, and no guard.
        ("POST", "200 OK\r\nContent-Type: text/event-stream"),
        ("POST", "200 OK\r\nContent-Type: application/octet-stream"),
        ("POST", "500 Internal Server Error"),
        ("POST", "429 Too Many Requests"),
        ("PUT", "200 OK"),
    ] {
        for length in WRONG {
            wrong_length_splits_nothing(method, head, length).await;
        }
    }
}

/// Sends a head through the gateway, and a head of the upstream's back; gives the client's answer.
async fn exchange(request: &str, response: &str) -> (Service, Answer) {
    let (address, mut connections) = raw_upstream(1).await;
    let service = guard_orders("memory:", &format!("http://{address}"), |_| {}).await;
    let mut wire = RawConnection::sending(service.address, request).await;
    let mut upstream = soon("the request", connections.recv()).await.expect("a request");
    upstream.write_all(response.as_bytes()).await.expect("it is open");
    (service, wire.answer().await)
}

/// The connection would be neither HTTP nor what a repeat can be given.
#[tokio::test]
async fn switched_protocol_is_not_stored() {
    let switched =
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    let (service, answer) = exchange(&order("POST"), switched).await;
    answer.is_refusal(504, "outcome-unknown", "never");
    assert_eq!(service.record("k-1").await["state"], "unknown");
    let (_service, answer) = exchange(&order("PUT"), switched).await;
    answer.is_refusal(504, "outcome-unknown", "never");
}

#[tokio::test]
async fn upgrade_of_a_guarded_request_is_refused_by_name() {
    let shop = Shop::open("memory:").await;
    let ask = |upgrade: &str, key: &str| {
        format!(
            "POST /orders HTTP/1.1\r\nHost: localhost\r\nIdempotency-Key: {key}\r\n\
             Connection: Upgrade, HTTP2-Settings\r\nUpgrade: {upgrade}\r\nHTTP2-Settings: AA\r\n\
             Content-Length: 2\r\n\r\n{{}}"
        )
    };
    let mut wire = RawConnection::sending(shop.address, &ask("websocket", "k-1")).await;
    wire.answer().await.is_refusal(501, "upgrade-refused", "new-key");
    assert_eq!(shop.upstream.runs(), 0);
    // A library that offers HTTP/2 takes HTTP/1.1 for an answer.
    RawConnection::sending(shop.address, &ask("h2c", "k-2")).await.answer().await.is_run(1);
    let headers = shop.upstream.last().headers;
    assert!(!headers.contains_key("upgrade") && !headers.contains_key("http2-settings"));
}
