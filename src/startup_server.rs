//! The service while its store opens: it says that it is alive, and every other request waits for
//! it.
//!
//! A store on disk with millions of locks takes seconds to open. A supervisor that read nothing
//! from `/livez` meanwhile would restart the process, and begin again. So a server of its own
//! accepts on the same listeners from the start. It answers `/livez`, and hands every other request
//! to the service's routes once they are there. From then on it accepts no more, and the service's
//! own server does; its connections stay until the service ends.
//!
//! Invariant: no request is refused because the store is opening. Tested in `tests/api/opening.rs`.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tower::ServiceExt as _;

use crate::http::{BoundListener, Routes, ServeError, Server, Settings, TlsFiles};
use crate::metrics::Metrics;

/// The routes of the service, once they are there.
type LaterRoutes = watch::Receiver<Option<Router>>;

/// What serves until the service does.
#[derive(Debug)]
pub(crate) struct StartupServer {
    /// For the requests that wait.
    later: watch::Sender<Option<Router>>,
    /// For those that come.
    routes: Routes,
    accepting: CancellationToken,
    closing: CancellationToken,
    killed: CancellationToken,
    serving: AbortOnDropHandle<Result<(), ServeError>>,
}

impl StartupServer {
    /// Serves on the listeners from now on.
    pub(crate) fn start(
        settings: Settings,
        metrics: Arc<Metrics>,
        tls: Option<&Arc<TlsFiles>>,
        listeners: &[BoundListener],
    ) -> Self {
        let (later, receiver) = watch::channel(None);
        let alive = || get(async || "ok");
        let router = Router::new().route("/livez", alive()).route("/.keylatch/livez", alive());
        let router = router.fallback(wait).with_state(receiver);
        let closing = CancellationToken::new();
        let server = Server::new(router, settings, metrics, closing.clone());
        let server = server.with_listeners(listeners, tls);
        let (routes, accepting, killed) = (server.routes(), server.accepting(), server.killed());
        let serving = AbortOnDropHandle::new(tokio::spawn(server.run()));
        Self { later, routes, accepting, closing, killed, serving }
    }

    /// Has the routes of the service answer what waits, and accepts no more.
    pub(crate) fn hand_over(&self, router: Router) {
        self.accepting.cancel();
        self.routes.replace(router.clone());
        self.later.send_replace(Some(router));
    }

    /// Lets the requests on its connections end once `closing` is cancelled, and closes what is
    /// left once `killed` is.
    pub(crate) async fn end(self, closing: &CancellationToken, killed: &CancellationToken) {
        let Self { later: _later, mut serving, .. } = self;
        closing.cancelled().await;
        self.closing.cancel();
        if killed.run_until_cancelled(&mut serving).await.is_none() {
            self.killed.cancel();
            // A listener that broke has ended the service's own server as well.
            let _ = serving.await;
        }
    }
}

/// Answers by the routes of the service, as soon as they are there.
async fn wait(State(mut routes): State<LaterRoutes>, request: Request) -> Response {
    let router = routes.wait_for(Option::is_some).await.ok().and_then(|routes| routes.clone());
    match router {
        Some(router) => router.oneshot(request).await.into_response(),
        // The store could not be opened, and the process ends.
        None => StatusCode::SERVICE_UNAVAILABLE.into_response(),
    }
}
