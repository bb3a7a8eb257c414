//! A server of HTTP/1.1 and, behind TLS, HTTP/2, with a limit on everything that a client can make it wait for or keep.
//!
//! The accept loop counts connections, answers 503 to those beyond the cap, and at shutdown drains: it
//! accepts no more, lets requests end, and closes what is left when the time is over. In clear text it does
//! not speak HTTP/2, which no client of this API needs there. The server is generic over its
//! [`Listener`]. Tested in `tests/api/connections.rs`, `shutdown.rs` and `tests/api/listener.rs`.

mod connection;
mod http2;
mod listener;
mod phases;
mod settings;
mod tls;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::connection::Connections;
use super::problem::{Code, Problem};
use super::request::RequestLayer;
use crate::metrics::Metrics;
use keylatch_core::store::Effect;

pub use listener::{AcceptedConnection, Listener, TcpIo};
pub use settings::Settings;
pub use tls::{TlsFileError, TlsFiles, TlsSettings};

/// How many connections beyond the cap are answered 503; more are closed without an answer.
const REFUSALS: usize = 256;
/// How long a refused connection may take to read its refusal.
const REFUSAL_TIME: Duration = Duration::from_secs(2);

/// A server of some routes on a listener.
#[derive(Debug)]
pub struct Server<L> {
    listener: L,
    tls: Option<Arc<TlsFiles>>,
    router: Router,
    full: Router,
    settings: Settings,
    metrics: Arc<Metrics>,
}

/// The listener broke.
#[derive(Debug, thiserror::Error)]
#[error("accepting connections failed")]
pub struct ServeError(#[from] io::Error);

impl<L: Listener> Server<L> {
    /// A server of `router` that accepts from `listener` once it runs.
    pub fn new(
        listener: L,
        router: Router,
        requests: RequestLayer,
        settings: Settings,
        metrics: Arc<Metrics>,
    ) -> Self {
        let full = Router::new().fallback(async || full()).layer(requests);
        Self { listener, tls: None, router, full, settings, metrics }
    }

    /// Speaks TLS with these files, if there are any.
    #[must_use]
    pub fn with_tls(self, tls: Option<Arc<TlsFiles>>) -> Self {
        Self { tls, ..self }
    }

    /// Serves until `closing` is cancelled, then drains: requests may end for as long as the settings
    /// allow, and what is left is closed.
    ///
    /// # Errors
    ///
    /// The listener broke.
    pub async fn run(self, closing: CancellationToken) -> Result<(), ServeError> {
        let drain_timeout = Duration::from_millis(self.settings.drain_timeout_ms);
        let tasks = TaskTracker::new();
        let killed = CancellationToken::new();
        let served = self.accept_until(&closing, &killed, &tasks).await;
        tasks.close();
        if timeout(drain_timeout, tasks.wait()).await.is_err() {
            tracing::warn!(left = tasks.len(), "closing connections that did not end");
            killed.cancel();
            tasks.wait().await;
        }
        served
    }

    /// The accept loop. The listener is closed when it ends.
    async fn accept_until(
        self,
        closing: &CancellationToken,
        killed: &CancellationToken,
        tasks: &TaskTracker,
    ) -> Result<(), ServeError> {
        let Self { listener, tls, router, full, settings, metrics } = self;
        let connections =
            Connections::new(&settings, listener.is_on_loopback()?, tls, closing, killed, &metrics);
        let connections = Arc::new(connections);
        let write_timeout = Duration::from_millis(settings.write_timeout_ms);
        let places = Arc::new(Semaphore::new(settings.max_connections));
        let refusals = Arc::new(Semaphore::new(REFUSALS));
        loop {
            let accept = listener::accept(&listener, write_timeout);
            let Some(accepted) = closing.run_until_cancelled(accept).await else { return Ok(()) };
            let (accepted, connections) = (accepted?, Arc::clone(&connections));
            if let Ok(place) = Arc::clone(&places).try_acquire_owned() {
                tasks.spawn(connections.serve(accepted, router.clone(), true, place));
            } else if let Ok(place) = Arc::clone(&refusals).try_acquire_owned() {
                metrics.shed.inc();
                let refusal = connections.serve(accepted, full.clone(), false, place);
                tasks.spawn(timeout(REFUSAL_TIME, refusal));
            } else {
                metrics.shed.inc();
            }
        }
    }
}

fn full() -> Response {
    let problem = Problem::new(Code::Overloaded, "The service has too many connections.")
        .with_outcome(Effect::NotExecuted)
        .with_retry_after(Duration::from_secs(1))
        .with_retry();
    let mut response = problem.into_response();
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}
