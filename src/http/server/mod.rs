//! A server of HTTP/1.1 and, behind TLS, HTTP/2, with a limit on everything that a client can make
//! it wait for or keep.
//!
//! The accept loop counts connections, serves those beyond the cap what needs no room and answers
//! them 503 otherwise, and at shutdown drains: it accepts no more, lets requests end, and closes
//! what is left when the time is over. In clear text it does not speak HTTP/2, which no client of
//! this API needs there. The server accepts from any number of [`Listener`]s of any transport,
//! which share its limits. Tested in `tests/api/connections.rs`, `shutdown.rs`, `listener.rs` and
//! `listeners.rs`.

mod activation;
mod connection;
mod http2;
mod listener;
mod listeners;
mod phases;
mod routes;
mod settings;
mod socket_io;
mod tls;
mod unix_socket;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt as _, try_join_all};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::connection::Connections;
use self::listeners::Socket;
use super::origin::ConnectionInfo;
use super::parts::ServedParts;
use crate::metrics::Metrics;

pub(crate) use activation::HandedSockets;
pub use listener::{AcceptedConnection, Listener};
pub(crate) use listeners::reachable;
pub use listeners::{BoundListener, ListenerSettings};
pub(crate) use routes::Routes;
pub use settings::Settings;
pub use socket_io::{SocketIo, StreamSocket};
pub use tls::{TlsFileError, TlsFiles, TlsSettings};
pub use unix_socket::UnixSocket;

/// How many connections beyond the cap have a request answered; more are closed without a response.
const SURPLUS: usize = 256;
/// How long such a connection may take.
const SURPLUS_TIME: Duration = Duration::from_secs(2);

/// A server of some routes on its listeners.
pub struct Server {
    shared: Arc<Shared>,
    /// The accept loop of each listener.
    accepting: Vec<BoxFuture<'static, Result<(), ServeError>>>,
}

/// What the listeners of a server share.
struct Shared {
    routes: Routes,
    settings: Settings,
    metrics: Arc<Metrics>,
    places: Arc<Semaphore>,
    surplus_places: Arc<Semaphore>,
    closing: CancellationToken,
    killed: CancellationToken,
    tasks: TaskTracker,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("listeners", &self.accepting.len()).finish_non_exhaustive()
    }
}

/// A listener broke.
#[derive(Debug, thiserror::Error)]
#[error("accepting connections failed")]
pub struct ServeError(#[from] io::Error);

impl Server {
    /// A server of `routes` without a listener, which shuts down when `closing` is cancelled.
    pub(crate) fn new(
        routes: Routes,
        settings: Settings,
        metrics: Arc<Metrics>,
        closing: CancellationToken,
    ) -> Self {
        let shared = Shared {
            routes,
            places: Arc::new(Semaphore::new(settings.max_connections)),
            surplus_places: Arc::new(Semaphore::new(SURPLUS)),
            settings,
            metrics,
            closing,
            killed: CancellationToken::new(),
            tasks: TaskTracker::new(),
        };
        Self { shared: Arc::new(shared), accepting: Vec::new() }
    }

    /// Accepts from `listener` too once it runs, with TLS if there are files for it, and serves
    /// these parts of the routes there.
    #[must_use]
    pub fn with_listener(
        mut self,
        listener: Arc<impl Listener>,
        tls: Option<Arc<TlsFiles>>,
        serves: ServedParts,
    ) -> Self {
        let shared = Arc::clone(&self.shared);
        self.accepting.push(shared.accept_until_closing(listener, tls, serves).boxed());
        self
    }

    /// Accepts from each of `listeners` likewise, as its settings say.
    #[must_use]
    pub(crate) fn with_listeners(
        self,
        listeners: &[BoundListener],
        tls: Option<&Arc<TlsFiles>>,
    ) -> Self {
        listeners.iter().fold(self, |server, BoundListener { socket, settings }| {
            let tls = tls.filter(|_| settings.is_tls(true)).cloned();
            match socket {
                Socket::Tcp(listener) => {
                    server.with_listener(Arc::clone(listener), tls, settings.serves)
                }
                Socket::Unix(listener) => {
                    server.with_listener(Arc::clone(listener), tls, settings.serves)
                }
            }
        })
    }

    /// Closes every connection when it is cancelled.
    pub fn killed(&self) -> CancellationToken {
        self.shared.killed.clone()
    }

    /// Serves until it shuts down, or a listener breaks, which cancels `closing` too. Then it
    /// drains: requests may end until [`Server::killed`] is cancelled.
    pub async fn run(self) -> Result<(), ServeError> {
        let Shared { closing, killed, tasks, .. } = &*self.shared;
        let served = try_join_all(self.accepting).await.map(|_| ());
        if served.is_err() {
            closing.cancel();
        }
        tasks.close();
        if killed.run_until_cancelled(tasks.wait()).await.is_none() {
            tracing::warn!(left = tasks.len(), "closing connections that did not end");
            tasks.wait().await;
        }
        served
    }
}

impl Shared {
    /// The accept loop of one listener, which is closed when it ends.
    async fn accept_until_closing(
        self: Arc<Self>,
        listener: Arc<impl Listener>,
        tls: Option<Arc<TlsFiles>>,
        serves: ServedParts,
    ) -> Result<(), ServeError> {
        let known = ConnectionInfo {
            is_local: listener.is_local()?,
            is_tls: tls.is_some(),
            serves,
            ..ConnectionInfo::default()
        };
        let (settings, metrics, tasks) = (&self.settings, &self.metrics, &self.tasks);
        let connections = Arc::new(Connections { server: Arc::clone(&self), tls, known });
        let write_timeout = Duration::from_millis(settings.write_timeout_ms);
        loop {
            let accept = listener::accept(&*listener, write_timeout);
            let Some(accepted) = self.closing.run_until_cancelled(accept).await else {
                return Ok(());
            };
            let (accepted, connections) = (accepted?, Arc::clone(&connections));
            if let Ok(place) = Arc::clone(&self.places).try_acquire_owned() {
                tasks.spawn(connections.serve(accepted, false, place));
            } else if let Ok(place) = Arc::clone(&self.surplus_places).try_acquire_owned() {
                metrics.shed.inc();
                let surplus = connections.serve(accepted, true, place);
                tasks.spawn(timeout(SURPLUS_TIME, surplus));
            } else {
                metrics.shed.inc();
            }
        }
    }
}
