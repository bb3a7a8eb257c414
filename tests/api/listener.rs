//! Goal: the server works over another transport than TCP.
//!
//! Method: a listener for Unix sockets, which is a few lines here.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::FutureExt as _;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use keylatch::app::App;
use keylatch::config::{Config, Flags};
use keylatch::http::{AcceptedConnection, Listener};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// A listener on a Unix socket. The token stands in for what a transport says of the client's end.
#[derive(Debug)]
struct Unix {
    listener: UnixListener,
    gone: CancellationToken,
    /// Whether the client's end is there, which nobody has heard of yet.
    ended: CancellationToken,
}

impl Listener for Unix {
    type Io = UnixStream;

    async fn accept(&self, _: Duration) -> io::Result<AcceptedConnection<UnixStream>> {
        let (io, _) = self.listener.accept().await?;
        let closed = self.gone.clone().cancelled_owned().boxed();
        let ended = self.ended.clone();
        let has_ended = Box::new(move || ended.is_cancelled());
        Ok(AcceptedConnection { io, peer: None, closed, has_ended })
    }

    fn is_local(&self) -> io::Result<bool> {
        Ok(false)
    }
}

/// A service on a Unix socket in the test's process.
struct Service {
    directory: TempDir,
    gone: CancellationToken,
    ended: CancellationToken,
    closing: CancellationToken,
    served: JoinHandle<()>,
}

impl Service {
    async fn start(change: impl FnOnce(&mut Config)) -> Self {
        let directory = TempDir::new().expect("a directory");
        let flags = Flags { store: Some("memory:".to_owned()), ..Flags::default() };
        let mut config = Config::load(&flags, []).expect("the defaults");
        change(&mut config);
        let app = App::new(config).await.expect("an app");
        let listener = UnixListener::bind(socket(directory.path())).expect("a socket");
        let [gone, ended, closing] = [(); 3].map(|()| CancellationToken::new());
        let unix = Unix { listener, gone: gone.clone(), ended: ended.clone() };
        let closed = closing.clone().cancelled_owned();
        let served = tokio::spawn(async move { app.serve(unix, closed).await.expect("it ends") });
        Self { directory, gone, ended, closing, served }
    }

    async fn connect(&self) -> UnixStream {
        UnixStream::connect(socket(self.directory.path())).await.expect("a connection")
    }

    async fn client(&self) -> SendRequest<Full<Bytes>> {
        let (client, connection) =
            handshake(TokioIo::new(self.connect().await)).await.expect("a connection");
        tokio::spawn(connection);
        client
    }
}

fn socket(directory: &Path) -> PathBuf {
    directory.join("keylatch.sock")
}

async fn send_request(
    client: &mut SendRequest<Full<Bytes>>,
    method: Method,
    path: &str,
    body: &Value,
) -> (u16, Value) {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let request = Request::builder().method(method).uri(path).header("Host", "keylatch");
    let request = request.body(Full::from(body)).expect("a request");
    let answer = client.send_request(request).await.expect("an answer");
    let status = answer.status().as_u16();
    let body = answer.into_body().collect().await.expect("a body").to_bytes();
    (status, serde_json::from_slice(&body).unwrap_or_default())
}

#[tokio::test]
async fn service_answers_and_drains_over_unix_socket() {
    let service = Service::start(|_| {}).await;
    let mut client = service.client().await;
    let (status, lease) = send_request(&mut client, Method::POST, "/v1/locks/a", &json!({})).await;
    assert_eq!(status, 201, "{lease}");
    assert_eq!(send_request(&mut client, Method::GET, "/v1/locks/a", &Value::Null).await.0, 200);
    // A request that is under way when the service shuts down is answered.
    let slow = json!({"amount": 1, "currency": "EUR", "delay_ms": 500});
    let request = Request::post("/v1/orders").header("Host", "a").header("Idempotency-Key", "k-1");
    let request = request.body(Full::from(slow.to_string())).expect("a request");
    let answer = tokio::spawn(client.send_request(request));
    let mut other = service.client().await;
    let record = "/v1/idempotency/k-1?method=POST&path=/v1/orders";
    while send_request(&mut other, Method::GET, record, &Value::Null).await.0 != 200 {
        tokio::task::yield_now().await;
    }
    service.closing.cancel();
    assert_eq!(answer.await.expect("a task").expect("an answer").status(), 201);
    service.served.await.expect("it ends");
}

#[tokio::test]
async fn silent_client_is_closed_over_unix_socket() {
    let service = Service::start(|config| config.server.first_byte_timeout_ms = 100).await;
    let mut silent = service.connect().await;
    assert_eq!(silent.read(&mut [0]).await.expect("an end"), 0);
}

#[tokio::test]
async fn client_that_is_gone_before_its_create_begins_holds_nothing() {
    let service = Service::start(|_| {}).await;
    let (mut gone, mut other) = (service.client().await, service.client().await);
    let held = json!({"ttl_ms": 60_000});
    service.ended.cancel();
    for path in ["/v1/locks/a", "/v1/locks/a/hold"] {
        let request = Request::post(path).header("Host", "a").body(Full::from(held.to_string()));
        let answer = gone.send_request(request.expect("a request")).await;
        assert!(answer.is_err(), "{path}: {answer:?}");
        gone = service.client().await;
    }
    let look = send_request(&mut other, Method::GET, "/v1/locks/a", &Value::Null).await;
    assert_eq!(look.0, 404, "{look:?}");
}

#[tokio::test]
async fn end_that_transport_reports_ends_waiting_request() {
    let service = Service::start(|_| {}).await;
    let mut holder = service.client().await;
    send_request(&mut holder, Method::POST, "/v1/locks/a", &json!({})).await;
    let mut waiter = service.connect().await;
    let body = json!({"wait_ms": 60_000}).to_string();
    // Bytes behind the request keep hyper from reading on.
    let request = format!(
        "POST /v1/locks/a HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{body}GET",
        body.len()
    );
    waiter.write_all(request.as_bytes()).await.expect("written");
    let waiting = async |client: &mut SendRequest<_>| {
        send_request(client, Method::GET, "/v1/locks/a", &Value::Null).await.1["waiting"].as_u64()
    };
    while waiting(&mut holder).await != Some(1) {
        tokio::task::yield_now().await;
    }
    service.gone.cancel();
    // The connection ends without an answer.
    assert_eq!(waiter.read(&mut [0]).await.expect("an end"), 0);
}
