//! Goal: an unguarded request changes to another protocol through the gateway, such as WebSocket,
//! and the connection stays within the limits of the service while it carries that protocol.
//!
//! Method: an upstream of raw bytes that switches and then echoes, and raw connections to it
//! through the service.

use std::net::SocketAddr;

use keylatch::config::Config;
use keylatch::http::Guard;
use keylatch_testkit::{RawConnection, Service, config, eventually, get_request, soon};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use crate::KEYLATCH;

const SWITCHED: &str = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n\
                        Upgrade: websocket\r\nSec-WebSocket-Accept: abc\r\n\r\nhello";

/// An upstream that answers the first request of each connection so.
struct Echo {
    address: SocketAddr,
    /// The head of each request, and what came of its connection.
    heads: mpsc::UnboundedReceiver<String>,
    ends: mpsc::UnboundedReceiver<()>,
}

impl Echo {
    async fn start(answer: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let (head, heads) = mpsc::unbounded_channel();
        let (end, ends) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (head, end) = (head.clone(), end.clone());
                tokio::spawn(async move {
                    echo(stream, answer, &head).await;
                    let _ = end.send(());
                });
            }
        });
        Self { address, heads, ends }
    }

    /// The configuration of a service in front of it.
    fn config(&self) -> Config {
        let (path, upstream) = ("/orders".to_owned(), format!("http://{}", self.address));
        Config { guard: vec![Guard { path, upstream, ..Guard::default() }], ..config("memory:") }
    }

    async fn head(&mut self) -> String {
        soon("a request", self.heads.recv()).await.expect("the upstream runs").to_lowercase()
    }

    async fn ended(&mut self) {
        soon("the end of a connection", self.ends.recv()).await.expect("the upstream runs");
    }
}

/// Reads a head, answers, and sends back what comes after that.
async fn echo(mut stream: TcpStream, answer: &str, head: &mpsc::UnboundedSender<String>) {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        if stream.read_buf(&mut request).await.is_ok_and(|read| read > 0) {
            continue;
        }
        return;
    }
    let _ = head.send(String::from_utf8(request).expect("text"));
    let _ = stream.write_all(answer.as_bytes()).await;
    let (mut reader, mut writer) = stream.split();
    let _ = tokio::io::copy(&mut reader, &mut writer).await;
}

fn offer(headers: &str) -> String {
    format!(
        "GET /orders/live?a=b HTTP/1.1\r\nHost: localhost\r\nConnection: keep-alive, Upgrade\r\n\
         Upgrade: websocket\r\nSec-WebSocket-Key: xyz\r\n{headers}\r\n"
    )
}

/// A connection that has switched.
async fn switched(address: SocketAddr) -> RawConnection {
    let mut wire = RawConnection::sending(address, &offer("")).await;
    let answer = wire.answer().await;
    assert_eq!(answer.status, 101, "{answer:?}");
    assert_eq!(answer.header("connection").to_lowercase(), "upgrade", "{answer:?}");
    assert_eq!(answer.header("upgrade"), "websocket", "{answer:?}");
    assert_eq!(answer.header("sec-websocket-accept"), "abc", "{answer:?}");
    wire.receives("hello").await;
    wire
}

#[tokio::test]
async fn upgrade_of_an_unguarded_request_is_passed_with_its_bytes_both_ways() {
    let mut echo = Echo::start(SWITCHED).await;
    let service = Service::start_with(echo.config()).await;
    let mut wire = switched(service.address).await;
    let head = echo.head().await;
    for line in ["get /orders/live?a=b http/1.1", "upgrade: websocket", "sec-websocket-key: xyz"] {
        assert!(head.contains(line), "no `{line}` in {head}");
    }
    assert!(head.contains("connection: upgrade\r\n"), "{head}");
    for text in ["ping", &"a long frame ".repeat(10_000), "GET / HTTP/1.1\r\n\r\n"] {
        wire.send(text).await;
        wire.receives(text).await;
    }
    drop(wire);
    echo.ended().await;
}

#[tokio::test]
async fn client_reads_the_end_of_an_upgraded_connection() {
    let echo = Echo::start(SWITCHED).await;
    let service = Service::start_with(echo.config()).await;
    let mut wire = switched(service.address).await;
    wire.send("last").await;
    wire.finish().await;
    assert_eq!(wire.rest().await, "last");
}

