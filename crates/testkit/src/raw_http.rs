//! HTTP by hand: bytes on a connection, for what no HTTP client would send or wait for.
//!
//! A test writes any bytes, also half of a request, and reads the answer up to its end as the head
//! announces it. Each read has an end. It has no TLS of its own and takes any stream.

use std::net::SocketAddr;
use std::time::Duration;

use reqwest::StatusCode;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::{Answer, eventually, soon};

/// A connection to a service.
pub struct RawConnection {
    stream: BufReader<Box<dyn Bytes>>,
    /// Of this side.
    port: u16,
}

/// The bytes of a connection, both ways.
pub trait Bytes: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Bytes for T {}

impl std::fmt::Debug for RawConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RawConnection({})", self.port)
    }
}

impl RawConnection {
    /// A connection on which nothing was sent.
    pub async fn connect(address: SocketAddr) -> Self {
        let stream = soon("a connection", TcpStream::connect(address)).await;
        let stream = stream.expect("the service accepts connections");
        let port = stream.local_addr().expect("an address").port();
        Self { stream: BufReader::new(Box::new(stream)), port }
    }

    /// A connection over other bytes than those of TCP, such as those within TLS.
    pub fn over(stream: impl Bytes + 'static) -> Self {
        Self { stream: BufReader::new(Box::new(stream)), port: 0 }
    }

    /// A connection on which these bytes were sent.
    pub async fn sending(address: SocketAddr, bytes: &str) -> Self {
        let mut wire = Self::connect(address).await;
        wire.send(bytes).await;
        wire
    }

    /// Ends the connection, and waits until the system of the service has heard of it. The service
    /// may not.
    ///
    /// Without the wait, a busy system delivers what another connection sends afterwards before the
    /// end of this one.
    pub async fn hang_up(self) {
        let port = self.port;
        drop(self);
        // A table that changes while it is read can lack a line, so it has to lack this one several
        // times.
        eventually(async || (0..3).all(|_| !is_waiting_for_end(port)).then_some(())).await;
    }

    /// Sends bytes to a service that has to take them.
    pub async fn send(&mut self, bytes: &str) {
        assert!(self.try_send(bytes).await, "the service has closed the connection");
    }

    /// Closes this side for sending. The answer can still come.
    pub async fn finish(&mut self) {
        self.stream.shutdown().await.expect("the connection is open");
    }

    /// Sends bytes; `false` where the service has closed the connection.
    pub async fn try_send(&mut self, bytes: &str) -> bool {
        let sent = async {
            self.stream.write_all(bytes.as_bytes()).await?;
            self.stream.flush().await
        };
        soon("sending", sent).await.is_ok()
    }

    /// The next answer, which has to come.
    #[track_caller]
    pub fn answer(&mut self) -> impl Future<Output = Answer> {
        soon("an answer", self.read_answer())
    }

    /// Sends `GET path` and reads the answer.
    pub async fn get(&mut self, path: &str) -> Answer {
        self.send(&get_request(path)).await;
        self.answer().await
    }

    /// Reads the next bytes, which have to be these.
    pub async fn receives(&mut self, text: &str) {
        let mut bytes = vec![0; text.len()];
        let read = soon("bytes", self.stream.read_exact(&mut bytes)).await;
        read.expect("the connection stays open until then");
        assert_eq!(String::from_utf8_lossy(&bytes), text);
    }

    /// Waits until the service closes the connection; it must not send another byte before.
    pub async fn closed(&mut self) {
        let rest = self.rest().await;
        assert_eq!(rest, "", "the service sent something before it closed the connection");
    }

    /// Waits until the service closes the connection; whether `text` was not among the bytes that
    /// it sent before.
    pub async fn ends_without(&mut self, text: &str) -> bool {
        let mut rest = Vec::new();
        let _ = soon("the end of the connection", self.stream.read_to_end(&mut rest)).await;
        !String::from_utf8_lossy(&rest).contains(text)
    }

    /// Waits until the service closes the connection, and gives what it sent before.
    #[track_caller]
    pub fn rest(&mut self) -> impl Future<Output = String> {
        soon("the end of the connection", async {
            let mut rest = Vec::new();
            // A connection that is closed with unread bytes in it is reset.
            let _ = self.stream.read_to_end(&mut rest).await;
            String::from_utf8(rest).expect("text")
        })
    }

    /// Whether the connection is still open after `time`, in which the service has to be silent.
    pub async fn stays_open(&mut self, time: Duration) -> bool {
        match timeout(time, self.stream.read_u8()).await {
            Err(_) => true,
            Ok(Err(_)) => false,
            Ok(Ok(byte)) => panic!("the service sent the byte {byte} without being asked"),
        }
    }

    async fn read_answer(&mut self) -> Answer {
        let line = self.line().await;
        let status = line.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.unwrap_or_else(|| panic!("not a status line: {line:?}"));
        let mut headers = HeaderMap::new();
        loop {
            let line = self.line().await;
            let Some((name, value)) = line.split_once(": ") else { break };
            let name: HeaderName = name.parse().expect("a header's name");
            headers.append(name, HeaderValue::from_str(value).expect("a header's value"));
        }
        let body = match headers.get("transfer-encoding") {
            Some(_) => self.read_chunks().await,
            None => self.read_bytes(length_of(&headers)).await,
        };
        let text = String::from_utf8(body).expect("a body of text");
        let json = serde_json::from_str(&text).unwrap_or(Value::Null);
        let status = StatusCode::from_u16(status).expect("a status");
        Answer { status, headers, json, text }
    }

    /// The body of an answer in chunks, which has no trailers.
    async fn read_chunks(&mut self) -> Vec<u8> {
        let mut body = Vec::new();
        loop {
            let length = usize::from_str_radix(&self.line().await, 16).expect("a chunk's length");
            body.extend(self.read_bytes(length).await);
            assert_eq!(self.line().await, "", "a chunk is as long as it says");
            if length == 0 {
                return body;
            }
        }
    }

    async fn read_bytes(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.stream.read_exact(&mut bytes).await.expect("the whole body");
        bytes
    }

    async fn line(&mut self) -> String {
        let mut line = String::new();
        self.stream.read_line(&mut line).await.expect("a line of the answer's head");
        assert!(!line.is_empty(), "the service closed the connection in place of an answer");
        line.trim_end().to_owned()
    }
}

fn length_of(headers: &HeaderMap) -> usize {
    let length = headers.get("content-length").map_or(Ok("0"), HeaderValue::to_str);
    length.ok().and_then(|length| length.parse().ok()).expect("a length")
}

/// Whether a socket with this local port has sent its end and was not acknowledged yet: the state
/// `TCP_FIN_WAIT1`, 04, in Linux's table of connections.
fn is_waiting_for_end(port: u16) -> bool {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap_or_default();
    let local = format!(":{port:04X}");
    table.lines().any(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let is_local = fields.next().is_some_and(|address| address.ends_with(&local));
        is_local && fields.nth(1) == Some("04")
    })
}

/// The bytes of a `GET` request.
pub fn get_request(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n")
}

/// The head of a `POST` request with a body of `length` bytes.
pub fn post_head(path: &str, length: usize) -> String {
    format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n")
}
