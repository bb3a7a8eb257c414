//! Goal: over HTTP/2 the service answers as over HTTP/1.1; a stream is what a request is, so a
//! client that resets one or goes away frees what its request holds, and a shutdown lets each be
//! answered.
//!
//! Method: hyper's client behind TLS, whose streams are reset when their answers are dropped.

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper::http::request::Builder;
use hyper::{Request, Response, Version};
use hyper_util::rt::{TokioExecutor, TokioIo};
use keylatch::config::Config;
use keylatch::http::Guard;
use keylatch_testkit::raw_http2::{END_HEADERS, END_STREAM, RawHttp2, frame, head, kind};
use keylatch_testkit::{Authority, Service, Upstream, config, connect_tls, eventually, soon};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_rustls::client::TlsStream;

const LONG_MS: u64 = 3_600_000;

/// A service that speaks HTTP/2.
pub(crate) struct SecureService {
    pub(crate) authority: Authority,
    pub(crate) service: Service,
}

impl SecureService {
    pub(crate) async fn start(change: impl FnOnce(&mut Config)) -> Self {
        let authority = Authority::default();
        let mut config = Config { tls: authority.serve(), ..config("memory:") };
        // A write would find out that its reader is gone.
        config.stream.heartbeat_ms = LONG_MS;
        change(&mut config);
        Self { service: Service::start_with(config).await, authority }
    }

    /// A connection that takes frames by hand.
    pub(crate) async fn raw(&self, settings: &[(u16, u32)]) -> RawHttp2<TlsStream<TcpStream>> {
        let tls = self.authority.client(&["h2"], None);
        let stream = keylatch_testkit::handshake(self.service.address, &tls).await.expect("TLS");
        RawHttp2::begin(stream, settings).await
    }

    async fn connect(&self) -> Client {
        let tls = self.authority.client(&["h2"], None);
        let stream = keylatch_testkit::handshake(self.service.address, &tls).await.expect("TLS");
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        let (sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .expect("a connection of HTTP/2");
        let ending = tokio::spawn(async move { drop(connection.await) });
        Client { sender, ending }
    }
}

struct Client {
    sender: SendRequest<Full<Bytes>>,
    ending: JoinHandle<()>,
}

impl Client {
    async fn send(&self, request: Builder, body: &str) -> Response<Incoming> {
        let mut sender = self.sender.clone();
        let request = request.body(Full::from(body.to_owned())).expect("a request");
        soon("an answer", sender.send_request(request)).await.expect("an answer")
    }

    /// A request that runs until its handle is aborted.
    fn begin(&self, request: Builder, body: &Value) -> JoinHandle<Response<Incoming>> {
        let mut sender = self.sender.clone();
        let request = request.body(Full::from(body.to_string())).expect("a request");
        tokio::spawn(async move { sender.send_request(request).await.expect("an answer") })
    }

    async fn look(&self, name: &str) -> (u16, Value) {
        read(self.send(get(&format!("/v1/locks/{name}")), "").await).await
    }

    async fn hold(&self) {
        let body = json!({ "ttl_ms": LONG_MS }).to_string();
        assert_eq!(self.send(post("/v1/locks/deploy"), &body).await.status(), 201);
    }

