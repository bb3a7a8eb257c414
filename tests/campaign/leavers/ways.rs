//! The ways in which a client goes away, each with what it had asked for.
//!
//! Goal: each way that an adversary found is among them. Method: a client sends its request by
//! hand, leaves, and says nothing more; `mod.rs` looks at what the service has of it.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use keylatch_testkit::raw_http2::RawHttp2;
use keylatch_testkit::{Dice, get_request, handshake};
use rustls::ClientConfig;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, sink};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::{Door, HELD, LOCKS, TTL_MS, name};

/// How a client goes away.
#[derive(Debug, Clone, Copy)]
pub(super) enum Way {
    /// It waits for a lock that may be granted, and ends its side of the connection.
    HalfClose,
    /// It waits, and closes.
    Close,
    /// The same with a reset in place of an end.
    Reset,
    /// With an empty line behind the request.
    EmptyLine,
    /// With another request behind the first.
    Pipelined,
    /// With more bytes while it waits.
    MoreBytes,
    /// It asks again on a second connection with the same token, and leaves the first before the
    /// second.
    Superseded,
    /// It waits by a stream.
    WaitingHold,
    /// It holds a lock of its own by a stream.
    HeldHold,
    /// It watches a lock.
    Watch,
    /// Its guarded request is being run.
    GuardedRun,
    /// It waits behind TLS.
    Tls,
    /// It waits on a stream of HTTP/2, and resets it.
    StreamReset,
    /// The same, and closes the connection.
    ConnectionCut,
}

impl Way {
    const BESIDE_HALF_CLOSE: [Self; 13] = [
        Self::Close,
        Self::Reset,
        Self::EmptyLine,
        Self::Pipelined,
        Self::MoreBytes,
        Self::Superseded,
        Self::WaitingHold,
        Self::HeldHold,
        Self::Watch,
        Self::GuardedRun,
        Self::Tls,
        Self::StreamReset,
        Self::ConnectionCut,
    ];

    /// The way of the client of this number.
    pub(super) fn of(number: u64) -> Self {
        if number.is_multiple_of(2) {
            return Self::HalfClose;
        }
        Self::BESIDE_HALF_CLOSE[(number / 2) as usize % Self::BESIDE_HALF_CLOSE.len()]
    }
}

/// A client that goes away at a random moment.
pub(super) struct Leaver {
    number: u64,
    way: Way,
    door: Door,
    /// For HTTP/1.1 and for HTTP/2.
    tls: Arc<[Arc<ClientConfig>; 2]>,
    token: String,
    stays_for: Duration,
}

impl Leaver {
    pub(super) fn new(number: u64, way: Way, door: Door, tls: Arc<[Arc<ClientConfig>; 2]>) -> Self {
        let token = format!("the-token-of-leaver-{number}");
        let stays_for = Duration::from_micros(Dice(number).below(300_000));
        Self { number, way, door, tls, token, stays_for }
    }

    /// Whether it read a grant and released the lock; `None` of one that could not be granted any.
    pub(super) async fn come_and_go(self) -> Option<bool> {
        match self.way {
            Way::HalfClose => return Some(self.wait_and_end_its_side().await),
            Way::Close => drop(self.wait("").await),
            Way::Reset => {
                let stream = self.wait("").await;
                stream.set_zero_linger().expect("the connection is open");
            }
            Way::EmptyLine => drop(self.wait("\r\n").await),
            Way::Pipelined => drop(self.wait(&get_request("/v1/locks/behind")).await),
            Way::MoreBytes => {
                let mut stream = self.wait("").await;
                for _ in 0..3 {
                    // The service may have closed it.
                    let _ = stream.write_all(b"\r\n").await;
                    self.stay(&mut stream).await;
                }
            }
            Way::Superseded => {
                let first = self.wait("").await;
                let second = self.wait("").await;
                drop(first);
                drop(second);
            }
            Way::WaitingHold => drop(self.open(&self.acquire(&format!("{HELD}/hold"))).await),
            Way::HeldHold => {
                drop(self.open(&self.acquire(&format!("own-{}/hold", self.number))).await);
            }
            Way::Watch => {
                drop(self.open(&get_request(&format!("/v1/locks/{HELD}/events"))).await);
            }
            Way::GuardedRun => drop(self.open(&self.order()).await),
            Way::Tls => self.wait_behind_tls().await,
            Way::StreamReset | Way::ConnectionCut => self.wait_on_a_stream().await,
        }
        None
    }

