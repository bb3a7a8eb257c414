//! Goal: of a length that a message states, only what was parsed goes on, in both directions; and
//! an answer with more header lines than most is an answer.
//!
//! Method: a raw upstream, whose answers and requests the test reads byte by byte, and HTTP/1.1 and
//! HTTP/2 clients.

use keylatch::config::Config;
use keylatch_testkit::raw_http2::{RawHttp2, head, kind};
use keylatch_testkit::{Authority, RawConnection, Service, Shop, config, soon};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// An upstream that the test plays, and its service.
async fn stage(change: impl FnOnce(&mut Config)) -> (Service, TcpListener) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let upstream = format!("http://{}", listener.local_addr().expect("an address"));
    let mut config = Config { guard: vec![Shop::guard(&upstream)], ..config("memory:") };
    change(&mut config);
    (Service::start_with(config).await, listener)
}

/// Reads a request that ends in this, and answers it.
async fn play(listener: &TcpListener, end: &str, answer: &str) -> String {
    let (mut stream, _): (TcpStream, _) =
        soon("the connection", listener.accept()).await.expect("a connection");
    let mut request = Vec::new();
    while !request.ends_with(end.as_bytes()) {
        let read = soon("the request", stream.read_buf(&mut request)).await.expect("a request");
        assert!(read > 0, "the request broke off");
    }
    stream.write_all(answer.as_bytes()).await.expect("it is open");
    stream.shutdown().await.expect("it is open");
    String::from_utf8(request).expect("text").to_lowercase()
}

fn lengths(text: &str) -> Vec<&str> {
    let lines = text.lines().take_while(|line| !line.is_empty());
    lines.filter(|line| line.to_ascii_lowercase().starts_with("content-length")).collect()
}

#[tokio::test]
async fn length_of_an_answer_is_the_one_that_was_parsed() {
    for (method, lines, length) in [
        ("GET", "Content-Length: 2, 2\r\n", Some("2")),
        ("GET", "Content-Length: 2\r\nContent-Length: 2\r\n", Some("2")),
        ("HEAD", "Content-Length: 2, 2\r\n", Some("2")),
        ("HEAD", "Content-Length: 2\r\nContent-Length: 2\r\n", Some("2")),
        ("HEAD", "Content-Length: 2\r\nContent-Length: 3\r\n", None),
        ("HEAD", "Content-Length: +2\r\n", None),
        ("HEAD", "Content-Length: 0x2\r\n", None),
        ("HEAD", "Content-Length: abc\r\n", None),
        ("HEAD", "Content-Length: 99999999999999999999999\r\n", None),
        ("HEAD", "Content-Length: 007\r\n", Some("7")),
        ("HEAD", "Transfer-Encoding: chunked\r\n", None),
        ("HEAD", "", None),
    ] {
        let (service, upstream) = stage(|_| {}).await;
        let ask =
            format!("{method} /orders HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        let mut wire = RawConnection::sending(service.address, &ask).await;
        let body = if method == "HEAD" { "" } else { "{}" };
        play(&upstream, "\r\n\r\n", &format!("HTTP/1.1 200 OK\r\n{lines}\r\n{body}")).await;
        let answer = wire.rest().await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{method} {lines}: {answer}");
        let found: Vec<_> =
            lengths(&answer).iter().filter_map(|line| line.split_once(": ")).collect();
        let found: Vec<_> = found.into_iter().map(|(_, value)| value).collect();
        assert_eq!(found, length.into_iter().collect::<Vec<_>>(), "{method} {lines}: {answer}");
        assert!(answer.ends_with(&format!("\r\n\r\n{body}")), "{method} {lines}: {answer}");
    }
}

#[tokio::test]
async fn upstream_of_http_1_0_changes_no_version_for_the_client() {
    let (service, upstream) = stage(|_| {}).await;
    let ask = "GET /orders HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let mut wire = RawConnection::sending(service.address, ask).await;
    play(&upstream, "\r\n\r\n", "HTTP/1.0 200 OK\r\n\r\n{}").await;
    let answer = wire.rest().await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
}

#[tokio::test]
async fn two_equal_lengths_over_http2_are_one_to_the_upstream() {
    let authority = Authority::default();
    let (service, upstream) = stage(|config| config.tls = authority.serve()).await;
    let tls = authority.client(&["h2"], None);
    let stream = keylatch_testkit::handshake(service.address, &tls).await.expect("TLS");
    let mut wire = RawHttp2::begin(stream, &[]).await;
    for (id, method) in [(1, "POST"), (3, "PUT")] {
        let lines = [("content-length", "2"), ("content-length", "2"), ("idempotency-key", "k-1")];
        wire.send(kind::HEADERS, 0x4, id, &head(method, "/orders", &lines)).await;
        wire.send(kind::DATA, 0x1, id, b"{}").await;
        let answer = "HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n";
        let request = play(&upstream, "{}", answer).await;
        assert_eq!(lengths(&request), ["content-length: 2"], "{method}: {request}");
    }
}

#[tokio::test]
async fn answer_of_many_header_lines_is_passed_on_and_kept() {
    let (service, upstream) = stage(|_| {}).await;
    let lines: String = (0..200).map(|line| format!("X-Line-{line}: {line}\r\n")).collect();
    let ask = "POST /orders HTTP/1.1\r\nHost: localhost\r\nIdempotency-Key: k-1\r\n\
               Content-Length: 2\r\n\r\n{}";
    let mut wire = RawConnection::sending(service.address, ask).await;
    let answer = format!("HTTP/1.1 201 Created\r\n{lines}Content-Length: 0\r\n\r\n");
    play(&upstream, "{}", &answer).await;
    for replayed in ["", "true"] {
        let answer = wire.answer().await;
        assert_eq!(answer.status, 201, "{answer:?}");
        assert_eq!(answer.header("x-line-199"), "199");
        assert_eq!(answer.header("idempotent-replayed"), replayed);
        wire.send(ask).await;
    }
}
