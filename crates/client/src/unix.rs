//! Pooled HTTP/1.1 connections over a Unix socket, on which the service of the same machine listens.
//!
//! Tested in `tests/api/rust_client.rs` and `tests/cli/listeners.rs`.

use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use hyper::Uri;
use hyper::body::Body;
use hyper_util::client::legacy;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::UnixStream;
use tower_service::Service;

use crate::https::POOL_IDLE_TIMEOUT;

/// Connections to one socket. Clones share them.
pub(crate) type UnixClient<B> = legacy::Client<UnixConnector, B>;

/// A client without connections, of the service that listens at `path`.
pub(crate) fn unix_client<B>(path: PathBuf) -> UnixClient<B>
where
    B: Body + Send,
    B::Data: Send,
{
    legacy::Client::builder(TokioExecutor::new())
        .pool_idle_timeout(POOL_IDLE_TIMEOUT)
        .pool_timer(TokioTimer::new())
        .build(UnixConnector(path.into()))
}

/// Connects to one socket, whatever host a request is for.
#[derive(Debug, Clone)]
pub(crate) struct UnixConnector(Arc<Path>);

impl Service<Uri> for UnixConnector {
    type Response = TokioIo<UnixStream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let path = Arc::clone(&self.0);
        Box::pin(async move { UnixStream::connect(path).await.map(TokioIo::new) })
    }
}
