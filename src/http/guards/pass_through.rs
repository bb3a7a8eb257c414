//! A whole app behind keylatch: what no guard names passes through to it, on listeners that serve
//! guards alone.
//!
//! Every path there is the app's, but for those of the guards and what is below `/.keylatch/`: the
//! script of pages, the problems and the probes. What passes is read by the same admission as a
//! guard's request, so that no spelling of a path walks around a guard. Tested in
//! `tests/api/pass_through.rs`.

use axum::Router;
use axum::extract::Request;
use axum::response::IntoResponse as _;
use serde::Deserialize;
use tower::ServiceExt as _;
use tower::util::MapResponseLayer;

use crate::http::origin::ConnectionInfo;
use crate::http::parts::{Part, ServedParts};
use crate::http::problem::lead_below;
use crate::http::server::ListenerSettings;
use keylatch_axum::Guard;

/// Where keylatch's own paths are beside those of an app.
pub(in crate::http) const OWN: &str = "/.keylatch";

/// The section `gateway` of the configuration.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PassThrough {
    /// Scheme, host and port of the app; empty where there is none.
    pub upstream: String,
}

impl PassThrough {
    /// What types alone do not rule out.
    pub(crate) fn check(&self, listeners: &[ListenerSettings]) -> Result<(), &'static str> {
        let Some(rest) = self.guard(&[]) else { return Ok(()) };
        rest.origin().map_err(|wrong| wrong.rule)?;
        let mut with_guards =
            listeners.iter().filter(|one| one.serves.have(Part::Guards)).peekable();
        if with_guards.peek().is_some() && with_guards.all(|one| one.serves.are_guards_alone()) {
            return Ok(());
        }
        Err(
            "needs a [[listener]] with `serves = [\"guards\"]`, and no other that serves guards: there every other path \
             is the app's",
        )
    }

    /// Where a listener says that the service is alive.
    pub(crate) fn liveness_at(&self, listener: &ListenerSettings) -> &'static str {
        let is_of_app = !self.upstream.is_empty() && listener.serves.are_guards_alone();
        if is_of_app { "/.keylatch/livez" } else { "/livez" }
    }

    /// What lets through what no other guard names.
    pub(in crate::http) fn guard(&self, guards: &[Guard]) -> Option<Guard> {
        (!self.upstream.is_empty()).then(|| Guard::around(&self.upstream, guards))
    }
}

/// The routes of each listener: those of an app where guards alone are served.
pub(in crate::http) fn by_listener(all: Router, of_app: Router) -> Router {
    let of_app = of_app.layer(MapResponseLayer::new(|response| lead_below(OWN, response)));
    Router::new().fallback(async move |request: Request| {
        let serves =
            ConnectionInfo::of(&request).map_or(ServedParts::ALL, |connection| connection.serves);
        let routes = if serves.are_guards_alone() { &of_app } else { &all };
        routes.clone().oneshot(request).await.into_response()
    })
}