    async fn has_waiting(&self, waiting: u64) {
        eventually(async || (self.look("deploy").await.1["waiting"] == waiting).then_some(()))
            .await;
    }
}

fn get(path: &str) -> Builder {
    Request::get(format!("https://localhost{path}"))
}

fn post(path: &str) -> Builder {
    Request::post(format!("https://localhost{path}")).header("content-type", "application/json")
}

async fn read(answer: Response<Incoming>) -> (u16, Value) {
    let status = answer.status().as_u16();
    let body = answer.into_body().collect().await.expect("a body").to_bytes();
    (status, serde_json::from_slice(&body).unwrap_or_default())
}

#[tokio::test]
async fn client_chooses_its_version_of_http() {
    let place = SecureService::start(|_| {}).await;
    let client = place.connect().await;
    let answer = client.send(get("/livez"), "").await;
    assert_eq!((answer.version(), answer.status().as_u16()), (Version::HTTP_2, 200));
    assert!(answer.headers().contains_key("x-request-id"));
    client.hold().await;
    assert_eq!(client.look("deploy").await.0, 200);
    let large = client.send(get("/docs/swagger-ui-bundle.js"), "").await;
    let length: usize = large.headers()["content-length"].to_str().unwrap().parse().unwrap();
    let body = soon("a body", large.into_body().collect()).await.expect("a body").to_bytes();
    assert!(body.len() == length && length > 1_000_000, "{length}");
    for alpn in [&["http/1.1"][..], &[]] {
        let tls = place.authority.client(alpn, None);
        let mut wire = connect_tls(place.service.address, &tls).await;
        assert_eq!(wire.get("/v1/locks/deploy").await.status, 200, "{alpn:?}");
    }
}

#[tokio::test]
async fn host_and_origin_are_checked_on_streams() {
    let place = SecureService::start(|_| {}).await;
    let client = place.connect().await;
    let (status, problem) =
        read(client.send(Request::get("https://evil.example/livez"), "").await).await;
    assert_eq!((status, &problem["code"]), (421, &json!("misdirected-request")));
    // What is asked for is in `:authority`, whatever a Host beside it says.
    let both = Request::get("https://evil.example/livez").header("host", "localhost");
    assert_eq!(client.send(both, "").await.status(), 421);
    for (origin, status) in [("https://localhost", 201), ("https://evil.example", 403)] {
        let request = post(&format!("/v1/locks/{status}")).header("origin", origin);
        assert_eq!(client.send(request, "{}").await.status(), status, "{origin}");
    }
}

/// Without a reset of its streams, and with half a frame behind them.
#[tokio::test]
async fn waiters_whose_connection_ends_leave_queue() {
    let place = SecureService::start(|_| {}).await;
    let other = place.connect().await;
    other.hold().await;
    for behind in [&[][..], &[0, 0, 9]] {
        let mut waiters = place.raw(&[]).await;
        for stream in [1, 3] {
            waiters.post(stream, "/v1/locks/deploy", r#"{"wait_ms":300000}"#).await;
        }
        waiters.write(behind).await;
        other.has_waiting(2).await;
        drop(waiters);
        other.has_waiting(0).await;
    }
}

#[tokio::test]
async fn create_whose_stream_is_reset_in_the_same_flight_holds_nothing() {
    let place = SecureService::start(|_| {}).await;
    let mut wire = place.raw(&[]).await;
    for stream in (1..20).step_by(2) {
        let head = head("POST", &format!("/v1/locks/{stream}"), &[]);
        let mut flight = frame(kind::HEADERS, END_HEADERS, stream, &head);
        flight.extend(frame(kind::DATA, END_STREAM, stream, b"{}"));
        flight.extend(frame(kind::RST_STREAM, 0, stream, &8_u32.to_be_bytes()));
        wire.write(&flight).await;
    }
    wire.get(21, "/livez").await;
    wire.frame(|frame| frame.kind == kind::HEADERS && frame.stream == 21).await;
    let mut other = connect_tls(place.service.address, &place.authority.client(&[], None)).await;
    let held = other.get("/v1/locks").await.json["locks"].as_array().expect("a page").len();
    assert_eq!(held, 0);
}

#[tokio::test]
async fn hold_whose_stream_is_reset_releases_lock() {
    let place = SecureService::start(|_| {}).await;
    let client = place.connect().await;
    let held = client.send(post("/v1/locks/deploy/hold"), "{}").await;
    assert_eq!(held.status(), 200);
    eventually(async || (client.look("deploy").await.0 == 200).then_some(())).await;
    drop(held);
    eventually(async || (client.look("deploy").await.0 == 404).then_some(())).await;
}

#[tokio::test]
async fn shutdown_answers_what_is_under_way_and_ends_the_connection() {
    let place = SecureService::start(|_| {}).await;
    let (client, idle) = (place.connect().await, place.connect().await);
    assert_eq!(idle.send(get("/livez"), "").await.status(), 200);
    let order = json!({ "amount": 1, "currency": "EUR", "delay_ms": 500 });
    let slow = client.begin(post("/v1/orders").header("idempotency-key", "k-1"), &order);
    let record = "/v1/idempotency/k-1?method=POST&path=/v1/orders";
    eventually(async || (idle.send(get(record), "").await.status() == 200).then_some(())).await;
    let stopped = tokio::spawn(place.service.stop());
    assert_eq!(soon("an answer", slow).await.expect("an answer").status(), 201);
    soon("the end", client.ending).await.expect("its connection ends");
    soon("the end", idle.ending).await.expect("its connection ends");
    soon("the end", stopped).await.expect("the service ends");
}

#[tokio::test]
async fn goaway_at_shutdown_loses_no_request_that_is_on_its_way() {
    let place = SecureService::start(|_| {}).await;
    let mut wire = place.raw(&[]).await;
    wire.get(1, "/livez").await;
    wire.frame(|frame| frame.kind == kind::HEADERS && frame.stream == 1).await;
    let stopped = tokio::spawn(place.service.stop());
    // The last stream that is answered, and why the connection ends: for no error.
    let goaway = |last: u32| [last.to_be_bytes(), [0; 4]].concat();
    let first = wire.frame(|frame| frame.kind == kind::GOAWAY).await;
    assert_eq!(first.payload, goaway(u32::MAX >> 1), "no stream is refused yet");
    let ping = wire.frame(|frame| frame.kind == kind::PING && frame.flags == 0).await;
    // The client had not read it when it sent this.
    wire.get(3, "/livez").await;
    wire.frame(|frame| frame.kind == kind::HEADERS && frame.stream == 3).await;
    wire.send(kind::PING, 1, 0, &ping.payload).await;
    let rest = wire.rest().await;
    let last = rest.iter().rfind(|frame| frame.kind == kind::GOAWAY).expect("a last GOAWAY");
    assert_eq!(last.payload, goaway(3));
    soon("the end", stopped).await.expect("the service ends");
}

#[tokio::test]
async fn guarded_service_reads_a_stream_as_a_request_of_http1() {
    let upstream = Upstream::start().await;
    let guard = Guard { path: "/shop".to_owned(), upstream: upstream.url(), ..Guard::default() };
    let place = SecureService::start(|config| config.guard = vec![guard]).await;
    let client = place.connect().await;
    let order = post("/shop").header("idempotency-key", "k-1");
    let order = order.header("cookie", "a=1").header("cookie", "b=2").header("te", "trailers");
    let answer = client.send(order, "{}").await;
    assert_eq!(answer.status(), 201);
    let seen = upstream.last();
    let cookies: Vec<_> = seen.headers.get_all("cookie").iter().collect();
    assert_eq!(cookies, ["a=1; b=2"]);
    assert!(!seen.headers.contains_key("te"));
    assert_eq!(seen.headers.get_all("host").iter().count(), 1);
}
