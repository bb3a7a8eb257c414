//! What a server answers by: its routes, until others take their place.
//!
//! While the store opens, a server has routes that wait for those of the service. Once these are
//! there, each request on its connections goes straight to them, so that a connection that came
//! early costs no more than one that came later. Tested in `tests/api/opening.rs`.

use std::sync::{Arc, OnceLock};

use axum::Router;

/// The routes of a server. Clones are the same routes.
#[derive(Debug, Clone)]
pub(crate) struct Routes {
    first: Router,
    later: Arc<OnceLock<Router>>,
}

impl From<Router> for Routes {
    fn from(first: Router) -> Self {
        Self { first, later: Arc::default() }
    }
}

impl Routes {
    /// Those that response a request that comes now.
    pub(super) fn current(&self) -> Router {
        self.later.get().unwrap_or(&self.first).clone()
    }

    /// Has `router` answer from now on. The first that takes their place stays.
    pub(crate) fn replace(&self, router: Router) {
        // Routes are replaced once in a process.
        let _ = self.later.set(router);
    }
}