#[tokio::test]
async fn upgrade_that_the_upstream_refuses_has_its_answer_and_keeps_the_connection() {
    let mut echo =
        Echo::start("HTTP/1.1 426 Upgrade Required\r\nContent-Length: 2\r\n\r\nno").await;
    let service = Service::start_with(echo.config()).await;
    let mut wire = RawConnection::sending(service.address, &offer("")).await;
    let answer = wire.answer().await;
    assert_eq!((answer.status.as_u16(), answer.text.as_str()), (426, "no"), "{answer:?}");
    assert!(echo.head().await.contains("upgrade: websocket"));
    assert_eq!(wire.get("/livez").await.status, 200);
}

#[tokio::test]
async fn offer_of_http2_is_not_passed() {
    let mut echo = Echo::start("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
    let service = Service::start_with(echo.config()).await;
    let request = offer("").replace("websocket\r\n", "h2c\r\n");
    let mut wire = RawConnection::sending(service.address, &request).await;
    assert_eq!(wire.answer().await.status, 200);
    assert!(!echo.head().await.contains("upgrade"));
}

#[tokio::test]
async fn page_of_a_foreign_origin_opens_no_websocket() {
    let mut echo = Echo::start(SWITCHED).await;
    let service = Service::start_with(echo.config()).await;
    for headers in ["Origin: https://evil.example\r\n", "Sec-Fetch-Site: cross-site\r\n"] {
        let mut wire = RawConnection::sending(service.address, &offer(headers)).await;
        wire.answer().await.is_problem(403, "cross-origin");
    }
    assert!(echo.heads.try_recv().is_err(), "the upstream was asked");
    let own = "Origin: http://localhost\r\n";
    let mut wire = RawConnection::sending(service.address, &offer(own)).await;
    assert_eq!(wire.answer().await.status, 101);
}

#[tokio::test]
async fn upgraded_connection_counts_against_the_limit() {
    let echo = Echo::start(SWITCHED).await;
    let mut config = echo.config();
    config.server.max_connections = 1;
    let service = Service::start_with(config).await;
    let wire = switched(service.address).await;
    let mut other = RawConnection::connect(service.address).await;
    other.get("/v1/info").await.is_problem(503, "overloaded");
    drop(wire);
    let status = async || {
        let mut other = RawConnection::sending(service.address, &get_request("/v1/info")).await;
        (other.answer().await.status == 200).then_some(())
    };
    eventually(status).await;
}

#[tokio::test]
async fn idle_upgraded_connection_is_closed_on_both_sides() {
    let mut echo = Echo::start(SWITCHED).await;
    let mut config = echo.config();
    config.server.upgrade_idle_timeout_ms = 200;
    let service = Service::start_with(config).await;
    // Nothing is sent: a busy machine may take longer for it than the connection may be idle.
    let mut wire = switched(service.address).await;
    wire.closed().await;
    echo.ended().await;
}

#[tokio::test]
async fn upgraded_connection_works_while_the_service_drains() {
    let (echo, mut wire, process) = drained("600000").await;
    eventually(async || TcpStream::connect(process.address).await.err()).await;
    wire.send("ping").await;
    wire.receives("ping").await;
    drop(wire);
    assert_eq!(process.ended().await.code, Some(0));
    drop(echo);
}

#[tokio::test]
async fn upgraded_connection_past_the_drain_timeout_is_cut() {
    let (mut echo, mut wire, process) = drained("200").await;
    wire.closed().await;
    echo.ended().await;
    assert_eq!(process.ended().await.code, Some(0));
}

/// An upgraded connection through a process that got SIGTERM.
async fn drained(timeout_ms: &str) -> (Echo, RawConnection, keylatch_testkit::Process) {
    let echo = Echo::start(SWITCHED).await;
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    let guard = format!("[[guard]]\npath = \"/orders\"\nupstream = \"http://{}\"", echo.address);
    std::fs::write(file.path(), guard).expect("a configuration");
    let path = file.path().to_str().expect("a path of text");
    let environment = [("KEYLATCH_SERVER_DRAIN_TIMEOUT_MS", timeout_ms)];
    let process = KEYLATCH.serve(&["--config", path], &environment).await;
    let wire = switched(process.address).await;
    process.signal("-TERM");
    (echo, wire, process)
}
