//! Idempotency keys over HTTP: the guarded routes of the service before another service, and an API.
//!
//! The layer that guards is `keylatch-axum`, which programs use for their own routes too; here are the gateway behind it
//! and the routes of records. Tested in the `idempotency_*.rs` files of `tests/api`.

mod admission;
pub(super) mod api;
mod document;
pub(super) mod erase;
mod forwarding;
mod gateway;
mod guard;
mod headers;
pub(super) mod list;
mod path_reading;
mod principal;

use super::origin::Arrival;
use crate::traces::CallSpan;
use forwarding::ClientConnection;
use gateway::ServerHooks;

pub(super) use admission::Admission;
pub(super) use document::{add_headers, document, name_operation};
pub use guard::{CrossOrigin, Guard, GuardAccess, holds};
pub(super) use principal::TrustedProxy;

/// What the service's own paths begin with, for no guard to stand in their way.
const OWN: [&str; 12] = [
    "/assets",
    "/console",
    "/demo",
    "/docs",
    "/livez",
    "/metrics",
    "/openapi.json",
    "/problems",
    "/readyz",
    "/v1/backup",
    "/v1/idempotency",
    "/v1/locks",
];

/// What the gateway asks of this service.
pub(super) const GATEWAY_HOOKS: ServerHooks = ServerHooks {
    connection: |request| {
        let arrival = Arrival::of(request);
        let peer = arrival.and_then(|arrival| arrival.peer);
        ClientConnection { peer, scheme: arrival.map_or("http", Arrival::scheme) }
    },
    identity: |parts| Some(Arrival::identity(&parts.extensions)?.name.as_str().to_owned()),
    resolve_url: list::resolve_url,
    begin_call: |request, origin, resend| {
        let span = CallSpan::start(request, origin, resend)?;
        Some(Box::new(|answer| span.end(answer)))
    },
};

/// Whether a guard at this path would stand in the way of a path of the service.
pub(crate) fn is_in_the_way(path: &str) -> bool {
    path == "/v1/info" || OWN.iter().any(|own| holds(path, own) || holds(own, path))
}