    /// Waits for a lock on a connection, with something behind the request.
    async fn wait(&self, behind: &str) -> TcpStream {
        self.open(&(self.acquire(HELD) + behind)).await
    }

    /// A connection on which a request was sent a while ago.
    async fn open(&self, request: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.door.clear).await.expect("a connection");
        stream.write_all(request.as_bytes()).await.expect("sent");
        self.stay(&mut stream).await;
        stream
    }

    /// Reads for as long as it stays.
    async fn stay(&self, stream: &mut (impl AsyncRead + Unpin)) {
        let _ = timeout(self.stays_for, tokio::io::copy(stream, &mut sink())).await;
    }

    async fn wait_behind_tls(&self) {
        let mut stream = handshake(self.door.tls, &self.tls[0]).await.expect("TLS");
        stream.write_all(self.acquire(HELD).as_bytes()).await.expect("sent");
        self.stay(&mut stream).await;
    }

    async fn wait_on_a_stream(&self) {
        let stream = handshake(self.door.tls, &self.tls[1]).await.expect("TLS");
        let mut wire = RawHttp2::begin(stream, &[]).await;
        wire.post(1, &format!("/v1/locks/{HELD}"), &wait_body()).await;
        let _ = timeout(self.stays_for, wire.rest()).await;
        if matches!(self.way, Way::StreamReset) {
            wire.reset(1).await;
            let _ = timeout(self.stays_for, wire.rest()).await;
        }
    }

    /// Waits for one of the locks that are granted. Whether it read a grant; then it releases the
    /// lock.
    async fn wait_and_end_its_side(self) -> bool {
        let lock = name(self.number / 2 % LOCKS);
        let connection = TcpStream::connect(self.door.clear).await.expect("a connection");
        let (mut answers, mut requests) = connection.into_split();
        let request = self.request("POST", &lock, "Connection: close\r\n", &wait_body());
        requests.write_all(request.as_bytes()).await.expect("sent");
        let mut staying = pin!(async {
            let mut answer = String::new();
            let _ = answers.read_to_string(&mut answer).await;
            assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 201 "), "{answer}");
            if !answer.is_empty() {
                self.release(&lock).await;
            }
            !answer.is_empty()
        });
        if let Ok(was_told) = timeout(self.stays_for, &mut staying).await {
            return was_told;
        }
        // For the service, a client that has ended its side is gone. The client can still read what
        // the service sent before it knew that.
        let _ = requests.shutdown().await;
        staying.await
    }

    async fn release(&self, lock: &str) {
        let mut connection = TcpStream::connect(self.door.clear).await.expect("a connection");
        let request = self.request("DELETE", lock, "Connection: close\r\n", "");
        connection.write_all(request.as_bytes()).await.expect("sent");
        let mut answer = String::new();
        connection.read_to_string(&mut answer).await.expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 204 "), "{answer}");
    }

    /// A request that waits for a lock, by a response or by a stream.
    fn acquire(&self, lock: &str) -> String {
        self.request("POST", lock, "", &wait_body())
    }

    fn request(&self, method: &str, lock: &str, lines: &str, body: &str) -> String {
        format!(
            "{method} /v1/locks/{lock} HTTP/1.1\r\nHost: localhost\r\n{lines}Lock-Token: {}\r\n\
             Content-Length: {}\r\n\r\n{body}",
            self.token,
            body.len()
        )
    }

    fn order(&self) -> String {
        format!(
            "POST /orders HTTP/1.1\r\nHost: localhost\r\nIdempotency-Key: leaver-{}\r\n\
             Content-Length: 0\r\n\r\n",
            self.number
        )
    }
}

fn wait_body() -> String {
    format!(r#"{{"wait_ms":60000,"ttl_ms":{TTL_MS}}}"#)
}
