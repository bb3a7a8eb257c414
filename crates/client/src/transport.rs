//! Pooled HTTP/1.1 connections, over TCP or over a Unix socket of the same machine.
//!
//! Tested in `tests/api/rust_client.rs` and `tests/cli/listeners.rs`.

use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Body as HttpBody;
use hyper::{Request, Response, Uri};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::{Connect, HttpConnector};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::UnixStream;
use tower::service_fn;

use crate::{Error, Result};

/// The body of a response that is still to be read.
pub type Body = BoxBody<Bytes, hyper::Error>;

pub(crate) type Exchange = Arc<dyn Fn(Request<Full<Bytes>>) -> Exchanged + Send + Sync>;
pub(crate) type Exchanged = Pin<Box<dyn Future<Output = Result<Response<Body>>> + Send>>;

/// The certificate that a client shows to a service that asks for one, and its key: files in PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientCertificate {
    /// The certificate, and those that lead from it to its root.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const POOL_IDLE_TIMEOUT: Duration = Duration::from_secs(1);
// gunicorn closes one that was unused for 2 s, and a request that it closes under has an unknown
// outcome.
const _: () = assert!(POOL_IDLE_TIMEOUT.as_millis() <= 1500);

/// How many header lines a response may have. A server may send more than hyper's hundred, and a
/// response that is refused for that leaves open whether the request was carried out.
const MAX_HEADERS: usize = 1000;

/// A client without connections, which connects so.
pub(crate) fn pooled<C, B>(connector: C) -> legacy::Client<C, B>
where
    C: Connect + Clone,
    B: HttpBody + Send,
    B::Data: Send,
{
    legacy::Client::builder(TokioExecutor::new())
        .pool_idle_timeout(POOL_IDLE_TIMEOUT)
        .pool_timer(TokioTimer::new())
        .http1_max_headers(MAX_HEADERS)
        .build(connector)
}

pub(crate) fn http_connector(connect_timeout: Duration) -> HttpConnector {
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_connect_timeout(Some(connect_timeout));
    connector.set_nodelay(true);
    connector
}

/// What sends requests over connections of this kind.
pub(crate) fn exchange<C>(connector: C) -> Exchange
where
    C: Connect + Clone + Send + Sync + 'static,
{
    let client: legacy::Client<C, Full<Bytes>> = pooled(connector);
    Arc::new(move |request| {
        let response = client.request(request);
        Box::pin(async move {
            let response = response.await.map_err(|error| no_reply(&error))?;
            Ok(response.map(BodyExt::boxed))
        })
    })
}

fn no_reply(error: &legacy::Error) -> Error {
    // The innermost cause says what happened; hyper's own text does not.
    let first: &dyn std::error::Error = error;
    let causes = std::iter::successors(Some(first), |cause| cause.source());
    let cause = causes.last().unwrap_or(first).to_string();
    if error.is_connect() { Error::Unreachable(cause) } else { Error::Unanswered(cause) }
}

/// What sends requests to the socket at this path, whatever host they are for.
pub(crate) fn unix_exchange(path: Arc<Path>) -> Exchange {
    exchange(service_fn(move |_: Uri| {
        let path = Arc::clone(&path);
        Box::pin(async move { UnixStream::connect(path).await.map(TokioIo::new) })
    }))
}
