//! What the gateway in front of other services asks of this one.
//!
//! The layer that guards and the gateway behind it are `keylatch-axum`, which programs use for
//! their own routes too. Tested in the `idempotency_*.rs` files of `tests/api`.

use crate::http::api::record_list;
use crate::http::origin::ConnectionInfo;
use crate::traces::CallSpan;
use keylatch_axum::gateway::{ClientConnection, ServerHooks, client_address, holds};

/// What the service's own paths begin with, for no guard to stand in their way.
const OWN: [&str; 14] = [
    "/.keylatch",
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
    "/v1/idempotency-keys",
    "/v1/locks",
];

/// What the gateway asks of this service.
pub(super) const GATEWAY_HOOKS: ServerHooks = ServerHooks {
    connection: |request| {
        let connection = ConnectionInfo::of(request);
        let peer = connection.and_then(|connection| connection.peer);
        ClientConnection { peer, scheme: connection.map_or("http", ConnectionInfo::scheme) }
    },
    address: |request| {
        let connection = ConnectionInfo::of(request);
        client_address(request, connection.and_then(|connection| connection.peer))
    },
    identity: |parts| Some(ConnectionInfo::identity(&parts.extensions)?.name.as_str().to_owned()),
    resolve_url: record_list::resolve_url,
    begin_call: |request, origin, resend| {
        let span = CallSpan::start(request, origin, resend)?;
        Some(Box::new(|answer| span.end(answer)))
    },
};

/// Whether a guard at this path would stand in the way of a path of the service.
pub(crate) fn is_in_the_way(path: &str) -> bool {
    path == "/v1/info" || OWN.iter().any(|own| holds(path, own) || holds(own, path))
}
