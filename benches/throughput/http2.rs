//! Requests as streams of HTTP/2, a thousand on each connection.
//!
//! The service speaks it behind TLS alone, and the client is hyper's. A connection is opened with a
//! request that is answered at once, so that what the service keeps for the connection is there
//! before a stream that stays.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use keylatch_testkit::handshake as tls_handshake;
use rustls::ClientConfig;

use crate::Result;

/// How many streams a connection has at most; the service is configured with it.
pub(crate) const STREAMS: usize = 1_000;

/// A connection, of which clones share the streams.
#[derive(Debug, Clone)]
pub(crate) struct Http2 {
    sender: SendRequest<Full<Bytes>>,
    authority: SocketAddr,
}

/// As many connections as so many streams need.
pub(crate) async fn connections(
    address: SocketAddr,
    tls: &Arc<ClientConfig>,
    streams: usize,
) -> Result<Vec<Http2>> {
    let mut connections = Vec::new();
    for _ in 0..streams.div_ceil(STREAMS) {
        let connection = Http2::open(address, tls).await?;
        connection.send("GET", "/livez", &[], "").await?;
        connections.push(connection);
    }
    Ok(connections)
}

impl Http2 {
    pub(crate) async fn open(address: SocketAddr, tls: &Arc<ClientConfig>) -> Result<Self> {
        let stream = tls_handshake(address, tls).await?;
        stream.get_ref().0.set_nodelay(true)?;
        let (sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
        // It ends with its senders. Where it fails, so do the requests.
        tokio::spawn(async { drop(connection.await) });
        Ok(Self { sender, authority: address })
    }

    /// The head of the response, and its body as it comes. Fails where it is not a success.
    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Result<Response<Incoming>> {
        let mut request =
            Request::builder().method(method).uri(format!("https://{}{path}", self.authority));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::from(body.to_owned()))?;
        let mut sender = self.sender.clone();
        sender.ready().await?;
        let response = sender.send_request(request).await?;
        if !response.status().is_success() {
            return Err(format!("{method} {path} was answered {}", response.status()).into());
        }
        Ok(response)
    }

    /// What `GET path` is answered with.
    pub(crate) async fn text(&self, path: &str) -> Result<String> {
        let body = self.send("GET", path, &[], "").await?.into_body().collect().await?;
        Ok(String::from_utf8(body.to_bytes().to_vec())?)
    }

    /// The token of the lock that a request of `body` creates.
    pub(crate) async fn create(&self, name: &str, body: &str) -> Result<String> {
        let response = self.send("POST", &format!("/v1/locks/{name}"), &[], body).await?;
        if response.status() != StatusCode::CREATED {
            return Err(format!("a create was answered {}", response.status()).into());
        }
        let token = response.headers().get("lock-token").ok_or("a lease came without a token")?;
        Ok(token.to_str()?.to_owned())
    }
}
