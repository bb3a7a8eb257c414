//! What a server answers by: its routes or, while the store opens, what waits for them.
//!
//! A store on disk with millions of locks takes seconds to open. A supervisor that read nothing
//! from `/livez` meanwhile would restart the process, and begin again. So the server accepts from
//! the start: it answers `/livez`, and every other request waits for the routes of the service.
//! Once these are there, each request goes straight to them, so that a connection that came early
//! costs no more than one that came later.
//!
//! Invariant: no request is refused because the store is opening. Tested in `tests/api/opening.rs`.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use tokio::sync::SetOnce;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

/// The routes of a server. Clones are the same routes.
#[derive(Debug, Clone)]
pub(crate) struct Routes {
    first: Router,
    later: Arc<SetOnce<Router>>,
}

impl From<Router> for Routes {
    fn from(first: Router) -> Self {
        Self { first, later: Arc::default() }
    }
}

impl Routes {
    /// Those of a service that opens its store. What waits is answered 503 where `closing` is
    /// cancelled first.
    pub(crate) fn to_come(closing: CancellationToken) -> Self {
        let later = Arc::new(SetOnce::new());
        let alive = || get(async || "ok");
        let first = Router::new().route("/livez", alive()).route("/.keylatch/livez", alive());
        let first = first.fallback(wait).with_state((Arc::clone(&later), closing));
        Self { first, later }
    }

    /// Those that answer a request that comes now.
    pub(super) fn current(&self) -> Router {
        self.later.get().unwrap_or(&self.first).clone()
    }

    /// Has `router` answer from now on, also what waits. The first that takes their place stays.
    pub(crate) fn replace(&self, router: Router) {
        // Routes are replaced once in a process.
        let _ = self.later.set(router);
    }
}

async fn wait(
    State((later, closing)): State<(Arc<SetOnce<Router>>, CancellationToken)>,
    request: Request,
) -> Response {
    match closing.run_until_cancelled(later.wait()).await {
        Some(router) => router.clone().oneshot(request).await.into_response(),
        // The store could not be opened, and the process ends.
        None => StatusCode::SERVICE_UNAVAILABLE.into_response(),
    }
}
